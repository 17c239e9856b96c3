"""Types of rating queues: how a queue asks, what an item is, what a rater may answer.

An answer of a rater is a verdict. What it says becomes ordinary feedback; a queue only says who is
asked about what.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date, datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field, field_validator, with_config
from typing_extensions import TypedDict

from thumbwheel.core.config import Config
from thumbwheel.core.errors import InputError
from thumbwheel.core.plugins import nearest
from thumbwheel.rewards.types import IntervalFigure

SOURCE = "review"
"""The source of feedback that is given in a queue."""
LETTERS = "ABCDEFGHIJ"
"""How answers that are compared are called."""
LABEL_NAME = re.compile(r"[^\s=,|<>&\"']{1,64}")

CARD, CARD_OF = "card", "card_of"
"""Keys of a trace's metadata: the thing that it shows, on a card of its own; and the thing of whose
card it is another question, so that a thumb on the card is about it too."""


class ItemKind(StrEnum):
    """What an item is."""

    ANSWER = "answer"
    """One answer of a trace."""
    COMPARISON = "comparison"
    """Two answers or more to one prompt."""
    CASE = "case"
    """A case that nobody has reviewed."""


class Origin(StrEnum):
    """Where the items of a new queue come from."""

    TRACES = "traces"
    COMPARISONS = "comparisons"
    CASES = "cases"
    CONFLICTS = "conflicts"
    """Traces that people judged differently."""

    @property
    def kind(self) -> ItemKind:
        """Of its items."""
        return KINDS[self]


KINDS: Mapping[Origin, ItemKind] = {
    Origin.TRACES: ItemKind.ANSWER,
    Origin.COMPARISONS: ItemKind.COMPARISON,
    Origin.CASES: ItemKind.CASE,
    Origin.CONFLICTS: ItemKind.ANSWER,
}


class QueueState(StrEnum):
    """A queue is filled, open, and closed for good."""

    FILLING = "filling"
    OPEN = "open"
    CLOSED = "closed"


class AssignmentState(StrEnum):
    """What a rater did with an item."""

    LEASED = "leased"
    RATED = "rated"
    SKIPPED = "skipped"
    EXPIRED = "expired"


MOVES: Mapping[AssignmentState, frozenset[AssignmentState]] = {
    AssignmentState.LEASED: frozenset(
        {AssignmentState.RATED, AssignmentState.SKIPPED, AssignmentState.EXPIRED}
    ),
    AssignmentState.RATED: frozenset({AssignmentState.RATED, AssignmentState.LEASED}),
    AssignmentState.SKIPPED: frozenset(
        {AssignmentState.RATED, AssignmentState.LEASED, AssignmentState.EXPIRED}
    ),
    AssignmentState.EXPIRED: frozenset(
        {AssignmentState.LEASED, AssignmentState.RATED, AssignmentState.SKIPPED}
    ),
}


@dataclass(frozen=True)
class LabelSchema:
    """A label that raters give. Without `values` it is yes or no."""

    name: str
    values: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str) -> LabelSchema:
        """Parse a label as it is written in settings. Raises ValueError.

        >>> LabelSchema.of("topic=billing|shipping")
        LabelSchema(name='topic', values=('billing', 'shipping'))
        >>> LabelSchema.of("harmful").values
        ()
        """
        name, equals, listed = text.partition("=")
        values = tuple(value.strip() for value in listed.split("|")) if equals else ()
        if not LABEL_NAME.fullmatch(name) or (equals and not all(values)):
            raise ValueError(f"{text!r} is neither NAME nor NAME=VALUE|VALUE")
        if len(set(values)) < len(values):
            raise ValueError(f"{text!r} names a value twice")
        return cls(name, values)

    def value_of(self, text: str) -> str | bool:
        """Return a rater's value. Raises InputError if the label has no such value."""
        if not self.values:
            truth = {"true": True, "yes": True, "false": False, "no": False}.get(text.lower())
            if truth is not None:
                return truth
        elif text in self.values:
            return text
        listed = self.values or ("true", "false")
        raise InputError(
            f"label {self.name}={text!r}",
            "the queue has no such value",
            f"Known: {', '.join(listed)}.{nearest(text, listed)}",
        )


