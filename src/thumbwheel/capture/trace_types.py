"""Traces, feedback and cases as lists and commands answer with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from thumbwheel.core.config import Config


@dataclass(frozen=True)
class TraceSummary:
    """A trace in a list."""

    id: str
    external_id: str
    source: str
    session: str | None
    subject: str | None
    status: str
    input: str | None
    """The text of the last message."""
    output: str | None
    model: str | None
    """The served model of the last call; the requested one where nobody said which answered."""
    version: str | None
    feedback: Sequence[str]
    """What was said about it, in a word each: "thumb up", "rating 4"."""
    occurred_at: datetime | None
    recorded_at: datetime
    seconds: float | None = None
    """From the first start to the last end of its steps."""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost: float | None = None
    """Of all its calls, in the owner's currency; None where nobody knows."""
    tags: Sequence[str] = ()
    """Labels that somebody gave it without another value."""


@dataclass(frozen=True)
class TracePage:
    """Traces, newest first. `after` is the cursor of the next page; None on the last one."""

    traces: Sequence[TraceSummary]
    after: str | None
    searched_to: datetime | None = None
    """Until when the texts were searched, where older traces were not looked at yet."""


@dataclass(frozen=True)
class ExcludedTraces:
    """Traces that are in no dataset from now on, or in them again."""

    traces: Sequence[str]
    excluded: bool


@dataclass(frozen=True)
class AddedFeedback:
    """Feedback that was just stored."""

    id: str
    kind: str
    value: Any


@dataclass(frozen=True)
class FeedbackTarget:
    """What a piece of feedback is about."""

    kind: str
    source: str
    external_id: str
    target_id: str | None
    """None until the target has arrived."""
    step: int | None = None


@dataclass(frozen=True)
class ListedFeedback:
    """A piece of feedback in a list."""

    id: str
    source: str
    external_id: str
    kind: str
    name: str | None
    value: Any
    scale: dict[str, float] | None
    comment: str | None
    occurred_at: datetime | None
    recorded_at: datetime
    supersedes: str | None
    retracts: str | None
    metadata: dict[str, Any] | None
    sender: str | None
    """Who sent it: a key, a user or a token; None for files of the owner."""
    rater: str | None
    rater_kind: str | None
    sender_name: str | None
    targets: list[FeedbackTarget]

    @classmethod
    def of(cls, row: dict[str, Any]) -> ListedFeedback:
        """Return a row of `list_feedback`."""
        targets = [FeedbackTarget(**target) for target in row["targets"]]
        return cls(**{**row, "targets": targets})


@dataclass(frozen=True)
class AddedCases:
    """Cases that were just stored."""

    ids: list[str]


@dataclass(frozen=True)
class ListedCase:
    """A case in a list."""

    id: str
    source: str
    external_id: str
    reference: Any
    checker: str | None
    checker_config: dict[str, Any] | None
    group_key: str | None
    basis: str
    slices: dict[str, Any] | None
    recorded_at: datetime
    reviewer: str | None
    input: Any
    """The content of its last message."""


@dataclass(frozen=True)
class CasePage:
    """Cases, the newest first."""

    counts: dict[str, int]
    """Basis -> all cases of the agent."""
    cases: list[ListedCase]


class SignalFigures(Config):
    """Feedback of one kind that is in force."""

    count: int
    judged: int
    """How many of them can be called positive or not."""
    positive: int
    people: int
    share_positive: float | None


class SignalByRater(SignalFigures):
    """Feedback of one kind, and how much of it each rater gave."""

    raters: dict[str, int]


class VersionFigures(SignalFigures):
    """What people think of the answers of a version, or of a model."""

    version: str


class FeedbackFigures(Config):
    """Counts of an agent's feedback."""

    signals: dict[str, SignalByRater]
    raters: dict[str, int]
    replaced: int
    """Feedback that is no longer in force."""
    unresolved: int
    """Feedback whose trace has not arrived."""
    over_time: list[dict[str, Any]]
    """What people think of answers, by the day, week or month, which is the first field."""
    by_version: list[VersionFigures]
