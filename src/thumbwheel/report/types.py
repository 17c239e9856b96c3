"""Types of this stage: the lineage of a version, the uses of a source, what descends from data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from pydantic import with_config
from typing_extensions import TypedDict

from thumbwheel.db.stored_rows import Record


@dataclass(frozen=True)
class DatasetSources:
    """Where the rows of a dataset come from: distinct ids per split (train, dev, gate)."""

    rows: dict[str, int]
    """Split -> rows."""
    feedback: dict[str, list[str]]
    """Split -> ids of feedback that the rows are based on."""
    traces: dict[str, list[str]]
    """Split -> ids of traces that the rows are based on."""
    subjects: dict[str, list[str]]
    """Split -> ids of subjects whose data the rows hold."""
    origins: dict[str, int]
    """Kind of feedback (correction, upvote, preference, ...) -> rows."""


@dataclass(frozen=True)
class UsedDataset:
    """A dataset with rows that are based on a source."""

    id: str
    """Id of the dataset."""
    shape: str
    """Shape of its rows."""
    rows: dict[str, list[str]]
    """Split -> row ids."""
    counts: dict[str, int]
    """Split -> rows, including those of lost files, any of which may be based on the source."""


@dataclass(frozen=True)
class UsedRun:
    """A run that trained on a source."""

    id: str
    """Id of the run."""
    algorithm: str
    """Method of the run."""
    dataset_id: str
    """Dataset that it trained on."""
    state: str
    """State of the run."""


@dataclass(frozen=True)
class UsageReport:
    """Where a piece of feedback, a trace or a subject was used."""

    source: str
    """Id of the feedback, trace or subject."""
    agent: str
    """Agent that it belongs to."""
    sources: list[str]
    """Ids of the source and of the feedback about it."""
    datasets: list[UsedDataset]
    """Datasets with rows that are based on it."""
    runs: list[UsedRun]
    """Runs that trained on those datasets."""
    versions: list[str]
    """Versions that came out of those runs."""
    reward_models: list[str]
    """Reward models that came out of those runs."""
    evaluations: list[str]
    """Ids of evaluations that read it."""
    exports: list[str]
    """Paths."""


@dataclass(frozen=True)
class Lineage:
    """A version back to its feedback, and what was decided about it since. Absent links are None: a
    base has no run."""

    version: Record
    """The version itself."""
    parent: Record | None
    """Version whose adapter it started from; null for the base."""
    aliases: list[str]
    """Aliases that point at it."""
    run: Record | None
    """Training run that made it; null for a base."""
    dataset: Record | None
    """Dataset that it was trained on; null for a base."""
    sources: DatasetSources | None
    """Where the rows of that dataset come from; null for a base."""
    evaluations: list[Record]
    """Evaluations of the version."""
    decisions: list[Record]
    """Decisions of the gate on it."""
    exports: list[Record]
    """Exports of the version."""
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
    """Version that used it (v3)."""
    version_id: str
    """Id of that version."""
    run_id: str
    """Training run of that version."""
    dataset_id: str
    """Dataset that holds it."""
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
    """What the source did for the version: it learned from it, was selected or judged by it, or was
    rewarded by a model that learned from it."""


@dataclass(frozen=True)
class ClusterHost:
    """A host of a home."""

    folder: str
    """The random id of its folder."""
    name: str
    """The name of its machine."""
    address: str | None
    """Where the other hosts reach it."""
    version: str | None
    """Version of Thumbwheel that it ran last, with the fingerprint of its code; null if unknown."""
    is_this: bool
    erasures: list[str]
    """Erasures that wait until its server removes its files."""


@with_config(use_attribute_docstrings=True)
class DatasetOfRow(TypedDict):
    """The dataset that has a row."""

    id: str
    """Ours."""
    agent: str
    """The agent whose feedback it holds."""
    shape: str
    """Kind of its rows."""
    tainted: bool
    """Whether rows of it were erased, or what it was made from was."""


@with_config(use_attribute_docstrings=True)
class FeedbackOfRow(TypedDict):
    """A piece of feedback that a row is based on."""

    id: str
    """Ours."""
    source: str
    """Where it came from."""
    external_id: str | None
    """Its id there."""
    kind: str
    """`thumb`, `rating`, `score`, `label`, `correction`, `preference` or `outcome`."""
    name: str | None
    """Of a label, a score or an outcome."""
    value: Any
    """A JSON value: true for a thumb up, a number, a text, or a ranking."""
    scale: dict[str, Any] | None
    """Worst and best value."""
    comment: str | None
    """Words of the rater."""
    occurred_at: str | None
    """When it was given."""
    recorded_at: str
    """When it was stored here."""
    rater_kind: str | None
    """`person`, `model`, `checker` or `reference`; null if no rater is named."""


@with_config(use_attribute_docstrings=True)
class TraceOfRow(TypedDict):
    """A trace that a row is based on."""

    id: str
    """Ours."""
    source: str
    """Where it came from."""
    external_id: str | None
    """Its id there."""
    status: str
    """`ok`, `error` or `cancelled`."""
    input: list[dict[str, Any]]
    """Chat messages up to the answer."""
    output: str | None
    """The answer."""
    subject: str | None
    """Whom it is about: a keyed hash, or the name if subjects were asked for."""
    occurred_at: str | None
    """When it happened."""


@with_config(use_attribute_docstrings=True)
class CaseOfRow(TypedDict):
    """The case that a row is about."""

    id: str
    """Ours."""
    source: str
    """Where it came from."""
    external_id: str | None
    """Its id there."""
    basis: str
    """`gold` if a person approved it, else `feedback`."""
    reference: Any
    """The right answer, as text or JSON value."""
    checker: dict[str, Any] | None
    """The reward function that checks an answer."""


@with_config(use_attribute_docstrings=True)
class RewardOfRow(TypedDict):
    """A reward of the ledger for a trace or case of a row."""

    target_id: str
    """The trace or case."""
    component: str
    """The part of the reward that judged it."""
    component_version: str
    """Fingerprint of the part's settings."""
    value: float | None
    """From 0 to 1; null if it could not judge."""
    status: str
    """Whether it judged."""
    evidence: dict[str, Any] | None
    """What it judged by."""
    as_of: str | None
    """Until when feedback counted."""
    recorded_at: str
    """When it was stored."""


