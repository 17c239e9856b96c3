"""JSON of strangers as values: bounded in the number of values and in nesting, without NaN and
without NUL characters.

Lives here: parsing. Not here: where one text ends and the next begins (`lines.py`, `elements.py`),
what the values mean (`sources/`).
"""

from __future__ import annotations

import re
from typing import Any

from pydantic_core import from_json

from thumbwheel.importers.types import Unreadable

MOST_VALUES = 1_000_000
"""Values of one row. An empty array takes a few bytes of text and twenty times as much memory."""


class HasNul(Unreadable):
    """A text with a NUL character."""

    def __init__(self) -> None:
        super().__init__("it holds a NUL character, which a database cannot keep in a text")


_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
"""A text in JSON. One that never ends is read once, not again from each quote inside it."""
_MARKS = (b",", b"[", b"{")


def json_value(raw: bytes, most_values: int = MOST_VALUES, *, allow_nul: bool = False) -> Any:
    """Return the value of a JSON text. Raises Unreadable for anything else, including NaN, NUL
    characters (unless allowed) and too many values."""
    if holds_more_values(raw, most_values):
        raise Unreadable(f"it holds more than the {most_values:,} values that are taken")
    try:
        value = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise Unreadable(_json_problem(raw, error)) from None
    if not allow_nul and b"\\u0000" in raw and has_nul(value):
        raise HasNul
    return value


def holds_more_values(raw: bytes, most: int) -> bool:
    """Return whether a JSON text has more than `most` values."""
    return count_marks(raw) > most and count_marks(_TEXT.sub(b"", raw)) > most


def holds_more_containers(raw: bytes, most: int) -> bool:
    """Return whether a JSON text has more than `most` lists and objects."""
    return _count_containers(raw) > most and _count_containers(_TEXT.sub(b"", raw)) > most


def _count_containers(raw: bytes) -> int:
    return raw.count(b"[") + raw.count(b"{")


def value_in(text: str) -> Any:
    """Return the value of a text if it is JSON, else the text itself. Raises HasNul."""
    try:
        return json_value(text.encode("utf-8", "surrogatepass"))
    except HasNul:
        raise
    except Unreadable:
        return text


def count_marks(raw: bytes) -> int:
    """Return how many values there are at most; marks within texts are counted too."""
    return sum(raw.count(mark) for mark in _MARKS)


def _json_problem(raw: bytes, error: ValueError) -> str:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as bad:
        return f"it is not UTF-8 (byte {bad.start + 1})"
    hint = "; JSON has no NaN or Infinity" if b"NaN" in raw or b"Infinity" in raw else ""
    return f"it is no JSON: {str(error).replace(' line 1', '')}{hint}"


def has_nul(value: Any) -> bool:
    """Return whether a text in `value` contains a NUL character."""
    if isinstance(value, str):
        return "\x00" in value
    if isinstance(value, dict):
        return any(map(has_nul, value)) or any(map(has_nul, value.values()))
    return isinstance(value, list) and any(map(has_nul, value))
