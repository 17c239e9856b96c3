"""How times and sizes are written for people."""

from __future__ import annotations


def duration(seconds: float | None) -> str:
    """Return a number of seconds as a short text; a dash for None.

    >>> duration(0.25), duration(3.14159), duration(200), duration(7380)
    ('250 ms', '3.1 s', '3 min 20 s', '2 h 3 min')
    """
    if seconds is None:
        return "–"
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def about(seconds: float) -> str:
    """Return an estimated time, with no more digits than an estimate has.

    >>> about(0.2), about(42.3), about(200), about(7500)
    ('about 1 s', 'about 42 s', 'about 3 min', 'about 2 h 5 min')
    """
    if seconds < 60:
        return f"about {max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"about {minutes} min" if minutes < 60 else f"about {duration(60 * minutes)}"


def size(gigabytes: float) -> str:
    """Return a size of memory or disk.

    >>> size(0.0000004), size(0.32), size(1.534), size(123.4)
    ('0.4 kB', '320 MB', '1.5 GB', '123 GB')
    """
    if gigabytes < 0.001:
        return f"{gigabytes * 1e6:.1f} kB"
    if gigabytes < 1:
        return f"{gigabytes * 1e3:.0f} MB"
    return f"{gigabytes:.1f} GB" if gigabytes < 100 else f"{gigabytes:.0f} GB"
