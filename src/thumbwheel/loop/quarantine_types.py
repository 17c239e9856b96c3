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
    speaker: str | None
    """The rater's name in its source; None where the app names nobody."""
    source: str
    count: int
    evidence: dict[str, Any]
    state: QuarantineState
    decided_by: str | None
    recorded_at: datetime
    decided_at: datetime | None
