"""Good, bad or corrected: what a piece of feedback says about an answer, for people who look
through traces. What it is worth in a reward follows from settings: `rewards/`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from thumbwheel.importers.types import SCALES


class Judged(StrEnum):
    """What people say about an answer."""

    GOOD = "good"
    """A thumb up, a number in the upper half of its scale, preferred to another."""
    BAD = "bad"
    """A thumb down, a number in the lower half, another one preferred."""
    CORRECTED = "corrected"
    """A text that should have been the answer."""


OPINIONS = ("thumb", "rating", "score", "preference")
"""Kinds of feedback that say whether an answer is good or bad."""
KINDS: Mapping[Judged, tuple[str, ...]] = {
    Judged.GOOD: OPINIONS,
    Judged.BAD: OPINIONS,
    Judged.CORRECTED: ("correction",),
}
"""Judgement -> the kinds of feedback that express it."""


def meaning(judgement: Mapping[str, Any]) -> Judged | None:
    """Return what a judgement means for the answer at its `position`; None if it is neutral, or of
    another kind (a comment).

    >>> meaning({"kind": "rating", "value": 2, "scale": None, "position": 0})
    <Judged.BAD: 'bad'>
    """
    kind, value = judgement["kind"], judgement["value"]
    if kind == "correction":
        return Judged.CORRECTED
    if kind == "thumb":
        return Judged.GOOD if value else Judged.BAD
    if kind in ("rating", "score"):
        scale = judgement["scale"]
        low, high = (scale["min"], scale["max"]) if scale else SCALES[kind]
        middle = (low + high) / 2
        if value == middle:
            return None
        return Judged.GOOD if value > middle else Judged.BAD
    if kind == "preference":
        best = value["ranking"][0]
        if judgement["position"] not in best:
            return Judged.BAD
        return Judged.GOOD if len(best) == 1 else None
    return None
