"""Nouns of this stage: where a version comes from, what something went into, what an erasure takes
away and taints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

Record = Mapping[str, Any]
"""One stored row, as a JSON value."""


@dataclass(frozen=True)
class Sources:
    """What the rows of a dataset were made from: distinct ids per split (train, dev, gate)."""

    rows: dict[str, int]
    feedback: dict[str, list[str]]
    traces: dict[str, list[str]]
    subjects: dict[str, list[str]]
    origins: dict[str, int]
    """Rows by what made them: correction, upvote, preference, ..."""


@dataclass(frozen=True)
class Lineage:
    """A version back to the feedback, and what was decided about it since. Absent links are None: a
    plain base has no run."""

    version: Record
    parent: Record | None
    aliases: list[str]
    run: Record | None
    dataset: Record | None
    sources: Sources | None
    evaluations: list[Record]
    decisions: list[Record]
    exports: list[Record]
    children: list[str]
    """Versions that were trained on from this one."""
    reward_model: Record | None = None
    """What the run was trained against, where that is a reward model of the agent."""

    def to_json(self) -> dict[str, Any]:
        """As a JSON value."""
        return asdict(self)


@dataclass(frozen=True)
class SourceUse:
    """One version whose dataset holds the given feedback, trace or subject."""

    version: str
    version_id: str
    run_id: str
    dataset_id: str
    rows: dict[str, int]
    """Split -> rows."""
    through: str | None = None
    """The reward model (rm1) that learned from it, where the version only was trained against that
    one."""

    @property
    def role(self) -> Literal["learned", "selected", "judged", "rewarded"]:
        """`learned`: trained on it; `selected`: only to choose when to stop or which method;
        `judged`: only held out; `rewarded`: trained against a reward model that has it in its
        data."""
        if self.through:
            return "rewarded"
        if self.rows.get("train"):
            return "learned"
        return "selected" if self.rows.get("dev") else "judged"


@dataclass
class SubjectRows:
    """What is stored about a subject, by table: our row ids."""

    subjects: set[str] = field(default_factory=set)
    sessions: set[str] = field(default_factory=set)
    """Sessions that have no trace left."""
    traces: set[str] = field(default_factory=set)
    feedback: set[str] = field(default_factory=set)
    raters: set[str] = field(default_factory=set)
    """Raters that have said nothing else."""
    own_raters: set[str] = field(default_factory=set)
    """Those of them that go by the subject's name."""
    cases: set[str] = field(default_factory=set)
    messages: set[str] = field(default_factory=set)
    """Messages that only these traces and cases use."""
    mates: set[str] = field(default_factory=set)
    """Traces of others with the same prompt."""
    judged: set[str] = field(default_factory=set)
    """These, and traces of others that the subject judged: their rewards may speak of what is
    erased, and are computed anew."""
    names: dict[str, set[str]] = field(default_factory=dict)
    """Kind (subject, session, trace, feedback, case, rater) -> what the sources call them."""

    @property
    def ids(self) -> frozenset[str]:
        """The ids by which rows of datasets name these things."""
        return frozenset(self.subjects | self.sessions | self.traces | self.feedback | self.cases)

    @property
    def counts(self) -> dict[str, int]:
        """Table -> rows."""
        hidden = ("names", "mates", "judged", "own_raters")
        return {
            one.name: len(getattr(self, one.name)) for one in fields(self) if one.name not in hidden
        }


@dataclass
class Tainted:
    """What descends from erased rows, by id."""

    datasets: set[str] = field(default_factory=set)
    runs: set[str] = field(default_factory=set)
    versions: set[str] = field(default_factory=set)
    reward_models: set[str] = field(default_factory=set)
    evaluations: set[str] = field(default_factory=set)
    exports: set[str] = field(default_factory=set)
    shown: set[str] = field(default_factory=set)
    """Versions that are not tainted themselves and whose evaluations showed erased text."""
    classifiers: set[str] = field(default_factory=set)
    """Documents by hash, which are deleted, as are the next."""
    judge_agreements: set[str] = field(default_factory=set)

    def size(self) -> int:
        """How much there is."""
        return sum(len(getattr(self, one.name)) for one in fields(self))

    def to_json(self) -> dict[str, list[str]]:
        """As a JSON value."""
        return {one.name: sorted(getattr(self, one.name)) for one in fields(self)}
