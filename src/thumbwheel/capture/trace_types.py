"""Traces, feedback and cases as lists and commands answer with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, NotRequired

from pydantic import Field, with_config
from typing_extensions import TypedDict

from thumbwheel.core.config import Config

VALUE = "true for a thumb up; a number, a text, or the ranking of a preference."
"""What the value of feedback is."""
REPLAY_SOURCE = "replay"
"""The source of answers that a replay stored: a version gave them to be compared with recorded
ones, and no user of the app got them."""


@dataclass(frozen=True)
class TraceSummary:
    """A trace in a list."""

    id: str
    """Id of the trace."""
    external_id: str
    """Name that the app gave it."""
    source: str
    """System that it came from; `gateway` if this server recorded the call."""
    session: str | None
    """Conversation that it belongs to, as the app names it."""
    subject: str | None
    """Whose data it is, as the app names them."""
    status: str
    """ok or error."""
    input: str | None
    """The text of the last message."""
    output: str | None
    """Answer of the app, shortened; null if it gave none."""
    model: str | None
    """The served model of the last call; the requested one where nobody said which answered."""
    version: str | None
    """Model version that answered (v3); null where another system did."""
    feedback: Sequence[str]
    """What was said about it, in a word each: "thumb up", "rating 4"."""
    occurred_at: datetime | None
    """When the app answered (UTC); null if it did not say."""
    recorded_at: datetime
    """When it was stored (UTC)."""
    seconds: float | None = None
    """From the first start to the last end of its steps."""
    prompt_tokens: int | None = None
    """Tokens of all prompts of the trace; null where they were not counted."""
    completion_tokens: int | None = None
    """Tokens of all answers of the trace; null where they were not counted."""
    cost: float | None = None
    """Of all its calls, in the owner's currency; None where nobody knows."""
    tags: Sequence[str] = ()
    """Labels that somebody gave it without another value."""


@dataclass(frozen=True)
class TracePage:
    """Traces, newest first. `after` is the cursor of the next page; None on the last one."""

    traces: Sequence[TraceSummary]
    """Traces of this page."""
    after: str | None
    """Cursor of the next page, for `after` of the request; null on the last one."""
    searched_to: datetime | None = None
    """Until when the texts were searched, where older traces were not looked at yet."""


@dataclass(frozen=True)
class ExcludedTraces:
    """Traces that are in no dataset from now on, or in them again."""

    traces: Sequence[str]
    """Ids of the traces."""
    excluded: bool
    """True if they are left out of datasets from now on, false if they are back in."""


@dataclass(frozen=True)
class AddedFeedback:
    """Feedback that was just stored."""

    id: str
    """Id of the feedback."""
    kind: str
    """Kind of the feedback: thumb, rating, score, correction, preference, label, outcome or
    comment."""
    value: Annotated[Any, Field(description=VALUE)]


@dataclass(frozen=True)
class FeedbackTarget:
    """What a piece of feedback is about."""

    kind: str
    """trace, step or session."""
    source: str
    """System in which `external_id` is a name."""
    external_id: str
    """Name that the app gave it; feedback may name a trace that arrives later."""
    target_id: str | None
    """None until the target has arrived."""
    step: int | None = None
    """Number of the step in its trace, from 0 on; null for a whole trace or session."""


