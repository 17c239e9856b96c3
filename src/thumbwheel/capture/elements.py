"""A JSON array, or pretty-printed objects one after another, taken apart into the bytes of each
element as they stream in.

It follows brackets and texts only: whether an element is JSON is found out by whoever parses it, so
a broken element costs itself and not the file. A parser of events (ijson) would end at the first
mistake and would hand over values instead of the text that was read.
"""

from __future__ import annotations

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
_BOM = b"\xef\xbb\xbf"


def elements(read: Callable[[], bytes], longest: int, shown: int, array: bool) -> Iterator[Piece]:
    """Every element in order; `read` gives the next bytes, none at the end.

    Raises EOFError where the text ends inside an array or an object, goes on after the array, or
    nests beyond DEEPEST.
    """
    scan = _Scan(longest, shown, 1 if array else 0)
    data = read().removeprefix(_BOM)
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
    text: bool = False
    ended: bool = False
    escaped: bytes = b""
    length: int = 0
    kept: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> Iterator[Piece]:
        """What ends within `data`."""
        data, self.escaped = self.escaped + data, b""
        start = at = 0
        while found := self._marks().match(data, at):
            at = found.end()
            mark = data[at - 1 : at]
            if mark == b'"':
                self.text = not self.text
                continue
            cut = self._cut(mark, at)
            if cut is not None:
                yield from self._end(data[start:cut])
                start = at
        backslashes = len(data) - max(at, len(data.rstrip(b"\\")))
        if self.text and backslashes % 2:
            data, self.escaped = data[:-1], b"\\"
        self._take(data[start:])

    def _marks(self) -> re.Pattern[bytes]:
        if self.text:
            return _INSIDE
        return _BETWEEN if len(self.due) <= self.base else _DEEP

    def close(self) -> Iterator[Piece]:
        """What is left at the end of the file."""
        if self.text or self.due or (self.base and not self.ended):
            raise EOFError("it ends inside an array, an object or a text")
        if self.ended and self.kept.strip():
            raise EOFError("there is more after the end of the array")
        yield from self._end(b"")

    def _cut(self, mark: bytes, at: int) -> int | None:
        """Where the bytes of an element end that this mark closes; None where it closes none."""
        if self.ended:
            raise EOFError("there is more after the end of the array")
        if mark == b",":
            return at - 1 if len(self.due) == self.base else None
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
            return at - 1
        return at if len(self.due) == self.base else None

    def _take(self, some: bytes) -> None:
        """More of the element, held only as far as it may go."""
        self.length += len(some)
        self.kept += some
        if self.length > self.longest:
            del self.kept[self.shown :]

    def _end(self, some: bytes) -> Iterator[Piece]:
        """The element that ends here, nothing where it is only white space."""
        self._take(some)
        whole, length = bytes(self.kept).strip(), self.length
        self.kept.clear()
        self.length = 0
        if whole:
            long = (
                f"it has {length:,} bytes, more than the {self.longest:,} that one element may "
                "have; only its beginning is shown"
            )
            yield whole, long if length > self.longest else None
