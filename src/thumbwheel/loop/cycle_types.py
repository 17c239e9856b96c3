"""Types of one turn of the wheel: its settings, a candidate, and the report of the turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from thumbwheel.core.config import Config
from thumbwheel.deploy.types import Deployment
from thumbwheel.evaluation.policy import GateVerdict
from thumbwheel.evaluation.types import ChangedAnswer, Evaluation, Measure
from thumbwheel.export.types import Export
from thumbwheel.loop.trigger_types import Check
from thumbwheel.training.types import DryRun, RunResult

Consent = Literal["off", "ask", "on"]
"""Whether a turn takes a step by itself."""


class CycleConfig(Config):
    """Settings of one cycle."""

    base: str | None = None
    """Base model: a folder, a GGUF file, ollama:NAME, or a Hugging Face id. Unset, that of the live
    version, else of the newest one."""
    methods: tuple[str, ...] = ()
    """Methods to train and compare. Unset, all that the data plan allows."""
    export: tuple[str, ...] = ()
    """Formats to write of an approved version: adapter, merged, gguf, onnx."""
    quant: str | None = None
    """Precision of a GGUF file, as q4_k_m. Unset, what this machine's memory holds."""
    export_to: Path | None = None
    """Folder for the exports. Unset, the current one."""
    deploy: str | None = None
    """Target on which an approved version answers: embedded, llamacpp, ollama, vllm. Unset, it is
    not deployed."""
    auto_export: Consent = "on"
    """Whether an approved version is exported: off, ask (a person first) or on."""
    auto_deploy: Consent = "on"
    """Whether it is deployed on the target that `deploy` names: off, ask or on."""
    auto_promote: Consent | None = None
    """Whether one that the gate approved on gold cases, or that won its experiment, becomes live by
    itself: off and ask leave it a canary, and ask lets a person promote it. Unset: on, and ask for
    the agent's first version that only an experiment speaks for."""
    experiment: str | None = None
    """Metric by which live traffic decides between what is live and a canary: thumb, rating, score
    or outcome:NAME. The winner goes live as auto_promote says. Unset, no experiment begins."""
    experiment_days: float | None = Field(default=28.0, gt=0)
    """Days after which an experiment of the loop that decided nothing ends, so that the next
    version has its turn; unset (null), the section `experiment` says when."""
    canary_prompts: tuple[str, ...] = ()
    """Prompts whose answers are to stay as they are. If a new version answers one of them
    differently from the live one, a person must approve it before it gets traffic."""
    canary_change: float = Field(default=0.5, gt=0, le=1)
    """The share of the words of such an answer that may differ."""
    yield_to_traffic: bool = False
    """A training stops at a checkpoint while people are served by this home, and goes on once
    nobody was for a minute."""
    report_to: Path | None = None
    """HTML file of the report; the same as JSON lies beside it. Unset, one in the folder `reports`
    of the home."""

    @property
    def promotes_on_gold(self) -> Consent:
        """Whether a version that the gate approved on gold cases becomes live by itself."""
        return self.auto_promote or "on"

    @property
    def training_settings(self) -> dict[str, Any]:
        """The settings that decide what is trained."""
        return {"base": self.base, "methods": list(self.methods)}

    @field_validator("report_to")
    @classmethod
    def _is_no_json(cls, value: Path | None) -> Path | None:
        if value is not None and value.suffix == ".json":
            raise ValueError(
                "the report is an HTML file, and its JSON lies beside it under the same name"
            )
        return value


class ReleaseConfig(Config):
    """What is done with a candidate that was just trained."""

    export: bool = False
    """Afterwards: evaluate it, and write it as GGUF if the gate approves."""
    quant: str | None = None
    """Precision of that GGUF, as q4_k_m; unset, what this machine's memory holds."""
    register_ollama: bool = False
    """With --export: also deploy it in Ollama."""
    model_name: str | None = None
    """With --register-ollama: its name there; unset, the agent's and the version's."""

    @model_validator(mode="after")
    def _whole(self) -> ReleaseConfig:
        if not self.export and (self.quant or self.register_ollama):
            raise ValueError(
                "quant and register_ollama are about what is exported: give --export as well"
            )
        if self.model_name and not self.register_ollama:
            raise ValueError("model_name is a name in Ollama: give --register-ollama as well")
        return self


EXAMPLES = 3
"""Changed answers in the result of a turn."""


@dataclass(frozen=True)
class Candidate:
    """The result of training by one method: a version, or the reason why there is none."""

    method: str
    """Method that was trained by."""
    version: str | None
    """Version that came out (v3); null where none did."""
    run_id: str | None
    """Id of the training run; null where none began."""
    reason: str | None = None
    """Why there is no version; null where there is one."""


