"""A JSON array, or pretty-printed objects one after another, taken apart into the bytes of each
element as they stream in.

It follows brackets and texts only: whether an element is JSON is found out by whoever parses it, so
a broken element costs itself and not the file. A parser of events (ijson) would end at the first
mistake and would hand over values instead of the text that was read.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

Piece = tuple[bytes, str | None]
"""The bytes, and None or why they cannot be taken (then only their beginning is there)."""

_TEXT = rb'[^"\\]*+(?:\\.[^"\\]*+)*+"'
_INSIDE = re.compile(_TEXT, re.DOTALL)
"""To the end of a text."""
_BETWEEN = re.compile(rb'(?:[^"\[\]{},]++|"' + _TEXT + rb')*+["\[\]{},]', re.DOTALL)
"""Over whole texts, to the next mark; a quote that is met begins a text that goes on in the next
bytes."""
_DEEP = re.compile(rb'(?:[^"\[\]{}]++|"' + _TEXT + rb')*+["\[\]{}]', re.DOTALL)
"""The same within an element, whose commas do not matter."""
DEEPEST = 100_000
"""Brackets that are open at once; each is remembered. Nobody can parse an element of more than a
few hundred."""
_CLOSES = {b"[": b"]", b"{": b"}"}


def elements(read: Callable[[], bytes], longest: int, shown: int, array: bool) -> Iterator[Piece]:
    """Yield every element in order. `read` returns the next bytes, none at the end.

    Raises EOFError if the text ends inside an array or an object, goes on after the array, or nests
    beyond DEEPEST.
    """
    scan = _Scan(longest, shown, 1 if array else 0)
    data = read().removeprefix(codecs.BOM_UTF8)
    while data:
        yield from scan.feed(data)
        data = read()
    yield from scan.close()


@dataclass
class _Scan:
    """Where the scan is. `base`: how many brackets are open between two elements; `due`: what
    closes those that are open now."""

    longest: int
    shown: int
    base: int
    due: list[bytes] = field(default_factory=list)
    in_text: bool = False
    ended: bool = False
    escaped: bytes = b""
    """A backslash at the end of the bytes before, which goes with the next ones."""
    length: int = 0
    """Bytes of the element so far."""
    held: bytearray = field(default_factory=bytearray)
    """The element so far, only its beginning where it is too long."""

    def feed(self, data: bytes) -> Iterator[Piece]:
        """Yield the elements that end within `data`."""
        data, self.escaped = self.escaped + data, b""
        start = position = 0
        while match := self._marks().match(data, position):
            position = match.end()
            mark = data[position - 1 : position]
            if mark == b'"':
                self.in_text = not self.in_text
                continue
            element_end = self._element_end(mark, position)
            if element_end is not None:
                yield from self._end(data[start:element_end])
                start = position
        # a text may go on in the next bytes, and so may an escape in it
        backslashes = len(data) - max(position, len(data.rstrip(b"\\")))
        if self.in_text and backslashes % 2:
            data, self.escaped = data[:-1], b"\\"
        self._hold(data[start:])

    def _marks(self) -> re.Pattern[bytes]:
        if self.in_text:
            return _INSIDE
        return _BETWEEN if len(self.due) <= self.base else _DEEP

    def close(self) -> Iterator[Piece]:
        """Yield the element that is left at the end of the file, if any. Raises EOFError."""
        if self.in_text or self.due or (self.base and not self.ended):
            raise EOFError("it ends inside an array, an object or a text")
        if self.ended and self.held.strip():
            raise EOFError("there is more after the end of the array")
        yield from self._end(b"")

    def _element_end(self, mark: bytes, position: int) -> int | None:
        """Return the end position of the element that this mark closes, or None if it closes none.
        Raises EOFError."""
        if self.ended:
            raise EOFError("there is more after the end of the array")
        if mark == b",":
            return position - 1 if len(self.due) == self.base else None
        if mark in _CLOSES:
            if len(self.due) >= DEEPEST:
                raise EOFError(f"more than {DEEPEST:,} brackets are open at once")
            self.due.append(_CLOSES[mark])
            return 0 if self.base == len(self.due) == 1 else None
        if not self.due or mark != self.due[-1]:
            return None
        self.due.pop()
        self.ended = len(self.due) < self.base
        if self.ended:
            return position - 1
        return position if len(self.due) == self.base else None

    def _hold(self, data: bytes) -> None:
        """Add bytes to the element; if it grows beyond `longest`, keep only its beginning."""
        self.length += len(data)
        self.held += data
        if self.length > self.longest:
            del self.held[self.shown :]

    def _end(self, data: bytes) -> Iterator[Piece]:
        """Yield the element that ends here, or nothing if it is only white space."""
        self._hold(data)
        element, length = bytes(self.held).strip(), self.length
        self.held.clear()
        self.length = 0
        if not element:
            return
        problem = None
        if length > self.longest:
            problem = (
                f"it has {length:,} bytes, more than the {self.longest:,} that one element may "
                "have; only its beginning is shown"
            )
        yield element, problem
