"""Which traces are wanted, of all that an agent has."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from thumbwheel.capture.judged import Judged
from thumbwheel.core.errors import InputError

LONGEST_TEXT = 1_000
"""Characters that are searched for; databases refuse patterns that are much longer."""


@dataclass(frozen=True)
class TraceFilter:
    """Which traces are wanted; None wants all."""

    session: str | None = None
    subject: str | None = None
    model: str | None = None
    """Requested or served."""
    version: int | None = None
    status: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    text: str | None = None
    """In the answer or the last message; the case of the letters a to z makes no difference."""
    rated: bool | None = None
    judged: Judged | None = None
    """By somebody, in feedback that is in force; others may have said something else."""
    answered: bool = False
    """Only those with an answer."""
    trace_ids: tuple[str, ...] | None = None
    """Only these."""
    without_source: str | None = None
    """Only those of other sources."""
    prompt: str | None = None
    """Whose conversation begins with the system prompt of this id (prompts.py)."""

    def __post_init__(self) -> None:
        if self.text is not None and len(self.text) > LONGEST_TEXT:
            raise InputError(
                "the text that is searched for",
                f"it has {len(self.text):,} characters; {LONGEST_TEXT:,} are the most",
                "Give some words of it",
            )

    @property
    def is_searched(self) -> bool:
        """Whether texts or feedback of every trace have to be looked at."""
        return self.text is not None or self.judged is not None or self.prompt is not None
