"""How values are shown to a person: shares, points, numbers, and text from models and users."""

from __future__ import annotations

import json
import re
from typing import Any

HIDDEN = re.compile(
    "[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b\u200e\u200f\u202a-\u202e"
    "\u2060-\u2069\ud800-\udfff\ufeff\ufffe\uffff]"
)
"""Characters that are invisible, change the direction of text, or that no document may hold."""
EXCERPT = 2000
"""Characters of a model's answer that are shown."""


def legible(text: object) -> str:
    """Return `text` with hidden and direction-changing characters spelled out.

    >>> legible("pay" + chr(0x202e) + "me")
    'pay\\\\u202eme'
    """
    return HIDDEN.sub(lambda match: f"\\u{ord(match.group()):04x}", str(text))


def visible(text: object) -> str:
    """Return `legible` text, cut after `EXCERPT` characters."""
    shown = legible(text)
    if len(shown) <= EXCERPT:
        return shown
    return f"{shown[:EXCERPT]}… ({len(shown) - EXCERPT} more characters)"


def number(value: Any) -> str:
    """Return any number as a short text; a dash for None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "–" if value is None else str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def compact(value: Any) -> str:
    """Return a JSON value on one line; text unchanged."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def indented(value: Any) -> str:
    """Return a JSON value over several lines; text unchanged."""
    if isinstance(value, str):
        return value
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)
