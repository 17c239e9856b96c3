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

from thumbwheel.gateway.pieced_text import json_objects

MAX_EVENT = 4 << 20
"""Bytes of the longest event that is read; OpenAI's last Responses event repeats the whole
answer."""
MAX_DECODED = 64 << 20
"""Bytes that are unpacked of one compressed reply."""
_LOOKED_AT = 4096
"""Bytes in which a looked-up value has to end."""
_STEP = 1 << 20
_BOM = b"\xef\xbb\xbf"


def parsed(data: bytes, errors: str = "replace") -> Any:
    """Return the JSON value of `data`, or None if it is no JSON. `errors`: what is done with bytes
    that are no UTF-8, as `bytes.decode` has it.

    The fast parser refuses half a surrogate pair and invalid UTF-8, which some servers send if a
    character is split between two tokens; the slower one accepts them.
    """
    try:
        return from_json(data)
    except ValueError:
        try:
            return json.loads(data.decode("utf-8", errors))
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
    """The data of each server-sent event. Comments, ids and retry times are passed over; the name
    of an event is the `type` of its object where that has none."""

    def __init__(self) -> None:
        self._lines = TextLines(ends_at_cr=True)
        self._data: list[bytes] = []
        self._size = 0
        self._name = b""

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
            self._add(line[6:] if line.startswith(b"data: ") else line[5:])
        elif not line.startswith(b":"):
            self._other_line(line)

    def _other_line(self, line: bytes) -> None:
        """Read a line that is neither data nor a comment, or data in the writing of careless
        servers."""
        name, colon, value = line.partition(b":")
        name = name.strip().lower()
        if name == b"event":
            self._name = value.strip()
        elif colon and name in (b"data", b"error"):
            self._name = b"error" if name == b"error" else self._name
            self._add(value.strip())
        elif name not in (b"id", b"retry") and self._is_json(line):
            self._add(line)

    def _is_json(self, line: bytes) -> bool:
        """Return whether a line without the name of a field begins or continues JSON."""
        if not self._data:
            return line.lstrip().startswith((b"{", b"["))
        return parsed(b"\n".join(self._data)) is None

    def _add(self, data: bytes) -> None:
        while data.startswith(b"data:"):  # two servers in a row have written their own
            data = data[5:].lstrip()
        self._size += len(data) + 1
        if self._size > MAX_EVENT:
            self._lines.truncated = True
        else:
            self._data.append(data)

    def _end_event(self, events: list[bytes]) -> None:
        data, self._data, self._size = self._data, [], 0
        name, self._name = self._name, b""
        if len(data) > 1 and parsed(b"\n".join(data)) is not None:
            data = [b"\n".join(data)]
        # else servers that forget the empty line between events
        events += [_named_event(event, name) for event in data] if name else data


def _named_event(data: bytes, name: bytes) -> bytes:
    """Return the data of an event with this name: its object with a `type`, or the object of an
    error."""
    if data.startswith(b'{"type"'):
        return data
    value = parsed(data)
    if name == b"error" and data.strip() and not (isinstance(value, dict) and "error" in value):
        text = data.decode("utf-8", "replace").strip()
        return json.dumps({"error": text if value is None else value}).encode()
    if not isinstance(value, dict) or "choices" in value or "type" in value:
        return data
    return json.dumps({"type": name.decode("utf-8", "replace"), **value}).encode()