@with_config(use_attribute_docstrings=True)
class RowOrigin(TypedDict):
    """Everything that a row of a dataset was made from."""

    row_id: str
    """Of the row."""
    dataset: DatasetOfRow
    """The newest dataset with the row, unless one was named."""
    split: str
    """`train`, `dev` or `gate`."""
    group: str
    """The session, else the prompt: rows of a group stay in one split."""
    origin: str
    """Kind of the evidence."""
    weight: float
    """How much the row counts."""
    prompt: list[dict[str, Any]]
    """Chat messages."""
    answer: dict[str, Any]
    """The answers of the row, by their place in its shape: completion, chosen, rejected, ..."""
    rule: str | None
    """How raters that differ are resolved."""
    feedback: list[FeedbackOfRow]
    """The feedback that it is based on."""
    traces: list[TraceOfRow]
    """The traces that it is based on."""
    subjects: list[str]
    """Whom they are about: keyed hashes, or names if they were asked for."""
    case: CaseOfRow | None
    """The case that it is about."""
    rewards: list[RewardOfRow]
    """What the ledger has about these traces and the case."""


@with_config(use_attribute_docstrings=True)
class ReportSummary(TypedDict):
    """What the gate decided, and on which figures."""

    name: str
    """The metric."""
    before: float | None
    """Of the version that it was compared with."""
    after: float | None
    """Of this version."""
    gain: float | None
    """How much better it is."""
    low: float | None
    """Lower end of the gain's interval."""
    high: float | None
    """Upper end of the gain's interval."""
    level: float
    """Confidence of the interval."""
    n: int
    """Cases."""
    clusters: int
    """Groups of cases that belong together."""
    against: str | None
    """The version that it was compared with."""
    basis: str
    """What the cases rest on: `gold` or `feedback`."""
    fresh: Any
    """Which of the cases no evaluation had read before, as the evaluation recorded it."""
    reads: Any
    """How often the cases were read before, as the evaluation recorded it."""
    detectable: float | None
    """The smallest gain that would have been seen."""
    decision: str | None
    """The gate's verdict; null before it decided."""
    reasons: list[str]
    """Of the verdict."""


