"""Rewards of benchmarks: GRPO's for different words, and the control of PPO, which knows nothing of
the answer."""

from __future__ import annotations

import random
from typing import Any

NOISE = random.Random(7)


def variety(prompt: Any, answer: str, reference: Any, **row: Any) -> float:
    """How many different words there are."""
    return float(len(set(answer.split())))


def chance(prompt: Any, answer: str, reference: Any, **row: Any) -> float:
    """Noise from 0 to 1, whatever the answer: nothing can be learned from it."""
    return NOISE.random()