class QueueConfig(Config):
    """How a queue asks."""

    instructions: str = Field(default="", max_length=20_000)
    """What raters read before they begin."""
    ask: tuple[Literal["thumb", "rating"], ...] = ("thumb",)
    """What is asked of one answer, repeatable: thumb, rating (1 to 5)."""
    labels: tuple[str, ...] = ()
    """Labels to give, repeatable: harmful (yes or no), or topic=billing|shipping|other."""
    tags: tuple[str, ...] = ()
    """Tags that raters may put on an answer, repeatable."""
    order: Literal["newest", "random", "active"] = "newest"
    """What comes first: the newest, any, or active (what people differ on, then what a classifier
    of labels is unsure of)."""
    overlap: int = Field(default=1, ge=1, le=50)
    """How many raters each item gets."""
    raters: tuple[str, ...] = ()
    """Who rates, repeatable [default: whoever may rate the agent]."""
    due: date | None = None
    """The day by which it should be done (2026-12-24)."""
    lease_minutes: float = Field(default=30, gt=0, le=24 * 60)
    """How long an item that a rater was given is kept for them."""
    layout: Literal["item", "cards"] = "item"
    """One item at a time, or many as cards with thumbs."""

    @field_validator("labels")
    @classmethod
    def _readable(cls, labels: tuple[str, ...]) -> tuple[str, ...]:
        names = [LabelSchema.of(text).name for text in labels]
        if len(set(names)) < len(names):
            raise ValueError("a label is named twice")
        return labels

    @field_validator("tags")
    @classmethod
    def _named(cls, tags: tuple[str, ...]) -> tuple[str, ...]:
        for tag in tags:
            if not LABEL_NAME.fullmatch(tag):
                raise ValueError(f"{tag!r} is no tag: it has 1 to 64 characters without spaces")
        return tags

    @property
    def schemas(self) -> tuple[LabelSchema, ...]:
        """The labels."""
        return tuple(LabelSchema.of(text) for text in self.labels)


@dataclass(frozen=True)
class Queue:
    """A stored queue."""

    id: str
    agent_id: str
    name: str
    kind: ItemKind
    config: QueueConfig
    state: QueueState
    items: int
    done: int
    """Items that got all their ratings."""
    recorded_at: datetime
    closed_at: datetime | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the queue as a JSON value."""
        return {
            "id": self.id,
            "name": self.name,
            "kind": self.kind.value,
            "state": self.state.value,
            "items": self.items,
            "done": self.done,
            "recorded_at": self.recorded_at,
            "closed_at": self.closed_at,
            **self.config.model_dump(mode="json"),
        }


@dataclass(frozen=True)
class ItemTargets:
    """An item that is to be stored: its traces, or its case."""

    traces: tuple[str, ...] = ()
    case: str | None = None

    @property
    def key(self) -> str:
        """What tells two items of a queue apart."""
        return self.case or " ".join(sorted(self.traces))


@dataclass(frozen=True)
class Item:
    """An item as its rater sees it. Of answers that are compared nobody is told where they come
    from."""

    id: str
    """Id of the item."""
    kind: ItemKind
    """answer, comparison or case."""
    chat: Sequence[Mapping[str, Any]]
    """Role and text of each message."""
    answers: Sequence[str]
    """In the order in which they are shown."""
    steps: Sequence[Mapping[str, Any]] = ()
    """Steps of the run that led to the answer; empty for a plain answer."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the owner's metadata say about a widget."""

    def to_json(self) -> dict[str, Any]:
        """Return the item as a JSON value."""
        return asdict(self) | {"kind": self.kind.value}


