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
from typing import Any, Literal

from pydantic import Field, field_validator

from thumbwheel.core.config import Config
from thumbwheel.core.errors import InputError
from thumbwheel.core.plugins import nearest

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
    kind: ItemKind
    chat: Sequence[Mapping[str, Any]]
    """Role and text of each message."""
    answers: Sequence[str]
    """In the order in which they are shown."""
    steps: Sequence[Mapping[str, Any]] = ()
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
    rated: int
    """By this rater."""
    skipped: int
    """By this rater, and still to be had."""
    done: int
    total: int

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
    state: str
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
    name: str
    kind: ItemKind
    state: QueueState
    items: int
    done: int
    """Items that got all their ratings."""
    recorded_at: datetime
    closed_at: datetime | None

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


@dataclass(frozen=True)
class ReturnedItems:
    """How many skipped items come again."""

    returned: int


@dataclass(frozen=True)
class OrderedQueue:
    """The rule by which a queue was put in order."""

    rule: str


@dataclass(frozen=True)
class Period:
    """The ratings of one rater in one week."""

    week: str
    rated: int
    positive: float | None
    """Share of good verdicts; None where there are no thumbs and ratings."""
    agreed: int
    compared: int
    """Items of the week that others rated too, with a plurality."""


@dataclass(frozen=True)
class RaterReport:
    """How one rater does."""

    rater: str
    rated: int
    skipped: int
    undone: int
    seconds: float | None
    """Median over the ratings whose time is known."""
    kappa: Mapping[str, Any] | None
    """Agreement with the crowd of the others, with its interval."""
    weeks: Sequence[Period]


@dataclass(frozen=True)
class QueueReport:
    """How the raters of a queue do."""

    raters: Sequence[RaterReport]
    alpha: Mapping[str, Any]
    conflicts: Sequence[str]
    """Items on which raters differ."""
