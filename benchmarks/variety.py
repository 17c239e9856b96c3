"""What GRPO is rewarded for in the benchmark: different words."""

from __future__ import annotations

from typing import Any


def variety(prompt: Any, answer: str, reference: Any, **row: Any) -> float:
    """How many different words there are."""
    return float(len(set(answer.split())))