@dataclass(frozen=True)
class RaterVerdict:
    """What a rater says about an item."""

    thumb: bool | None = None
    rating: float | None = None
    labels: tuple[tuple[str, str | bool], ...] = ()
    tags: tuple[str, ...] = ()
    ranking: tuple[tuple[int, ...], ...] = ()
    """Positions as they were shown, best first, ties together."""
    correction: str | None = None
    note: str | None = None

    @property
    def is_empty(self) -> bool:
        return self == RaterVerdict()

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as a JSON value, without the fields that were not set."""
        content: dict[str, Any] = {
            "thumb": self.thumb,
            "rating": self.rating,
            "labels": dict(self.labels) or None,
            "tags": list(self.tags) or None,
            "ranking": [list(group) for group in self.ranking] or None,
            "correction": self.correction,
            "note": self.note,
        }
        return {name: value for name, value in content.items() if value is not None}


def ranking_of(text: str, answers: int) -> tuple[tuple[int, ...], ...]:
    """Parse a ranking as raters write it, best first. Raises InputError.

    >>> ranking_of("B > A", 2), ranking_of("A=B", 2), ranking_of("C>A=B", 3)
    (((1,), (0,)), ((0, 1),), ((2,), (0, 1)))
    """
    letters = LETTERS[:answers]
    groups = [[part.strip().upper() for part in group.split("=")] for group in text.split(">")]
    flat = [letter for group in groups for letter in group]
    if sorted(flat) != list(letters):
        raise InputError(
            f"--ranking {text!r}",
            f"it does not name each of {', '.join(letters)} once",
            "Write the best first, and ties with '=', for example: B>A, or A=B",
        )
    return tuple(tuple(letters.index(letter) for letter in group) for group in groups)


@dataclass(frozen=True)
class Batch:
    """The next items of a rater, and how far the queue is."""

    items: Sequence[Item]
    """Items to rate, in this order."""
    rated: int
    """By this rater."""
    skipped: int
    """By this rater, and still to be had."""
    done: int
    """Items of the queue that are rated."""
    total: int
    """All items of the queue."""

    def to_json(self) -> dict[str, Any]:
        """Return the batch as a JSON value."""
        return {
            "items": [item.to_json() for item in self.items],
            "rated": self.rated,
            "skipped": self.skipped,
            "done": self.done,
            "total": self.total,
        }


@dataclass(frozen=True)
class RatedItem:
    """What became of an item."""

    item: str
    """Id of the item."""
    state: str
    """State of the item now."""
    feedback: Sequence[str]
    """Ids of what was stored."""
    replayed: bool
    """Whether the request had been carried out before."""

    def to_json(self) -> dict[str, Any]:
        """Return the outcome as a JSON value."""
        return {
            "item": self.item,
            "state": self.state,
            "feedback": list(self.feedback),
            "replayed": self.replayed,
        }


class ListedQueue(QueueConfig):
    """A queue with its settings, as programs read it."""

    id: str
    """Id of the queue."""
    name: str
    """Name of the queue."""
    kind: ItemKind
    """Kind of its items: answer, comparison or case."""
    state: QueueState
    """filling, open or closed."""
    items: int
    """How many items it has."""
    done: int
    """Items that got all their ratings."""
    recorded_at: datetime
    """When it was made (UTC)."""
    closed_at: datetime | None
    """When it was closed (UTC); null while it is open."""

    @classmethod
    def of(cls, queue: Queue) -> ListedQueue:
        """Return a stored queue."""
        return cls(
            id=queue.id,
            name=queue.name,
            kind=queue.kind,
            state=queue.state,
            items=queue.items,
            done=queue.done,
            recorded_at=queue.recorded_at,
            closed_at=queue.closed_at,
            **dict(queue.config),
        )


@dataclass(frozen=True)
class AddedItems:
    """How many items were added to a queue."""

    added: int
    """Items that are new in the queue."""


@dataclass(frozen=True)
class ReturnedItems:
    """How many skipped items come again."""

    returned: int
    """Items that are open again."""


@dataclass(frozen=True)
class OrderedQueue:
    """The rule by which a queue was put in order."""

    rule: str
    """Rule that puts the items in order."""


@dataclass(frozen=True)
class Period:
    """The ratings of one rater in one week."""

    week: str
    """The week by ISO 8601, such as 2026-W31."""
    rated: int
    """Items that were rated in it."""
    positive: float | None
    """Share of good verdicts; None where there are no thumbs and ratings."""
    agreed: int
    """Those of `compared` on which they say what most others say."""
    compared: int
    """Items of the week that others rated too, with a plurality."""


@dataclass(frozen=True)
class RaterReport:
    """How one rater does."""

    rater: str
    """Name of the rater."""
    rated: int
    """Items that they rated."""
    skipped: int
    """Items that they skipped."""
    undone: int
    """Ratings that they took back."""
    seconds: float | None
    """Median over the ratings whose time is known."""
    kappa: Mapping[str, Any] | None
    """Agreement with the crowd of the others, with its interval."""
    weeks: Sequence[Period]
    """Their ratings by week."""


@dataclass(frozen=True)
class QueueReport:
    """How the raters of a queue do."""

    raters: Sequence[RaterReport]
    """How each rater does."""
    alpha: Mapping[str, Any]
    """Krippendorff's alpha of all raters, with its interval."""
    conflicts: Sequence[str]
    """Items on which raters differ."""