@dataclass(frozen=True)
class ListedFeedback:
    """A piece of feedback in a list."""

    id: str
    """Id of the feedback."""
    source: str
    """System that it came from."""
    external_id: str
    """Name that it has in its source."""
    kind: str
    """thumb, rating, score, correction, preference, label, outcome or comment."""
    name: str | None
    """Name of a label or outcome; null for other kinds."""
    value: Annotated[Any, Field(description=VALUE)]
    scale: dict[str, float] | None
    """Ends of the scale, `worst` and `best`; null where the kind has a fixed one."""
    comment: str | None
    """Remark beside the judgement."""
    occurred_at: datetime | None
    """When the person gave it (UTC); null if nobody said."""
    recorded_at: datetime
    """When it was stored (UTC)."""
    supersedes: str | None
    """Id of the earlier feedback that it replaces."""
    retracts: str | None
    """Id of the earlier feedback that it takes back."""
    metadata: dict[str, Any] | None
    """Further fields that the app sent."""
    sender: str | None
    """Who sent it: a key, a user or a token; None for files of the owner."""
    rater: str | None
    """Who judged, as the sender says."""
    rater_kind: str | None
    """person, model, checker or reference."""
    sender_name: str | None
    """Name of the key or user that sent it; null if that is gone."""
    targets: list[FeedbackTarget]
    """What it is about: one, or several for a comparison."""

    @classmethod
    def of(cls, row: dict[str, Any]) -> ListedFeedback:
        """Return a row of `list_feedback`."""
        targets = [FeedbackTarget(**target) for target in row["targets"]]
        return cls(**{**row, "targets": targets})


@dataclass(frozen=True)
class CaseDraft:
    """A case that a trace would become."""

    trace: str
    """Id of the trace."""
    input: Any
    """Its chat up to the answer."""
    reference: str
    """Its newest correction, else its answer."""


@dataclass(frozen=True)
class AddedCases:
    """Cases that were just stored."""

    ids: list[str]
    """Ids of the cases, in the order in which they were given."""
    drafts: list[CaseDraft] = field(default_factory=list)
    """With `dry_run`, the cases that would be stored."""


@dataclass(frozen=True)
class ListedCase:
    """A case in a list."""

    id: str
    """Id of the case."""
    source: str
    """Where it came from: the source of an import, or the API."""
    external_id: str
    """Name that it has in its source."""
    reference: Annotated[Any, Field(description="The right answer: a text or a JSON value.")]
    checker: str | None
    """Reward function that judges an answer; null where the reference alone decides."""
    checker_config: dict[str, Any] | None
    """Settings of the checker."""
    group_key: str | None
    """Cases of one group count as one in intervals; null: the prompt is the group."""
    basis: str
    """gold if the owner reviewed it, else feedback."""
    slices: dict[str, Any] | None
    """Slice -> value by which an evaluation shows figures apart."""
    recorded_at: datetime
    """When it was stored (UTC)."""
    reviewer: str | None
    """Who vouches for a gold case; null for others."""
    input: Annotated[Any, Field(description="The content of its last message: a text or parts.")]


@dataclass(frozen=True)
class CasePage:
    """Cases, the newest first."""

    counts: dict[str, int]
    """Basis -> all cases of the agent."""
    cases: list[ListedCase]
    """Cases of this page."""


class SignalFigures(Config):
    """Feedback of one kind that is in force."""

    count: int
    """Pieces of feedback in force."""
    judged: int
    """How many of them can be called positive or not."""
    positive: int
    """How many of them call the answer good."""
    people: int
    """Different raters who are persons."""
    share_positive: float | None
    """positive / count; null where the kind is neither good nor bad."""


class SignalByRater(SignalFigures):
    """Feedback of one kind, and how much of it each rater gave."""

    raters: dict[str, int]
    """Rater -> pieces of feedback of this kind."""


class VersionFigures(SignalFigures):
    """What people think of the answers of a version, or of a model."""

    version: str
    """Version (v3) or model that answered."""


class FeedbackFigures(Config):
    """Counts of an agent's feedback."""

    signals: dict[str, SignalByRater]
    """Kind of feedback -> its counts."""
    raters: dict[str, int]
    """Rater -> pieces of feedback that they gave."""
    replaced: int
    """Feedback that is no longer in force."""
    unresolved: int
    """Feedback whose trace has not arrived."""
    over_time: list[dict[str, Any]]
    """What people think of answers, by the day, week or month, which is the first field."""
    by_version: list[VersionFigures]
    """Counts of thumbs and ratings by the version or model that answered."""


