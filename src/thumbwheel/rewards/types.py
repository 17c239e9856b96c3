"""Types of feedback: a statement, a judgement about a trace, a comparison of two traces, and the
settings that decide them.

What a build makes by the million is a named tuple: a frozen dataclass takes five times as long to
make.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, NamedTuple

from pydantic import Field
from typing_extensions import TypedDict

from thumbwheel.core.config import Config

RULE = (
    "people come before checkers and models; the newest statement of each rater counts, and each "
    "statement without a rater and a time; "
    "the side with the most weight decides (a plurality); an exact tie gives no label"
)
"""How contradicting raters are resolved; reports and manifests quote it."""


class LabelConfig(Config):
    """How raw feedback becomes good, bad or neither."""

    good_from: float = Field(default=0.6, gt=0.5, le=1)
    """A rating or score is good from this part of its scale on: 0.6 of 1..5 stars is 4 and 5."""
    bad_to: float = Field(default=0.4, ge=0, lt=0.5)
    """A rating or score is bad up to this part of its scale: 0.4 of 1..5 stars is 1 and 2; what
    lies between says neither."""
    good_labels: tuple[str, ...] = ("correct", "right", "good", "accepted", "resolved", "success")
    """Labels that call an answer good, by name (`correct: true`) or by value (`"correct"`)."""
    bad_labels: tuple[str, ...] = ("incorrect", "wrong", "bad", "rejected", "unresolved", "failure")
    """Labels that call an answer bad. Any other label says neither."""
    bad_outcomes: tuple[str, ...] = ("escalated", "returned", "churned", "refunded", "error")
    """Outcomes that are bad when they are true or high; any other outcome is good then."""


@dataclass(frozen=True)
class Statement:
    """One current piece of feedback about one trace, as given.

    `rater` names who speaks. Where the feedback names nobody, that is its source, for a trace that
    has a name of its own; for a trace that is known by its content only, it is the statement
    itself, because anybody may have met the same text.
    """

    feedback_id: str
    kind: str
    name: str | None
    value: Any
    scale: dict[str, float] | None
    rater: str
    weight: float
    at: datetime
    automatic: bool = False
    """Said by a checker or a model, not by a person."""
    timed: bool = True
    """Whether it says when it was given; `at` is the time of its import otherwise."""
    named: bool = True
    """Whether it says who gave it."""
    recorded_at: datetime | None = None
    """When it was imported: of equal times the later import wins."""
    rater_id: str | None = None
    """The row of the rater, whoever sent it; None where nobody is named."""
    imported: bool = False
    """Said by a file or another server: it replaces no word that the home's apps brought."""

    @property
    def lone(self) -> bool:
        """Neither rater nor time: it replaces nothing of its own import, and nothing there replaces
        it."""
        return not (self.named or self.timed)


@dataclass(frozen=True)
class Preference:
    """One current preference: `ranking` holds trace ids, best first, ties side by side; targets
    that have not arrived are left out."""

    feedback_id: str
    ranking: tuple[tuple[str, ...], ...]
    rater: str
    weight: float
    at: datetime
    automatic: bool = False
    lone: bool = False
    recorded_at: datetime | None = None
    rater_id: str | None = None
    imported: bool = False
    """As of a statement."""


@dataclass(frozen=True)
class FeedbackScope:
    """A part of the feedback in force: said from `since` to before `until`, at most `per_rater`
    statements of each named rater (those whose ids come first), about prompts from the id `first`
    to before `last`; `rewarded`: also traces that only the ledger judges. Of opinions only those
    with one of `tags` (none: any), without any of `without_tags`, and about what the app was at
    least so sure of; what has no confidence counts."""

    since: datetime | None = None
    until: datetime | None = None
    per_rater: int | None = None
    first: str | None = None
    last: str | None = None
    rewarded: bool = False
    tags: tuple[str, ...] = ()
    without_tags: tuple[str, ...] = ()
    min_confidence: float | None = None


class PromptRange(NamedTuple):
    """The prompts from the id `first` to before `last`; all by default."""

    first: str | None = None
    last: str | None = None


EVERY_PROMPT = PromptRange()


class Edit(NamedTuple):
    """The corrected output that the raters settled on, and who said so."""

    text: str
    feedback_ids: tuple[str, ...]
    automatic: bool = False
    """No person among them."""


