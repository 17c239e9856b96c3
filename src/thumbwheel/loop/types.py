"""Types of this stage: the lineage of a version, the uses of a source, what an erasure deletes and
taints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

Record = Mapping[str, Any]
"""One stored row, as a JSON value."""


@dataclass(frozen=True)
class DatasetSources:
    """Where the rows of a dataset come from: distinct ids per split (train, dev, gate)."""

    rows: dict[str, int]
    feedback: dict[str, list[str]]
    traces: dict[str, list[str]]
    subjects: dict[str, list[str]]
    origins: dict[str, int]
    """Kind of feedback (correction, upvote, preference, ...) -> rows."""


@dataclass(frozen=True)
class UsedDataset:
    """A dataset with rows that are based on a source."""

    id: str
    shape: str
    rows: dict[str, list[str]]
    """Split -> row ids."""
    counts: dict[str, int]
    """Split -> rows, including those of lost files, any of which may be based on the source."""


@dataclass(frozen=True)
class UsedRun:
    """A run that trained on a source."""

    id: str
    algorithm: str
    dataset_id: str
    state: str


@dataclass(frozen=True)
class UsageReport:
    """Where a piece of feedback, a trace or a subject was used."""

    source: str
    agent: str
    sources: list[str]
    """Ids of the source and of the feedback about it."""
    datasets: list[UsedDataset]
    runs: list[UsedRun]
    versions: list[str]
    reward_models: list[str]
    evaluations: list[str]
    exports: list[str]
    """Paths."""


@dataclass(frozen=True)
class Lineage:
    """A version back to its feedback, and what was decided about it since. Absent links are None: a
    base has no run."""

    version: Record
    parent: Record | None
    aliases: list[str]
    run: Record | None
    dataset: Record | None
    sources: DatasetSources | None
    evaluations: list[Record]
    decisions: list[Record]
    exports: list[Record]
    children: list[str]
    """Versions that continue this one."""
    reward_model: Record | None = None
    """The reward model of the agent against which the run was trained."""

    def to_json(self) -> dict[str, Any]:
        """Return the lineage as a JSON value."""
        return asdict(self)


@dataclass(frozen=True)
class SourceUse:
    """A version whose dataset holds a piece of feedback, a trace or a subject."""

    version: str
    version_id: str
    run_id: str
    dataset_id: str
    rows: dict[str, int]
    """Split -> rows."""
    through: str | None = None
    """The reward model (rm1) that learned from it, where the version was only trained against
    that."""

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
    """What is stored about a subject: row ids by table."""

    subjects: set[str] = field(default_factory=set)
    sessions: set[str] = field(default_factory=set)
    """Sessions that have no trace left."""
    traces: set[str] = field(default_factory=set)
    feedback: set[str] = field(default_factory=set)
    raters: set[str] = field(default_factory=set)
    """Raters that have said nothing else."""
    named_raters: set[str] = field(default_factory=set)
    senders: set[str] = field(default_factory=set)
    """Users of one of the names: what they sent for others goes too."""
    """Those of them that have the subject's name."""
    cases: set[str] = field(default_factory=set)
    messages: set[str] = field(default_factory=set)
    """Messages that only these traces and cases use."""
    mates: set[str] = field(default_factory=set)
    """Traces of others with the same prompt."""
    judged: set[str] = field(default_factory=set)
    """`mates`, and traces of others that the subject judged: their rewards may rest on what is
    erased, and are computed anew."""
    names: dict[str, set[str]] = field(default_factory=dict)
    """Kind (subject, session, trace, feedback, case, rater) -> their ids in the sources."""

    @property
    def ids(self) -> frozenset[str]:
        """The ids by which rows of datasets refer to these."""
        return frozenset(self.subjects | self.sessions | self.traces | self.feedback | self.cases)

    @property
    def counts(self) -> dict[str, int]:
        """Table -> rows."""
        tables = ("subjects", "sessions", "traces", "feedback", "raters", "cases", "messages")
        return {table: len(getattr(self, table)) for table in tables}


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
    """Versions that are not tainted but whose evaluations showed erased text."""
    classifiers: set[str] = field(default_factory=set)
    """Hashes of classifiers, which are deleted."""
    judge_agreements: set[str] = field(default_factory=set)
    """Hashes of judges' statements of agreement, which are deleted."""
    calibrations: set[str] = field(default_factory=set)
    """Hashes of calibrations of `next_turn`, which are deleted."""

    def size(self) -> int:
        """Return the number of ids."""
        return sum(len(ids) for ids in self.to_json().values())

    def to_json(self) -> dict[str, list[str]]:
        """Return the ids as a JSON value."""
        return {field.name: sorted(getattr(self, field.name)) for field in fields(self)}


@dataclass(frozen=True)
class NamedUse(SourceUse):
    """A use of a source with what it is, as programs read it."""

    role: Literal["learned", "selected", "judged", "rewarded"] = "learned"


@dataclass(frozen=True)
class ClusterHost:
    """A host of a home."""

    folder: str
    """The random id of its folder."""
    name: str
    """The name of its machine."""
    address: str | None
    """Where the other hosts reach it."""
    is_this: bool
    erasures: list[str]
    """Erasures that wait until its server removes its files."""


@dataclass
class Erasure:
    """What was erased, or would be. It holds no text of the subject, and no name but those of
    datasets, versions and files."""

    agent: str
    state: str
    """planned, done, or already: it was done before and nothing has come since."""
    id: str | None = None
    rows: dict[str, int] = field(default_factory=dict)
    """Table -> rows."""
    datasets: dict[str, dict[str, int]] = field(default_factory=dict)
    """Dataset id -> split -> rows that go."""
    files: dict[str, int] = field(default_factory=dict)
    tainted: dict[str, list[str]] = field(default_factory=dict)
    """Kind -> names."""
    retrain: list[str] = field(default_factory=list)
    """Commands that train what is tainted anew."""
    notes: list[str] = field(default_factory=list)
