"""Types of held feedback."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


@dataclass(frozen=True)
class TimedThumb:
    """A thumb whose source says when it was given."""

    id: str
    rater_id: str | None
    source: str
    """System that it came from."""
    good: bool
    """Whether it is a thumb up."""
    said_at: datetime
    """When it was given."""
    was_held: bool
    """Whether it is, or was, in a quarantine."""
    sender: str | None = None
    """Id of the key or user that sent it."""


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