class Value(NamedTuple):
    """How good an answer is as a number: `unit` from 0 (worst) to 1 (best) of `scale`, the raters'
    own; of which kind, and who said so.

    Where they used different scales it is the mean of their positions, and the scale is that from 0
    to 1.
    """

    unit: float
    scale: tuple[float, float]
    kind: str
    feedback_ids: tuple[str, ...]
    automatic: bool = False
    """Nobody but checkers and models gave it."""
    verdict: bool = False
    """Nobody gave it as a number: it is the end of the scale that people's good or bad means."""

    @property
    def raw(self) -> float:
        """On its own scale; what is bad when it is high has been turned round."""
        low, high = self.scale
        return low + self.unit * (high - low)

    @classmethod
    def mean(cls, weighted_values: Sequence[tuple[Value, float]]) -> Value | None:
        """Return the weighted mean of (value, weight) pairs, or None for an empty list."""
        if not weighted_values:
            return None
        values = [value for value, _ in weighted_values]
        total = math.fsum(value.unit * weight for value, weight in weighted_values)
        feedback_ids: set[str] = set()
        for value in values:
            feedback_ids.update(value.feedback_ids)
        scales = {value.scale for value in values}
        return cls(
            unit=total / math.fsum(weight for _, weight in weighted_values),
            scale=scales.pop() if len(scales) == 1 else (0.0, 1.0),
            kind=min(value.kind for value in values),
            feedback_ids=tuple(sorted(feedback_ids)),
            automatic=all(value.automatic for value in values),
            verdict=any(value.verdict for value in values),
        )

    def sides_with(self, good: bool) -> bool:
        """Return whether the number lies on this side of the middle of its scale."""
        return self.unit > 0.5 if good else self.unit < 0.5


class Verdict(NamedTuple):
    """Good, bad or neither (None), with the margin of the winning side (None with `good`), the kind
    of its feedback, and all feedback that counted."""

    good: bool | None
    strength: float | None
    kind: str | None
    feedback_ids: tuple[str, ...]


class Judgement(NamedTuple):
    """What the current feedback says about one trace.

    `good` is None where nothing decides: no vote, only neutral ones, or an exact tie. `strength` is
    the margin of the winning side, |for - against| / (for + against), and None with `good`.
    `conflict` says that raters contradicted each other, decided or not. `feedback_ids` are all
    votes that counted, on both sides; `kind` is the first kind of the winning side. `value` is the
    mean of the raters' numbers, None where nobody gave one. People come first in all of it: what
    checkers and models said counts where no person spoke, and a number of theirs beside a person's
    verdict stands only on that person's side (`beside_verdict`).
    """

    trace_id: str
    good: bool | None
    strength: float | None
    kind: str | None
    feedback_ids: tuple[str, ...]
    conflict: bool
    edit: Edit | None
    edit_conflict: bool
    value: Value | None = None
    automatic: bool = False
    """Nobody but checkers and models called it good or bad; `value` and `edit` have their own."""


@dataclass(frozen=True)
class PairComparison:
    """What the current preferences say about two traces: `better` over `worse`, or no side
    (`decided` is False: ties, or no plurality).

    `strength` is the margin of the winning side over the other, as a part of all votes, ties
    included.
    """

    better: str
    worse: str
    decided: bool
    strength: float
    feedback_ids: tuple[str, ...]
    conflict: bool
    automatic: bool = False


@dataclass(frozen=True)
class Signal:
    """How much feedback of one kind is in force, what it says one by one, and from how many raters
    (unnamed ones of a source: one)."""

    kind: str
    """Kind of the feedback."""
    count: int
    """Pieces in force."""
    good: int
    """Those that call the answer good."""
    bad: int
    """Those that call the answer bad."""
    raters: int
    """Different raters; unnamed ones of a source count as one."""

    @property
    def neither(self) -> int:
        """Neutral, or of a kind that calls nothing good or bad."""
        return self.count - self.good - self.bad


@dataclass(frozen=True)
class DominantRater:
    """One rater gave `count` of the `total` pieces of feedback of persons, more than half. Who it
    is, is not kept."""

    count: int
    """Pieces of feedback of this rater."""
    total: int
    """Pieces of feedback of all persons."""

    def __str__(self) -> str:
        share = (
            f"{self.count:,} of the {self.total:,} pieces of feedback of persons "
            f"({self.count / self.total:.0%})"
        )
        return (
            f"one rater gave {share}, so the model learns that one's taste; --per-rater N hears at "
            "most N of each"
        )


@dataclass(frozen=True)
class TargetCounts:
    """What the feedback in force is about: targets that have arrived, and those still awaited, by
    kind (trace, step, session)."""

    arrived: dict[str, int]
    """Kind of target (trace, step, session) -> targets that are stored."""
    awaited: dict[str, int]
    """Kind of target -> targets that have not arrived yet."""


@dataclass(frozen=True)
class JudgedComponent:
    """What became of the traces under one component of the reward."""

    judged: int
    """Traces that it judged in this run."""
    stood: int
    """Traces that had been judged before."""
    statuses: dict[str, int]
    """Status -> traces."""


