"""Types of held feedback."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


@dataclass(frozen=True)
class TimedThumb:
    """A thumb that says when it was given; `good`: up. `was_held`: it is, or was, in a
    quarantine."""

    id: str
    rater_id: str | None
    source: str
    good: bool
    said_at: datetime
    was_held: bool
    sender: str | None = None


class QuarantineState(StrEnum):
    """What became of held feedback."""

    HELD = "held"
    RELEASED = "released"
    DISCARDED = "discarded"


@dataclass(frozen=True)
class Quarantine:
    """Feedback of one speaker that is, or was, held."""

    id: str
    """Id of the quarantine."""
    speaker: str | None
    """The rater's name in its source; None where the app names nobody."""
    source: str
    """System that the feedback came from."""
    count: int
    """Pieces of feedback that are held."""
    evidence: dict[str, Any]
    """Figures that look unusual."""
    state: QuarantineState
    """held, released or discarded."""
    decided_by: str | None
    """Who decided; null while it is held."""
    recorded_at: datetime
    """When it was held (UTC)."""
    decided_at: datetime | None
    """When somebody decided (UTC); null while it is held."""