@dataclass
class CycleReport:
    """What a turn did. What was not done is None or empty, and `reasons` says why, in order."""

    agent: str
    plan: list[str] = field(default_factory=list)
    """What the feedback permits, in words."""
    base: str | None = None
    candidates: list[Candidate] = field(default_factory=list)
    version: str | None = None
    """The candidate that was chosen."""
    evaluation: Evaluation | None = None
    verdict: GateVerdict | None = None
    exports: list[Export] = field(default_factory=list)
    deployment: Deployment | None = None
    alias: str | None = None
    """The alias that was moved to the deployment."""
    experiment: str | None = None
    """The experiment that decides between it and what is live."""
    waiting: list[str] = field(default_factory=list)
    """Questions of steps that wait for a person (`thumbwheel loop decisions`)."""
    report: Path | None = None
    reasons: list[str] = field(default_factory=list)
    changed_answers: list[str] = field(default_factory=list)
    """Canary prompts that it answers otherwise than what is live, with both answers."""

    @property
    def method(self) -> str | None:
        """The method of the chosen candidate."""
        methods = {candidate.version: candidate.method for candidate in self.candidates}
        return methods.get(self.version) if self.version else None

    @property
    def approved(self) -> bool:
        """Whether the gate approved it, fully or for a canary."""
        return self.verdict in (GateVerdict.APPROVED, GateVerdict.CANARY)

    def result(self) -> TurnResult:
        """Return the report in the form for JSON output."""
        compared = None
        if self.evaluation is not None:
            evaluation = self.evaluation
            changed = evaluation.examples[:EXAMPLES]
            compared = TurnEvaluation(
                evaluation.id, evaluation.against, evaluation.primary, changed
            )
        values = {**vars(self), "evaluation": compared}
        return TurnResult(**values, method=self.method)


@dataclass(frozen=True)
class TurnEvaluation:
    """The evaluation of a turn: its id, the measure that decides, and examples."""

    id: str
    """Id of the evaluation."""
    against: str
    """Version that the candidate was compared with."""
    primary: Measure
    """The measure that decides."""
    examples: Sequence[ChangedAnswer] = ()
    """Some of the answers that changed most."""


@dataclass(frozen=True)
class TurnResult:
    """What a turn did, as `CycleReport` says."""

    agent: str
    """Agent whose model learns."""
    plan: list[str]
    """The data plan in sentences."""
    base: str | None
    """Base that was trained on; null if it ended before."""
    candidates: list[Candidate]
    """Results of all methods that were trained."""
    version: str | None
    """Version that was chosen (v3); null where there is none."""
    evaluation: TurnEvaluation | None
    """How it did against what runs today; null if it was not evaluated."""
    verdict: GateVerdict | None
    """What the gate decided; null if it did not."""
    exports: list[Export]
    """Exports that were written."""
    deployment: Deployment | None
    """Deployment that was made; null without one."""
    alias: str | None
    """Alias that was moved to the deployment: live or canary; null without one."""
    experiment: str | None
    """Experiment that was started; null without one."""
    waiting: list[str]
    """Steps that wait for a person."""
    report: Path | None
    """File of the report; null if none was written."""
    reasons: list[str]
    """What was decided and why, in order."""
    changed_answers: list[str]
    """Questions that it answers differently from what runs today."""
    method: str | None
    """The method of the chosen candidate."""

    @property
    def approved(self) -> bool:
        """Whether the gate approved it, fully or for a canary."""
        return self.verdict in (GateVerdict.APPROVED, GateVerdict.CANARY)


@dataclass(frozen=True)
class TrainResult(RunResult):
    """How a training ended, and what was done with its candidate."""

    release: TurnResult | None = None
    """None where the candidate was only kept."""


@dataclass(frozen=True)
class BestCandidate:
    """The candidates of all methods, and the one that is best on the dev rows."""

    agent: str
    """Agent whose model learns."""
    version: str | None
    """Version that is best (v3); null where none is better than the base."""
    method: str | None
    """Method that trained it."""
    candidates: list[Candidate]
    """Results of all methods."""
    reasons: list[str]
    """How the best one was chosen."""


@dataclass(frozen=True)
class CheckResult:
    """A look at whether a turn is due, and the turn where it was."""

    check: Check
    """What the rules said."""
    turn: TurnResult | None = None
    """The cycle that followed; null where none was due."""
    job: str | None = None
    """The job that makes the turn."""


class CyclePlan(Config):
    """What a turn would do; nothing is trained or stored."""

    model_config = ConfigDict(serialize_by_alias=True)

    plan: list[str]
    """What the feedback permits, in words."""
    trainings: dict[str, DryRun]
    """Method -> what its training would take."""
    if_approved: list[str] = Field(serialization_alias="if approved")
    """What would be done with a version that the gate approves, in words."""