@with_config(use_attribute_docstrings=True)
class ShownStep(TypedDict):
    """A step of a trace. What was not recorded of it is left out."""

    position: int
    """From 0, in the order in which they began."""
    kind: str
    """`llm`, `tool`, `retrieval`, `agent` or another kind that the source names."""
    status: str
    """`ok`, `error` or `cancelled`."""
    name: NotRequired[str]
    """Of the tool or the function."""
    input: NotRequired[Any]
    """A JSON value: messages of a call, arguments of a tool."""
    output: NotRequired[Any]
    """A JSON value: the reply, or what the tool gave back."""
    finish_reason: NotRequired[str]
    """Why the model stopped."""
    started_at: NotRequired[datetime]
    """When it began."""
    ended_at: NotRequired[datetime]
    """When it ended."""
    first_token_at: NotRequired[datetime]
    """When the first token of the reply arrived."""
    requested_model: NotRequired[str]
    """The model that the client asked for."""
    served_model: NotRequired[str]
    """The model that answered."""
    version: NotRequired[str]
    """The version of the agent that answered: v3."""
    deployment: NotRequired[str]
    """The deployment that answered."""
    sampling: NotRequired[dict[str, Any]]
    """Parameters of the request, such as its temperature."""
    prompt_tokens: NotRequired[int]
    """Tokens of the prompt."""
    completion_tokens: NotRequired[int]
    """Tokens of the reply."""
    cached_tokens: NotRequired[int]
    """Tokens of the prompt that the server had in its cache."""
    reasoning_tokens: NotRequired[int]
    """Tokens of the reply that are reasoning."""
    recorded_tokens: NotRequired[int]
    """How many token ids of the reply are stored."""
    complete: NotRequired[bool]
    """Whether the reply is whole."""
    error: NotRequired[str]
    """What went wrong."""
    routing: NotRequired[dict[str, Any]]
    """Why this deployment answered."""
    cost: NotRequired[float]
    """Price of the call."""


@with_config(use_attribute_docstrings=True)
class ShownJudgement(TypedDict):
    """A piece of feedback about a trace. What it does not have is left out."""

    id: str
    """Of the feedback."""
    kind: str
    """`thumb`, `rating`, `score`, `label`, `correction`, `preference` or `outcome`."""
    at: datetime
    """When it was given; when it was recorded, if its source does not say."""
    name: NotRequired[str]
    """Of a label, a score or an outcome."""
    value: NotRequired[Any]
    """A JSON value: true for a thumb up, a number, a text, or a ranking."""
    comment: NotRequired[str]
    """Words of the rater."""
    rater: NotRequired[str]
    """Who gave it, by the name in the source."""
    sender: NotRequired[str]
    """The key or user that sent it."""
    said: NotRequired[str]
    """Who sent it for whom, if the sender is not the rater."""
    step: NotRequired[int]
    """Position of the step that it is about."""
    source: NotRequired[str]
    """Where it came from."""


@with_config(use_attribute_docstrings=True)
class ShownTrace(TypedDict):
    """Everything about a trace."""

    id: str
    """Ours."""
    source: str
    """Where it came from."""
    external_id: str | None
    """Its id there."""
    session: str | None
    """The conversation, by its id in the source."""
    subject: str | None
    """The person whom it is about, by the name in the source."""
    parent_id: str | None
    """The trace of the run that called this one."""
    case_id: str | None
    """The case that was answered."""
    input: list[dict[str, Any]]
    """Chat messages up to the answer."""
    output: str | None
    """The answer."""
    status: str
    """`ok`, `error` or `cancelled`."""
    metadata: dict[str, Any] | None
    """What the source says besides."""
    occurred_at: datetime | None
    """When it happened."""
    recorded_at: datetime
    """When it was stored here."""
    steps: list[ShownStep]
    """What happened in it, in order."""
    feedback: list[ShownJudgement]
    """The feedback in force about it, oldest first."""
    children: list[str]
    """Traces of the runs that it called."""
