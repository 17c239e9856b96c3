"""Reward functions that tests name in a run's settings, as a user would."""

from __future__ import annotations

import zlib
from typing import Any


def spoken(prompt: Any, answer: str, reference: Any, **row: Any) -> float | None:
    """The answer is what it is worth: a number, or nothing."""
    return float(answer) if answer else None


def length(prompt: Any, answer: str, reference: Any, **row: Any) -> float:
    """Longer is better, which nobody meant."""
    return len(answer) / 10


def chance(prompt: Any, answer: str, reference: Any, **row: Any) -> float:
    """Nothing that can be learned, and yet the same for the same answer."""
    return zlib.crc32(f"{row['row_id']}:{answer}".encode()) % 2


def crash(prompt: Any, answer: str, reference: Any, **row: Any) -> float:
    """A bug in somebody's function."""
    raise RuntimeError("deliberate")
