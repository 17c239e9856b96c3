"""How times, sizes, shares and their differences are written for people."""

from __future__ import annotations


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


def about(seconds: float) -> str:
    """Return an estimated time, with no more digits than an estimate has.

    >>> about(0.2), about(42.3), about(200), about(7500)
    ('about 1 s', 'about 42 s', 'about 3 min', 'about 2 h 5 min')
    """
    if seconds < 60:
        return f"about {max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"about {minutes} min" if minutes < 60 else f"about {duration(60 * minutes)}"


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
