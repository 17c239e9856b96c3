"""Streamed replies cut into their events: server-sent events, and JSON lines.

Bytes come in pieces that may end anywhere: in the middle of a character, between CR and LF. Only
whole lines are looked at, and what is held back is bounded. Not here: what an event means
(`protocols/`).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from pydantic_core import from_json

MAX_EVENT = 4 << 20
"""Bytes of the longest event that is read; OpenAI's last Responses event repeats the whole
answer."""
MAX_DECODED = 64 << 20
"""Bytes that are unpacked of one compressed reply."""
_LOOKED_AT = 4096
"""Bytes in which a looked-up value has to end."""
_STEP = 1 << 20
_BOM = b"\xef\xbb\xbf"


def parsed(data: bytes) -> Any:
    """Return the JSON value of `data`, or None if it is no JSON.

    The fast parser refuses half a surrogate pair and invalid UTF-8, which some servers send if a
    character is split between two tokens; the slower one accepts them.
    """
    try:
        return from_json(data)
    except ValueError:
        try:
            return json.loads(data.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            return None


def looked_up(data: bytes, keys: tuple[str, ...]) -> dict[str, Any] | None:
    """Return the object with the text `data`, reduced to the last values of these keys; None if it
    is no object.

    >>> looked_up(b'{"data": [0.1, 0.2], "model": "m", "usage": {"n": 1}}', ("model", "usage"))
    {'model': 'm', 'usage': {'n': 1}}
    """
    if not (data.lstrip().startswith(b"{") and data.rstrip().endswith(b"}")):
        return None
    values = {}
    for key in keys:
        start = data.rfind(json.dumps(key).encode())
        text = data[start : start + _LOOKED_AT].decode("utf-8", "replace") if start >= 0 else ""
        _, _, rest = text.partition(":")
        with suppress(ValueError, RecursionError):
            values[key], _ = json.JSONDecoder().raw_decode(rest.lstrip())
    return values


class TextLines:
    """Whole lines of a stream, without their end. `ends_at_cr`: a line also ends at CR and at CR
    LF, as server-sent events have it."""

    def __init__(self, *, ends_at_cr: bool = False) -> None:
        self._ends_at_cr, self._after_cr = ends_at_cr, False
        self._pending = bytearray()
        self._skipping = False
        self._is_first = True
        self.truncated = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that `chunk` completes."""
        if self._ends_at_cr:
            chunk = self._with_single_ends(chunk)
        if b"\n" not in chunk:
            self._hold(chunk)
            return []
        if self._pending:
            self._pending += chunk
            chunk = bytes(self._pending)
            self._pending.clear()
        lines = chunk.split(b"\n")
        if self._skipping:
            del lines[0]  # the end of a line that was too long
            self._skipping = False
        self._hold(lines.pop())
        if self._is_first and lines:
            lines[0] = lines[0].removeprefix(_BOM)
            self._is_first = False
        return lines

    def _with_single_ends(self, chunk: bytes) -> bytes:
        """Return the chunk with LF for each end of a line; CR and LF may come apart."""
        if self._after_cr:
            chunk = chunk.removeprefix(b"\n")
        if chunk or not self._after_cr:
            self._after_cr = chunk.endswith(b"\r")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return chunk

    def rest(self) -> bytes:
        """Return the last line, which has no line end."""
        rest = b"" if self._skipping else bytes(self._pending)
        self._pending.clear()
        return rest.removeprefix(_BOM) if self._is_first else rest

    def _hold(self, chunk: bytes) -> None:
        if self._skipping:
            return
        self._pending += chunk
        if len(self._pending) > MAX_EVENT:
            self._pending.clear()
            self._skipping = self.truncated = True


class ServerSentEvents:
    """The data of each server-sent event. Comments, names, ids and retry times are passed over."""

    def __init__(self) -> None:
        self._lines = TextLines(ends_at_cr=True)
        self._data: list[bytes] = []
        self._size = 0

    @property
    def truncated(self) -> bool:
        """Whether an event was too long to be read."""
        return self._lines.truncated

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the data of the events that `chunk` completes."""
        events: list[bytes] = []
        for line in self._lines.feed(chunk):
            self._line(line, events)
        return events

    def rest(self) -> list[bytes]:
        """Return the data of a last event without the empty line that ends an event."""
        events: list[bytes] = []
        self._line(self._lines.rest(), events)
        self._end_event(events)
        return events

    def _line(self, line: bytes, events: list[bytes]) -> None:
        if not line:
            self._end_event(events)
        elif line.startswith(b"data:"):
            data = line[6:] if line.startswith(b"data: ") else line[5:]
            self._size += len(data) + 1
            if self._size > MAX_EVENT:
                self._lines.truncated = True
            else:
                self._data.append(data)

    def _end_event(self, events: list[bytes]) -> None:
        data, self._data, self._size = self._data, [], 0
        if len(data) > 1 and parsed(b"\n".join(data)) is not None:
            events.append(b"\n".join(data))
        else:
            # servers that forget the empty line between events
            events += data


class JsonLineStream:
    """Each line of a stream of JSON lines."""

    def __init__(self) -> None:
        self._lines = TextLines()

    @property
    def truncated(self) -> bool:
        """Whether a line was too long to be read."""
        return self._lines.truncated

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that `chunk` completes."""
        return [line for line in self._lines.feed(chunk) if line.strip()]

    def rest(self) -> list[bytes]:
        """Return the last line, if there is one."""
        rest = self._lines.rest()
        return [rest] if rest.strip() else []


class Unpacker:
    """The bytes of a reply that came compressed with gzip or deflate."""

    def __init__(self) -> None:
        # 32: the header says whether it is gzip or zlib
        self._unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
        self._size = 0
        self.problem: str | None = None

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the unpacked bytes of `chunk` in bounded pieces; nothing after a problem."""
        while self.problem is None:
            try:
                piece = self._unpacker.decompress(chunk, _STEP)
            except zlib.error as error:
                self.problem = f"its compressed body cannot be unpacked ({error})"
                return
            self._size += len(piece)
            if self._size > MAX_DECODED:
                self.problem = f"its compressed body unpacks to more than {MAX_DECODED:,} bytes"
                return
            if piece:
                yield piece
            chunk = self._unpacker.unconsumed_tail
            if not chunk and len(piece) < _STEP:
                return