@with_config(use_attribute_docstrings=True)
class AgreementFigure(IntervalFigure):
    """How far verdicts agree beyond chance."""

    units: int
    """Things that were judged by both."""
    share: float | None
    """Share of the things on which the verdicts are equal."""


@with_config(use_attribute_docstrings=True)
class ClassifierReport(TypedDict):
    """Figures of the cross-validation of a classifier of labels."""

    labels: int
    """Traces that persons called good or bad."""
    good: int
    """Of these, the good ones."""
    bad: int
    """Of these, the bad ones."""
    groups: int
    """Prompts or sessions that they belong to."""
    accuracy: IntervalFigure
    """Share of labels that it predicts."""
    majority: float
    """Share that always saying the more frequent label predicts."""
    gain: IntervalFigure
    """Accuracy above that."""
    auc: IntervalFigure
    """Area under the ROC curve."""
    brier: IntervalFigure
    """Brier score; smaller is better."""
    brier_majority: float
    """Brier score of predicting the share of good ones for all."""


@with_config(use_attribute_docstrings=True)
class LabelsOfClassifier(TypedDict):
    """Identifies the labels that a classifier was fitted on."""

    fingerprint: str
    """Hash over traces and labels."""
    rule: str
    """Whose labels count."""


@with_config(use_attribute_docstrings=True)
class LearnedClassifier(TypedDict):
    """A classifier of labels that was fitted."""

    classifier: str
    """Hash of its document."""
    agent: str
    """Whose labels it learned from."""
    embeddings: NotRequired[dict[str, Any]]
    """The model that turned texts into vectors, if there was one."""
    settings: dict[str, Any]
    """Settings of the fit."""
    labels: LabelsOfClassifier
    """What it was fitted on."""
    report: ClassifierReport
    """How good it is on traces that it had not seen."""


@with_config(use_attribute_docstrings=True)
class LabelCounts(TypedDict):
    """Verdicts of persons."""

    good: int
    """Traces that they call good."""
    bad: int
    """Traces that they call bad."""


ConfidenceBand = TypedDict(
    "ConfidenceBand",
    {
        "from": Annotated[float, Field(description="Lower end of the band of confidence.")],
        "to": Annotated[float, Field(description="Upper end of the band.")],
        "reviewed": Annotated[int, Field(description="Suggestions that a person reviewed.")],
        "agreed": Annotated[int, Field(description="Of these, those that were confirmed.")],
        "share": Annotated[float | None, Field(description="Share of the confirmed ones.")],
        "low": Annotated[float, Field(description="Lower end of the 95 % interval.")],
        "high": Annotated[float, Field(description="Upper end of the 95 % interval.")],
    },
)
"""How often reviewers agreed with suggestions of some confidence."""


