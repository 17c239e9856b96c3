"""Options that several benchmarks have."""

from __future__ import annotations


def numbers(text: str) -> list[int]:
    """`11-13,20` -> [11, 12, 13, 20]."""
    listed: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        listed += range(int(first), int(last or first) + 1)
    return listed
