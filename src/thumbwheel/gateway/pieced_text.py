"""Texts and tool calls that come in pieces.

Most servers send in each piece what is new. Some repeat in each what came before, or send in the
last piece the whole once more. If that is unmistakable, the whole is taken once.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from io import StringIO

from thumbwheel.importers.recordable import storable

_SURE, _SURE_OF_COPY = 8, 16
"""Characters from which it is no chance that a text begins with all that came before, and that it
is the same."""
_DISTINCT = 5
"""Different characters of such a text: a line of dashes also begins with what came before."""
_BYTE = re.compile("[\udc80-\udcff]")
"""A byte that is no UTF-8, as Python's `surrogateescape` writes it."""


def json_objects(text: str) -> list[str] | None:
    """Return the JSON objects that follow each other in a text; None if there is anything else.

    >>> json_objects('{"a": 1} {"b": 2}'), json_objects('{"a": 1'), json_objects("[1]")
    (['{"a": 1}', '{"b": 2}'], None, None)
    """
    decoder = json.JSONDecoder()
    objects = []
    start, end = 0, len(text.rstrip())
    while start < end:
        while text[start].isspace():
            start += 1
        if text[start] != "{":
            return None
        try:
            _, stop = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            return None
        objects.append(text[start:stop])
        start = stop
    return objects


def is_json_object(text: str) -> bool:
    """Return whether a text is one whole JSON object.

    >>> is_json_object('{"day": "today"}'), is_json_object('{"day": '), is_json_object("[1]")
    (True, False, False)
    """
    return len(json_objects(text) or []) == 1


class PiecedText:
    """A text that comes in pieces."""

    def __init__(self) -> None:
        self._buffer = StringIO()
        self._last = ""
        self._count = 0
        self._growths = 0
        self._repeats = True
        """Whether each piece so far began with the one before."""
        self.is_cut = False
        """Whether not all of it was kept."""

    def __len__(self) -> int:
        return self._buffer.tell()

    def write(self, piece: str) -> None:
        """Add a piece."""
        if self._repeats:
            self._repeats = piece.startswith(self._last)
            self._growths += self._count > 0 and len(piece) > len(self._last)
        self._last = piece
        self._count += 1
        self._buffer.write(piece)

    def is_object(self) -> bool:
        """Return whether the pieces so far are one whole JSON object."""
        return self._last.rstrip().endswith("}") and is_json_object(self.joined())

    def is_repeated_by(self, piece: str) -> bool:
        """Return whether a further piece begins with all others, or with another JSON object."""
        if piece.lstrip().startswith("{") and self.is_object():
            return True
        return 0 < len(self) <= len(piece) and piece.startswith(self.joined())

    def joined(self) -> str:
        """Return the pieces one after the other."""
        return self._buffer.getvalue()

    def text(self) -> str:
        """Return the text: the pieces, or the last one if it repeats all others."""
        joined = self._buffer.getvalue()
        last = self._last
        if self._count < 2 or self.is_cut or len(last) < _SURE or len(set(last)) < _DISTINCT:
            return joined
        grew = self._repeats and self._growths > 1
        is_copy = len(last) >= _SURE_OF_COPY and joined == last + last
        return last if grew or is_copy else joined

    def json_text(self) -> str:
        """Return the text of a JSON object. If the pieces make none, return the one that the last
        of them makes, if it holds what the others say; else the pieces."""
        joined = self._buffer.getvalue()
        objects = json_objects(joined)
        if objects is not None and len(objects) == 1:
            return joined
        if objects and _holds_all(objects):
            return objects[-1]
        if self._repeats and is_json_object(self._last):
            return self._last
        with suppress(ValueError, RecursionError):
            value = json.loads(joined)
            if isinstance(value, str) and is_json_object(value):
                return value  # encoded twice
        return joined


def _holds_all(objects: list[str]) -> bool:
    """Return whether the last of the JSON objects has every field of the others."""
    *others, last = map(json.loads, objects)
    return all(
        all(key in last and last[key] == value for key, value in other.items()) for other in others
    )


class ToolCallDraft:
    """A tool call whose name and arguments come in pieces."""

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.pieces = PiecedText()
        """Of its arguments."""
        self.is_text = False
        """Whether the tool takes any text, and no JSON."""
        self.is_of_provider = False
        """Whether the tool ran at the provider, so that the app sees no call."""

    def arguments(self) -> str:
        """Return the arguments; `{}` where none came."""
        if self.is_text:
            return self.pieces.joined()
        return self.pieces.json_text() if self.pieces.joined().strip() else "{}"

    def is_whole(self) -> bool:
        """Return whether the arguments can be read, or were cut here."""
        return self.is_text or self.pieces.is_cut or is_json_object(self.arguments())


def without_escapes(text: str) -> tuple[str, bool]:
    """Return (text, whether a part of it is lost). Bytes that are no UTF-8 come as half surrogate
    pairs: servers cut characters between two events, each of which has a part of its bytes.

    >>> without_escapes("ge\\udcc3\\udcb6ffnet"), without_escapes("ge\\udcf6ffnet")[1]
    (('geöffnet', False), True)
    """
    if not _BYTE.search(text):
        return storable(text), False
    # real pairs come first: each is one character
    paired = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    try:
        return storable(paired.encode("utf-8", "surrogateescape").decode()), False
    except UnicodeError:
        return storable(paired), _BYTE.search(paired) is not None