@with_config(use_attribute_docstrings=True)
class LabelStatus(TypedDict):
    """Labels, suggestions by state, and how often reviewers agreed with suggestions."""

    labels: LabelCounts
    """Traces with a label of persons."""
    suggestions: dict[str, int]
    """State (open, confirmed, corrected, accepted, skipped, replaced) -> suggestions."""
    kappa: AgreementFigure
    """Agreement of reviewers with suggestions beyond chance."""
    bands: list[ConfidenceBand]
    """The same by the confidence of the suggestion; bands without a review are left out."""


@with_config(use_attribute_docstrings=True)
class RaterFigures(TypedDict):
    """One rater against the crowd of the other people."""

    rater: str
    """The rater's name."""
    verdicts: int
    """Verdicts of the rater."""
    agreement: AgreementFigure
    """Cohen's kappa."""
    torn: int
    """Things on which the crowd had no plurality."""
    alone: int
    """Things that nobody else judged."""


@with_config(use_attribute_docstrings=True)
class AgreementPanel(TypedDict):
    """Everybody's agreement on one kind of verdict."""

    kind: str
    """The kind of feedback."""
    people: dict[str, AgreementFigure]
    """Metric -> Krippendorff's alpha of all people."""
    raters: list[RaterFigures]
    """People, those with the most verdicts first."""
    judges: list[RaterFigures]
    """Models."""


@with_config(use_attribute_docstrings=True)
class StatedAgreement(TypedDict):
    """The stored statement of how far a judging model agrees with people."""

    agent: str
    """Whose pairs were compared."""
    judge: str
    """Fingerprint of the judge's settings."""
    model: str
    """The judging model."""
    criteria: str
    """What makes an answer better."""
    kappa: float | None
    """Cohen's kappa with the plurality of people."""
    low: float | None
    """Lower end of its 95 % interval."""
    high: float | None
    """Upper end of its 95 % interval."""
    pairs: int
    """Pairs with a verdict of both."""
    prompts: int
    """Different prompts of these pairs."""
    share: float | None
    """Share of the pairs with equal verdicts."""
    without_verdict: int
    """Pairs on which the model gave none."""
    reasons: list[list[Any]]
    """The most frequent reasons for that: reason and count of each."""
    signature: str
    """Keyed hash over all else, with the home's key."""
    recorded_at: str
    """When it was stated."""


@with_config(use_attribute_docstrings=True)
class LabelAgreement(TypedDict):
    """How far raters agree, and what was stated of judging models."""

    panels: list[AgreementPanel]
    """One for each kind of verdict."""
    judges: list[StatedAgreement]
    """Statements of `label trust`."""


@dataclass(frozen=True)
class Suggested:
    """Result of suggesting labels."""

    classifier: str
    """Id of the classifier that suggested."""
    report: ClassifierReport
    """Figures of the cross-validation."""
    new: int
    """Suggestions that are new."""
    unlabelled: int
    """Answered traces that no person called good or bad."""
    looked_at: int
    """Those among them that were looked at: a sample of many, and none that a suggestion is about
    already."""


@dataclass(frozen=True)
class ShownQuestion:
    """A suggestion that nobody has decided on."""

    id: str
    """Id of the suggestion."""
    trace: str
    """Id of the trace that it is about."""
    prompt: list[dict[str, Any]]
    """Messages."""
    answer: str
    """Answer that is to be labelled."""
    good: bool | None = None
    """What is suggested; None where that is not shown."""
    confidence: float | None = None
    """How sure the classifier is, from 0 to 1; null where it does not say."""


@dataclass(frozen=True)
class DecidedQuestion:
    """What became of a suggestion."""

    id: str
    """Id of the suggestion."""
    trace: str
    """Id of the trace that it is about."""
    became: str
    """State of the suggestion now."""


@dataclass(frozen=True)
class AcceptedSuggestions:
    """Suggestions that were taken as they are."""

    accepted: list[str]
    """Traces."""
