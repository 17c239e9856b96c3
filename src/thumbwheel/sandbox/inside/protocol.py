"""Frames and typed values between the host and what runs in a sandbox.

A frame is four bytes of length and JSON. A value is JSON with its exact type beside it, so that 1,
1.0 and True stay three things; a subclass of a plain type is sent as what it holds, read by the
plain type's own methods; of any other object its class is named, and the number by which the side
that holds it knows it.
"""

from __future__ import annotations
import __future__

import json
import socket
import struct
from collections import deque
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

ANNOTATIONS_FLAG = __future__.annotations.compiler_flag
"""A setup may name in an annotation what it defines later."""
MAX_FRAME = 4 << 20
"""Bytes."""
MAX_DEPTH = 60

SEQUENCES: dict[str, Any] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
}
AS_TEXT: dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    "decimal": (Decimal, str, Decimal),
    "fraction": (Fraction, str, Fraction),
    "datetime": (datetime, datetime.isoformat, datetime.fromisoformat),
    "date": (date, date.isoformat, date.fromisoformat),
    "time": (time, time.isoformat, time.fromisoformat),
}
"""Types of the library that are sent as text, no subclasses: those could write anything."""


def refuse_object(value: Any) -> tuple[str, int]:
    """Raise ValueError: no object is known by a number here."""
    raise ValueError(f"an object of {type(value).__name__} is no data")


def encode(
    value: Any, describe: Callable[[Any], tuple[str, int]] = refuse_object, depth: int = 0
) -> list[Any]:
    """Return `value` as JSON with its type; `describe` gives an object's class and number. Raises
    ValueError for a value that is nested too deep."""
    if depth > MAX_DEPTH:
        raise ValueError(f"a value nested deeper than {MAX_DEPTH}")
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
        return [
            "complex",
            float.hex(complex.__add__(value, 0).real),
            float.hex(complex.__add__(value, 0).imag),
        ]
    if issubclass(kind, str):
        return ["str", str.__str__(value)]
    if issubclass(kind, bytes | bytearray):
        return [("bytes" if issubclass(kind, bytes) else "bytearray"), bytes(value).hex()]
    return _container(value, kind, describe, depth + 1)


def _container(
    value: Any, kind: type, describe: Callable[[Any], tuple[str, int]], depth: int
) -> list[Any]:
    if issubclass(kind, dict):
        return [
            "dict",
            [
                [encode(key, describe, depth), encode(inner, describe, depth)]
                for key, inner in dict.items(value)
            ],
        ]
    for name, base in SEQUENCES.items():
        if issubclass(kind, base):
            return [name, [encode(item, describe, depth) for item in base.__iter__(value)]]
    for name, (base, write, _) in AS_TEXT.items():
        if kind is base:
            return [name, write(value)]
    if kind is range:
        return ["range", value.start, value.stop, value.step]
    if kind is timedelta:
        return ["timedelta", value.days, value.seconds, value.microseconds]
    return ["object", *describe(value)]


def decode(
    encoded: Any, resolve: Callable[[str, int], Any] = lambda *_: refuse_object(None)
) -> Any:
    """Return the value; `resolve` gives the object for a class and a number. Raises ValueError for
    anything that `encode` does not write."""
    try:
        return _decode(encoded, resolve)
    except (TypeError, IndexError, KeyError, RecursionError, ArithmeticError) as error:
        raise ValueError(f"no value: {error}") from None


def _decode(encoded: Any, resolve: Callable[[str, int], Any]) -> Any:
    name = encoded[0]
    if name in SEQUENCES:
        return SEQUENCES[name](_decode(item, resolve) for item in encoded[1])
    if name == "dict":
        return {_decode(key, resolve): _decode(inner, resolve) for key, inner in encoded[1]}
    if name == "object":
        return resolve(str(encoded[1]), int(encoded[2]))
    return _plain(name, encoded)


def _plain(name: str, encoded: Any) -> Any:
    if name == "none":
        return None
    if name == "complex":
        return complex(float.fromhex(encoded[1]), float.fromhex(encoded[2]))
    if name == "range":
        return range(*encoded[1:4])
    if name == "timedelta":
        return timedelta(*encoded[1:4])
    if name in AS_TEXT:
        return AS_TEXT[name][2](encoded[1])
    read: dict[str, Any] = {
        "bool": bool,
        "int": lambda text: int(text, 16),
        "float": float.fromhex,
        "str": str,
        "bytes": bytes.fromhex,
        "bytearray": bytearray.fromhex,
    }
    return read[name](encoded[1])


def pack(message: dict[str, Any]) -> bytes:
    """Return the message as a frame. Raises ValueError if it is too long."""
    body = json.dumps(message).encode()
    if len(body) > MAX_FRAME:
        raise ValueError(f"{len(body)} bytes; at most {MAX_FRAME} are sent")
    return struct.pack("!I", len(body)) + body


def unpack(buffer: bytearray) -> dict[str, Any] | None:
    """Take the first whole frame out of `buffer`; None if it has none. Raises ValueError for bytes
    that are no frame."""
    if len(buffer) < 4:
        return None
    (length,) = struct.unpack_from("!I", buffer)
    if length > MAX_FRAME:
        raise ValueError(f"a frame of {length} bytes; at most {MAX_FRAME} are read")
    if len(buffer) < 4 + length:
        return None
    body = bytes(buffer[4 : 4 + length])
    del buffer[: 4 + length]
    try:
        message = json.loads(body)
    except RecursionError:
        raise ValueError("a frame nested too deep") from None
    if not isinstance(message, dict):
        raise ValueError("a frame that is no object")
    return message


class Channel:
    """One end of a conversation of frames that waits for the other side."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self._buffer = connection, bytearray()

    def send(self, message: dict[str, Any]) -> None:
        """Send one frame."""
        self.connection.sendall(pack(message))

    def receive(self) -> dict[str, Any]:
        """Return the next frame. Raises EOFError if the other side is gone."""
        while (message := unpack(self._buffer)) is None:
            data = self.connection.recv(65536)
            if not data:
                raise EOFError
            self._buffer += data
        return message