@dataclass(frozen=True)
class MissingValue:
    """Traces that a component gave no value, for one reason."""

    component: str
    """Component without a value."""
    status: str
    """not_applicable, pending, failed or blocked."""
    count: int
    """Traces concerned."""
    reason: str | None
    """Why, in words; null where the status says it all."""


@dataclass(frozen=True)
class JudgeReport:
    """What became of the traces that were judged."""

    traces: int
    """Traces that were judged."""
    rewarded: int
    """Traces that have a reward for the first time."""
    components: dict[str, JudgedComponent]
    """Component -> what became of the traces under it."""
    reasons: list[MissingValue]
    """Why values are missing, with counts."""
    agent: str
    """Agent whose traces they are."""
    dry_run: bool
    """True if nothing was stored."""


@dataclass(frozen=True)
class PendingReport(JudgeReport):
    """What became of the traces that could not be judged before."""

    waiting: list[MissingValue]
    """Those that still have no value."""


class ValueFigures(Config):
    """Figures of a set of rewards; None without any."""

    n: int
    """How many values there are."""
    mean: float | None
    """Their mean; null without any."""
    least: float | None
    """The smallest one; null without any."""
    most: float | None
    """The largest one; null without any."""


class RewardFigures(ValueFigures):
    """Figures of the combined reward."""

    good: int
    """Traces whose reward counts as good."""
    good_from: float
    """The reward from which an answer is a good one."""


class ComponentFigures(Config):
    """What a component of the reward says."""

    weight: float
    """Weight of the component in the reward."""
    mean: float | None
    """Mean of its values, from 0 to 1; null without any."""
    statuses: dict[str, int]
    """Status (ok, not_applicable, pending, failed, blocked) -> traces."""
    not_judged: int
    """Traces that it has not judged with its present settings."""


class LowTrace(Config):
    """A trace with a low reward."""

    trace: str
    """Id of the trace."""
    external_id: str | None
    """Name that the app gave it."""
    reward: float
    """Its combined reward, from 0 to 1."""


class RewardSummary(Config):
    """The rewards of an agent."""

    agent: str
    """Agent whose traces they are."""
    traces: int
    """Traces with a stored value."""
    components: dict[str, ComponentFigures]
    """Component -> its figures."""
    reward: RewardFigures
    """Mean, ends and good ones of the combined reward."""
    not_run: list[str]
    """Components with a weight that have never judged anything with their present settings."""
    lowest: list[LowTrace]
    """Traces with the lowest reward."""


class ExplainedComponent(Config):
    """What a component says of a trace."""

    weight: float
    """Weight of the component in the reward."""
    value: float | None
    """Value that it gave, from 0 to 1; null where it has none."""
    status: str
    """ok, not_applicable, pending, failed or blocked."""
    evidence: dict[str, Any]
    """What the value is based on."""
    outdated: bool
    """Whether it judged the trace before its feedback or its case changed."""
    counts_as: float | None
    """The value as it enters the formula; null where it has none."""
    in_decision: bool
    """Whether `decision` counts what it heard."""
    feedback_ids: list[str]
    """Feedback that it read."""


class RewardExplanation(Config):
    """Why a trace has its reward."""

    trace: str
    """Id of the trace."""
    reward: float | None
    """Combined reward, from 0 to 1; null where no component has a value."""
    arithmetic: str
    """How it was computed, as a formula with the numbers."""
    components: dict[str, ExplainedComponent]
    """Component -> what it says."""
    not_run: list[str]
    """Components that have not judged the trace yet."""


class Reweighed(Config):
    """What other weights would make of the rewards."""

    agent: str
    """Agent whose rewards they are."""
    before: ValueFigures
    """Rewards under the present weights."""
    after: ValueFigures
    """Rewards under the other weights."""
    changed: int
    """Traces whose reward would change."""
    now_good: int
    """Traces that would become good."""
    no_longer_good: int
    """Traces that would no longer be good."""
    not_run: list[str]
    """Components with a weight that no trace was judged by."""
    not_run_yet: list[str]
    """Components with a weight that some traces were not judged by."""
    yaml: str
    """The settings that keep the weights."""


@dataclass(frozen=True)
class RewrittenAnswers:
    """Answers that were written again."""

    agent: str
    """Agent whose answers they are."""
    feedback: list[str]
    """Ids of the corrections."""
    left_out: dict[str, int]
    """Reason -> answers."""


class IntervalFigure(TypedDict):
    """A figure with its interval. Its words are no docstrings, which derived classes would lack."""

    value: Annotated[float | None, Field(description="Null if there is too little to tell.")]
    low: Annotated[float | None, Field(description="Lower end of the 95 % interval.")]
    high: Annotated[float | None, Field(description="Upper end of the 95 % interval.")]