class JsonTexts:
    """The texts of a body of JSON: its lines as they come, or the one value of several lines."""

    def __init__(self) -> None:
        self._lines = TextLines()
        self._are_lines = False
        self._held: list[bytes] = []
        """The lines so far of one value."""
        self._size = 0

    @property
    def truncated(self) -> bool:
        """Whether a line was too long to be read."""
        return self._lines.truncated

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that `chunk` completes."""
        texts = []
        for line in self._lines.feed(chunk):
            if not line.strip():
                continue
            self._are_lines = self._are_lines or (not self._held and parsed(line) is not None)
            if self._are_lines:
                texts.append(line)
            else:
                self._hold(line)
        return texts

    def rest(self) -> list[bytes]:
        """Return the last line, or the value of all lines."""
        line = self._lines.rest()
        if self._held:
            self._hold(line)
            line = b"\n".join(self._held)
        if not line.strip() or parsed(line) is not None:
            return [line] if line.strip() else []
        # objects without a line end between them
        texts = json_objects(line.decode("utf-8", "replace"))
        return [text.encode() for text in texts] if texts else self._held or [line]

    def _hold(self, line: bytes) -> None:
        self._size += len(line) + 1
        if self._size > MAX_EVENT:
            self._lines.truncated = True
        else:
            self._held.append(line)


class ReplyEvents:
    """The JSON texts of a streamed reply. Its first character tells server-sent events from JSON:
    servers name the wrong type, or send one JSON text where a stream was asked for."""

    def __init__(self) -> None:
        self._head = b""
        self._events: ServerSentEvents | JsonTexts | None = None
        self.has_bytes = False
        """Whether anything but white space came."""

    @property
    def truncated(self) -> bool:
        """Whether a part was too long to be read."""
        return self._events is not None and self._events.truncated

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the texts that `chunk` completes."""
        if self._events is None:
            chunk = (self._head + chunk).lstrip()
            if not chunk or (len(chunk) < len(_BOM) and _BOM.startswith(chunk)):
                self._head = chunk
                return []
            chunk = chunk.removeprefix(_BOM)
            self.has_bytes = True
            is_json = chunk.lstrip().startswith((b"{", b"["))
            self._events = JsonTexts() if is_json else ServerSentEvents()
        return self._events.feed(chunk)

    def rest(self) -> list[bytes]:
        """Return the texts of the end, which no line end completes."""
        return [] if self._events is None else self._events.rest()


class Unpacker:
    """The bytes of a reply that came compressed with gzip or deflate."""

    def __init__(self) -> None:
        # 32: the header says whether it is gzip or zlib
        self._unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
        self._head: bytes | None = b""
        """The first bytes, while it is open whether they have a header."""
        self._size = 0
        self.problem: str | None = None

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the unpacked bytes of `chunk` in bounded pieces; nothing after a problem."""
        if self._head is not None:
            self._head += chunk
            if len(self._head) < 2:
                return
            chunk, self._head = self._head, None
            if not _has_header(chunk):
                # some servers send what `deflate` names without the header of zlib
                self._unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
        while self.problem is None and chunk:
            if self._unpacker.eof:
                if not chunk.startswith(b"\x1f"):
                    return  # padding
                # a server may pack each event by itself
                self._unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32)
            piece = self._unpacked(chunk)
            if piece:
                yield piece
            is_full = len(piece) == _STEP
            chunk = self._unpacker.unused_data or self._unpacker.unconsumed_tail
            if not chunk and is_full:
                yield from self._left()

    def _unpacked(self, chunk: bytes) -> bytes:
        """Return the next unpacked bytes, at most _STEP; nothing after a problem."""
        try:
            piece = self._unpacker.decompress(chunk, _STEP)
        except zlib.error as error:
            self.problem = f"its compressed body cannot be unpacked ({error})"
            return b""
        self._size += len(piece)
        if self._size > MAX_DECODED:
            self.problem = f"its compressed body unpacks to more than {MAX_DECODED:,} bytes"
            return b""
        return piece

    def _left(self) -> Iterator[bytes]:
        """Yield the bytes that the unpacker still holds of what it was given."""
        while piece := self._unpacked(b""):
            yield piece


def _has_header(data: bytes) -> bool:
    """Return whether packed bytes begin with the header of gzip or zlib."""
    is_zlib = data[0] & 15 == 8 and int.from_bytes(data[:2], "big") % 31 == 0
    return data.startswith(b"\x1f\x8b") or is_zlib
