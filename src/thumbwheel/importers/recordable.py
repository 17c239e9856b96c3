"""JSON values of strangers as values that an import takes.

An import refuses a line with a NUL character, half a surrogate pair, NaN, deep nesting or millions
of values. A recorded call must not be lost for that, so what cannot be kept is replaced or cut
here, and the cut is marked. Not here: which values belong to a call (`protocol`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

from thumbwheel.importers.types import MOST_MESSAGES

MAX_CHARACTERS = 1_500_000
"""Characters that are recorded of one request; a context of 300,000 tokens has about as many.
With those of the reply, each escaped in the longest way, a line stays below what an import takes
(`importers.lines.LONGEST`)."""
MAX_VALUES = 200_000
_VALUES_OF_ITEM = MAX_VALUES // MOST_MESSAGES
"""Values that a message or part counts for, so that no recorded call has more messages than an
import takes."""
MAX_DEPTH = 64
"""The reader of import lines takes 200 levels, some of which are the line's."""
MAX_NAME = 512
MAX_INTEGER = 1 << 63
_WINDOW = 2000
"""Characters within which a cut looks for the end of a word; the longest usual key is shorter."""
_NUMBERS = "0123456789 -./()+\n\t\u00a0"
REPLACEMENT = "\ufffd"


class BoundedCopier:
    """Copies values until its budget of characters and values is spent; `truncated` says whether it
    was. With `keeps_files` the files in messages stay; otherwise references stand for them."""

    def __init__(
        self,
        characters: int = MAX_CHARACTERS,
        values: int = MAX_VALUES,
        *,
        keeps_files: bool = False,
    ) -> None:
        self._characters, self._values = characters, values
        self.keeps_files = keeps_files
        self.truncated = False

    def text(self, text: str) -> str:
        """Return `text`, cut where the budget ends."""
        if len(text) > self._characters:
            text = clipped(text, self._characters)
            self.truncated = True
        self._characters -= len(text)
        return storable(text)

    def items(self, value: Any) -> Iterator[Any]:
        """Yield the items of a list until the budget ends; nothing for any other value."""
        for item in value if isinstance(value, list) else ():
            self._values -= _VALUES_OF_ITEM
            if self._values < 0:
                self.truncated = True
                return
            yield item

    def objects(self, value: Any) -> Iterator[Mapping[str, Any]]:
        """Return an iterator over the items of a list that are objects."""
        return (item for item in self.items(value) if isinstance(item, Mapping))

    def mapping(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of the JSON object; an empty one if nothing of it can be kept."""
        copy = self.value(value)
        return copy if isinstance(copy, dict) else {}

    def value(self, value: Any, depth: int = 0) -> Any:
        """Return a copy of the JSON value; None in place of the parts that are left out."""
        self._values -= 1
        if self._values < 0 or depth > MAX_DEPTH:
            self.truncated = True
            return None
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            copy = {}
            for key, part in value.items():
                if self._values <= 0:
                    self.truncated = True
                    break
                copy[self.text(str(key))] = self.value(part, depth + 1)
            return copy
        if isinstance(value, list | tuple):
            if len(value) > self._values:
                self.truncated = True
                value = value[: max(self._values, 0)]
            return [self.value(part, depth + 1) for part in value]
        return _number(value)


def _number(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        # a database and other languages' JSON end at 64 bits
        return value if -MAX_INTEGER <= value < MAX_INTEGER else str(value)[:40]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return None


def clipped(text: str, length: int) -> str:
    """Return at most `length` characters of `text`. The cut removes the whole word or number at its
    end, because half a card number or key would no longer be recognized.

    >>> clipped("pay with 4111 1111 1111 1111", 20)
    'pay with'
    """
    if len(text) <= length:
        return text
    before, window = text[: max(length - _WINDOW, 0)], text[max(length - _WINDOW, 0) : length]
    words = window.rsplit(None, 1)
    return before + (words[0].rstrip(_NUMBERS) if len(words) == 2 else "")


def storable(text: str) -> str:
    """Return `text` with NUL and lone surrogates replaced; surrogate halves that form a pair become
    their character.

    >>> storable("a\\x00b \\ud83d\\ude00 \\ud83d")
    'a\ufffdb 😀 \ufffd'
    """
    if "\x00" in text:
        text = text.replace("\x00", REPLACEMENT)
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def name_of(value: Any) -> str | None:
    """Return `value` as the name of a session, subject or model; its hash if it is longer than an
    import accepts, None if it is no name."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    if isinstance(value, int) and not -MAX_INTEGER <= value < MAX_INTEGER:
        return None
    name = storable(str(value)).strip()
    if len(name) > MAX_NAME:
        return f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"
    return name or None
