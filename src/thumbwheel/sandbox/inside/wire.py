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

LATE = __future__.annotations.compiler_flag
"""A setup may name in an annotation what it defines later."""
LONGEST_FRAME = 4 << 20
"""Bytes."""
DEEPEST = 60

SEQUENCES: dict[str, Any] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
}
WRITTEN: dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    "decimal": (Decimal, str, Decimal),
    "fraction": (Fraction, str, Fraction),
    "datetime": (datetime, datetime.isoformat, datetime.fromisoformat),
    "date": (date, date.isoformat, date.fromisoformat),
    "time": (time, time.isoformat, time.fromisoformat),
}
"""Types of the library that are sent as text, only as themselves: a subclass could write anything."""


def no_data(value: Any) -> tuple[str, int]:
    """Raises ValueError: no object is known by a number here."""
    raise ValueError(f"an object of {type(value).__name__} is no data")


def encode(
    value: Any, describe: Callable[[Any], tuple[str, int]] = no_data, depth: int = 0
) -> list[Any]:
    """`value` as JSON with its type; an object by what `describe` says. Raises ValueError for what
    is nested too deep."""
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
            return [name, [encode(one, describe, depth) for one in base.__iter__(value)]]
    for name, (base, write, _) in WRITTEN.items():
        if kind is base:
            return [name, write(value)]
    if kind is range:
        return ["range", value.start, value.stop, value.step]
    if kind is timedelta:
        return ["timedelta", value.days, value.seconds, value.microseconds]
    return ["object", *describe(value)]


def decode(given: Any, found: Callable[[str, int], Any] = lambda *_: no_data(None)) -> Any:
    """The value; objects are what `found` gives for a class and a number. Raises ValueError for
    anything that `encode` does not write."""
    try:
        return _decode(given, found)
    except (TypeError, IndexError, KeyError, RecursionError, ArithmeticError) as error:
        raise ValueError(f"no value: {error}") from None


def _decode(given: Any, found: Callable[[str, int], Any]) -> Any:
    name = given[0]
    if name in SEQUENCES:
        return SEQUENCES[name](_decode(one, found) for one in given[1])
    if name == "dict":
        return {_decode(key, found): _decode(inner, found) for key, inner in given[1]}
    if name == "object":
        return found(str(given[1]), int(given[2]))
    return _plain(name, given)


def _plain(name: str, given: Any) -> Any:
    if name == "none":
        return None
    if name == "complex":
        return complex(float.fromhex(given[1]), float.fromhex(given[2]))
    if name == "range":
        return range(*given[1:4])
    if name == "timedelta":
        return timedelta(*given[1:4])
    if name in WRITTEN:
        return WRITTEN[name][2](given[1])
    read: dict[str, Any] = {
        "bool": bool,
        "int": lambda text: int(text, 16),
        "float": float.fromhex,
        "str": str,
        "bytes": bytes.fromhex,
        "bytearray": bytearray.fromhex,
    }
    return read[name](given[1])


def pack(message: dict[str, Any]) -> bytes:
    """The message as a frame. Raises ValueError where it is too long."""
    body = json.dumps(message).encode()
    if len(body) > LONGEST_FRAME:
        raise ValueError(f"{len(body)} bytes; at most {LONGEST_FRAME} are sent")
    return struct.pack("!I", len(body)) + body


def unpack(buffer: bytearray) -> dict[str, Any] | None:
    """Take the first whole frame out of `buffer`; None where it has none. Raises ValueError for
    what is no frame."""
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