@with_config(use_attribute_docstrings=True)
class ReportData(TypedDict):
    """The dataset that the version learned from."""

    id: str
    """Ours."""
    shape: str
    """Kind of its rows."""
    rows: dict[str, int]
    """Split -> rows."""
    subjects: int
    """Different people."""
    feedback: dict[str, int]
    """Split -> pieces of feedback."""
    traces: dict[str, int]
    """Split -> traces."""
    origins: dict[str, int]
    """Kind of evidence -> rows."""
    drops: Any
    """Why evidence gave no row -> how often."""
    notes: Any
    """Remarks of the build."""
    warnings: Any
    """Warnings of the build."""
    rule: Any
    """How raters that differ were resolved."""
    fitted: Any
    """What was fitted on the train split."""
    watermark: Any
    """Until when feedback counted."""
    config: Any
    """Settings of the build."""


@with_config(use_attribute_docstrings=True)
class ReportTraining(TypedDict):
    """The run that made the version."""

    id: str
    """Ours."""
    algorithm: str
    """The method."""
    base: str
    """The model that it started from."""
    base_fingerprint: str | None
    """Hash of the base's files."""
    config: dict[str, Any]
    """All settings."""
    changed: dict[str, Any]
    """Settings that differ from the defaults."""
    seed: int
    """Of all that is drawn by chance."""
    state: str
    """`finished`, `failed`, ..."""
    reason: str | None
    """Why it ended so."""
    metrics: dict[str, Any] | None
    """Figures at its end."""
    started: str
    """When it began."""
    ended: str | None
    """When it ended."""
    train: list[dict[str, Any]]
    """The curve on the train rows: one entry a step that was logged."""
    dev: list[dict[str, Any]]
    """The curve on the dev rows."""
    best: int | None
    """The step whose adapter is the version."""


@with_config(use_attribute_docstrings=True)
class ReportExport(TypedDict):
    """The newest export in one format and precision."""

    name: str
    """Format and precision."""
    format: str
    """As `export --format` takes it."""
    quant: str | None
    """Precision."""
    megabytes: float
    """Of all files."""
    mean_kl: float | None
    """Mean distance from the trained model, in nats a token."""
    top1: float | None
    """Share of tokens whose likeliest token is the same."""
    tokens_per_second: float | None
    """How fast it answers here."""
    notes: Any
    """Remarks of the comparison."""
    task: dict[str, Any] | None
    """Score on the gate's cases, beside that of the trained model."""
    verdict: str
    """`ok`, `taken by NAME`, or `not kept`."""
    failures: Any
    """Limits that it exceeds."""


@with_config(use_attribute_docstrings=True)
class VersionReport(TypedDict):
    """The model change report of a version. Parts that do not exist yet are null."""

    agent: str
    """Whose version it is."""
    version: str
    """v3."""
    state: str
    """`candidate`, `approved`, `rejected` or `retired`."""
    basis: str | None
    """What an approval rests on: `gold`, `feedback` or `traffic`."""
    tainted: bool
    """Whether it learned from what was erased."""
    written: str
    """When the report was made."""
    thumbwheel: str
    """The release that made it."""
    summary: ReportSummary | None
    """The decision in figures."""
    data: ReportData | None
    """The dataset."""
    training: ReportTraining | None
    """The run."""
    evaluation: Mapping[str, Any] | None
    """The evaluation on which the gate decided, as `evaluate` answers it."""
    guards: list[dict[str, Any]]
    """The guards as the gate saw them: name, figures, label and verdict of each."""
    weights: str | None
    """Whether the weights beat the same feedback as a prompt."""
    opinions: str
    """Other statistical tests of the same figures."""
    decision: Mapping[str, Any] | None
    """The stored decision, with its policy, inputs and signature."""
    served: list[dict[str, Any]]
    """The newest evaluation of each form in which the version was served."""
    exports: list[ReportExport]
    """The newest export in each format and precision, largest first."""
    lineage: dict[str, Any]
    """As `models lineage` answers it."""
    tree: list[list[Any]]
    """The lineage as lines: depth and text of each."""
    environment: dict[str, Any] | None
    """Programs and hardware of the run."""
    reproduce: list[str]
    """Commands that repeat this on the same home."""
