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


def percent(value: float | None) -> str:
    """Return a share as `61.2 %`; a dash for None."""
    return "–" if value is None else f"{100 * value:.1f} %"


def points(value: float | None) -> str:
    """Return a difference of shares in percentage points, with its sign; a dash for None."""
    return "–" if value is None else f"{100 * value:+.1f}".replace("-", "−")


def gain(value: float | None) -> str:
    """Return a difference of shares as a text for people; a dash for None.

    >>> gain(0.25), gain(-0.034), gain(0)
    ('+25 points', '−3.4 points', '0 points')
    """
    if value is None:
        return "–"
    text = f"{100 * value:+.1f}".removesuffix(".0").replace("-", "−")
    return f"{'0' if text in ('+0', '−0') else text} points"


def size(n_bytes: float | None) -> str:
    """Return a number of bytes as a short text, in steps of 1,000; a dash for None.

    >>> size(320), size(1_500_000_000), size(42_000_000), size(None)
    ('320 bytes', '1.5 GB', '42 MB', '–')
    """
    if n_bytes is None:
        return "–"
    units = ["TB", "GB", "MB", "kB"]
    unit = "bytes"
    while n_bytes >= 999.5 and units:
        n_bytes, unit = n_bytes / 1000, units.pop()
    return f"{n_bytes:.1f}".removesuffix(".0") + f" {unit}"


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


def duration(seconds: float | None) -> str:
    """Return a number of seconds as a short text; a dash for None.

    >>> duration(0.25), duration(3.14159), duration(200), duration(7380), duration(100_000)
    ('250 ms', '3.1 s', '3 min 20 s', '2 h 3 min', '1 d 3 h')
    """
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"
