"""Frames and typed values between the host and what runs in a sandbox.

A frame is four bytes of length and JSON. A value is JSON with its exact type beside it, so that 1, 1.0 and True stay three things; a
subclass of a plain type is sent as what it holds, read by the plain type's own methods; any other object is only named.
"""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

LONGEST_FRAME = 4 << 20
"""Bytes."""
DEEPEST = 60

SEQUENCES: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


class Opaque:
    """Stands for an object that is no data; equal to nothing but itself."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<{self.name} object>"


def encode(value: Any, depth: int = 0) -> list[Any]:
    """`value` as JSON with its type. Raises ValueError for what is nested too deep."""
    if depth > DEEPEST:
        raise ValueError(f"a value nested deeper than {DEEPEST}")
    kind = type(value)
    if value is None:
        return ["none"]
    if kind is bool:
        return ["bool", value]
    if issubclass(kind, int):
        return ["int", int.__format__(int.__add__(value, 0), "x")]
    if issubclass(kind, float):
        return ["float", float.hex(value)]
    if issubclass(kind, complex):
        return ["complex", float.hex(complex.__add__(value, 0).real), float.hex(complex.__add__(value, 0).imag)]
    if issubclass(kind, str):
        return ["str", str.__str__(value)]
    if issubclass(kind, bytes | bytearray):
        return [("bytes" if issubclass(kind, bytes) else "bytearray"), bytes(value).hex()]
    return _container(value, kind, depth)


def _container(value: Any, kind: type, depth: int) -> list[Any]:
    if issubclass(kind, dict):
        return ["dict", [[encode(key, depth + 1), encode(inner, depth + 1)] for key, inner in dict.items(value)]]
    for name, base in SEQUENCES.items():
        if issubclass(kind, base):
            return [name, [encode(one, depth + 1) for one in base.__iter__(value)]]
    return ["opaque", f"{kind.__module__}.{kind.__qualname__}"[:200]]


def decode(given: Any) -> Any:
    """The value; raises ValueError for anything that `encode` does not write."""
    try:
        return _decode(given)
    except (TypeError, IndexError, KeyError, RecursionError, OverflowError) as error:
        raise ValueError(f"no value: {error}") from None


def _decode(given: Any) -> Any:
    name = given[0]
    if name in SEQUENCES:
        return SEQUENCES[name](_decode(one) for one in given[1])
    if name == "dict":
        return {_decode(key): _decode(inner) for key, inner in given[1]}
    return _plain(name, given)


def _plain(name: str, given: Any) -> Any:
    if name == "none":
        return None
    if name == "complex":
        return complex(float.fromhex(given[1]), float.fromhex(given[2]))
    read: dict[str, Any] = {
        "bool": bool,
        "int": lambda text: int(text, 16),
        "float": float.fromhex,
        "str": str,
        "bytes": bytes.fromhex,
        "bytearray": bytearray.fromhex,
        "opaque": lambda text: Opaque(str(text)),
    }
    return read[name](given[1])


def pack(message: dict[str, Any]) -> bytes:
    """The message as a frame. Raises ValueError where it is too long."""
    body = json.dumps(message).encode()
    if len(body) > LONGEST_FRAME:
        raise ValueError(f"{len(body)} bytes; at most {LONGEST_FRAME} are sent")
    return struct.pack("!I", len(body)) + body


def unpack(buffer: bytearray) -> dict[str, Any] | None:
    """Take the first whole frame out of `buffer`; None where it has none. Raises ValueError for what is no frame."""
    if len(buffer) < 4:
        return None
    (length,) = struct.unpack_from("!I", buffer)
    if length > LONGEST_FRAME:
        raise ValueError(f"a frame of {length} bytes; at most {LONGEST_FRAME} are read")
    if len(buffer) < 4 + length:
        return None
    body = bytes(buffer[4 : 4 + length])
    del buffer[: 4 + length]
    try:
        found = json.loads(body)
    except RecursionError:
        raise ValueError("a frame nested too deep") from None
    if not isinstance(found, dict):
        raise ValueError("a frame that is no object")
    return found


class Talk:
    """One end of a conversation of frames that waits for the other side."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self._buffer = connection, bytearray()

    def send(self, message: dict[str, Any]) -> None:
        """Send one frame."""
        self.connection.sendall(pack(message))

    def receive(self) -> dict[str, Any]:
        """The next frame. Raises EOFError where the other side is gone."""
        while (found := unpack(self._buffer)) is None:
            data = self.connection.recv(65536)
            if not data:
                raise EOFError
            self._buffer += data
        return found
