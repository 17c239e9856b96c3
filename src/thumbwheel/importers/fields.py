"""Reading a row of somebody else's: typed access that says what is wrong.

Every function raises Unreadable and nothing else, whatever it gets. Lives here: what several
sources need. Not here: a format, the dialects of chats (`messages.py`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from thumbwheel.core.present import shortened
from thumbwheel.importers.json_text import value_in
from thumbwheel.importers.types import Unreadable

DEEPEST = 50
"""Levels of JSON in JSON, or of one shape in another, that are opened."""
LATEST = 1e11
"""Seconds since 1970 are less."""
_COUNTED = re.compile(r"\d{10}(\.\d+)?|\d{13}|\d{16}|\d{19}")


def clip(value: Any) -> str:
    """Return the repr of `value`, shortened for a reason."""
    return shortened(repr(value))


def text_at(row: Mapping[str, Any], key: str) -> str:
    """Return the text at `key`. Raises Unreadable if it is missing, blank or not a text."""
    value = row.get(key)
    if key not in row:
        raise Unreadable(f"key {key!r} is missing")
    if not isinstance(value, str) or not value.strip():
        raise Unreadable(f"{key} {clip(value)} is no text")
    return value


def answer_at(row: Mapping[str, Any], key: str) -> str:
    """Return the text at `key`, which may be empty: a model that said nothing gave an answer, too.
    Raises Unreadable if it is missing or not a text."""
    value = row.get(key)
    if isinstance(value, str):
        return value
    return text_at(row, key)


def object_at(row: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the object at `key`; {} if it is absent or null. Raises Unreadable for anything
    else."""
    value = row.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Unreadable(f"{key} {clip(value)} is no object")
    return value


def list_at(row: Mapping[str, Any], key: str) -> list[Any]:
    """Return the list at `key`; [] if it is absent or null. Raises Unreadable for anything else."""
    value = row.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise Unreadable(f"{key} {clip(value)} is no list")
    return value


def objects_at(row: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the list of objects at `key`; [] if it is absent or null. Raises Unreadable for
    anything else."""
    values = list_at(row, key)
    for value in values:
        if not isinstance(value, dict):
            raise Unreadable(f"{key} holds {clip(value)}, which is no object")
    return values


def number_of(value: Any, what: str) -> float:
    """Return a finite number, also one written as text. Raises Unreadable for anything else."""
    is_candidate = isinstance(value, int | float | str) and not isinstance(value, bool)
    try:
        if not is_candidate or not math.isfinite(float(value)):
            raise ValueError
    except (ValueError, OverflowError):
        raise Unreadable(f"{what} {clip(value)} is no number") from None
    return float(value) if isinstance(value, str) else value


def name_of(value: Any) -> str | None:
    """Return an id as text, or None if it is null or empty. Raises Unreadable for anything but a
    text or an integer."""
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise Unreadable(f"{clip(value)} is no id")
    return str(value)


def moment(value: Any) -> datetime | str | None:
    """Return a time given in seconds since 1970, or thousandths, millionths or billionths of them,
    also as text. Other texts are returned unchanged, to be parsed later; None for null or an empty
    text. Raises Unreadable.

    >>> str(moment(1767600000)), str(moment("1767600000"))
    ('2026-01-05 08:00:00+00:00', '2026-01-05 08:00:00+00:00')
    >>> str(moment(1767600000123)), str(moment(1767600000123456789))
    ('2026-01-05 08:00:00.123000+00:00', '2026-01-05 08:00:00.123457+00:00')
    """
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise Unreadable(f"{clip(value)} is no time")
    if isinstance(value, str) and not _COUNTED.fullmatch(value.strip()):
        return value
    seconds = float(value)
    while seconds > LATEST:
        seconds /= 1000
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        raise Unreadable(f"{clip(value)} is no possible time") from None


def unpacked(value: Any) -> Any:
    """Return `value`, or, if it is a text of JSON, its value, unpacked up to three times."""
    for _ in range(3):
        if not isinstance(value, str) or not value.lstrip().startswith(("{", "[", '"')):
            break
        opened = value_in(value)
        if opened is value:
            break
        value = opened
    return value


def is_number(value: Any) -> bool:
    """Return whether the value is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_empty(value: Any) -> bool:
    """Return whether there is nothing: null, or a text, an object or a list without content."""
    return value in (None, "", {}, [])


def content_text(content: Any, depth: int = 0) -> str | None:
    """Return the text of a message's content, its parts, or the object in which a model's API
    wrapped it; None if it has no text. Raises Unreadable if it is nested too deeply."""
    if isinstance(content, str) or content is None:
        return content
    if depth > DEEPEST:
        raise Unreadable("it is nested too deeply")
    if isinstance(content, list):
        parts = [content_text(part, depth + 1) for part in content]
        texts = [text for text in parts if text is not None]
        return "".join(texts) if texts else None
    if isinstance(content, dict):
        for key in ("text", "content", "parts", "message"):
            if not isinstance(content.get(key), str | list | dict):
                continue
            text = content_text(content[key], depth + 1)
            if text is not None:
                return text
    return None
