"""Types of one turn of the wheel: its settings, a candidate, and the report of the turn."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import field_validator

from thumbwheel.core.config import Config
from thumbwheel.deploy.types import Deployment
from thumbwheel.evaluation.policy import Verdict
from thumbwheel.evaluation.types import Evaluation
from thumbwheel.export.types import Export


class CycleConfig(Config):
    """Settings of one turn."""

    base: str | None = None
    """Base model: a folder or a Hugging Face id. Unset, that of the live version, else of the
    newest one."""
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
    report_to: Path | None = None
    """HTML file of the report; the same as JSON lies beside it. Unset, one in the folder `reports`
    of the home."""

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


@dataclass(frozen=True)
class Candidate:
    """The result of training by one method: a version, or the reason why there is none."""

    method: str
    version: str | None
    run_id: str | None
    reason: str | None = None


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
    verdict: Verdict | None = None
    exports: list[Export] = field(default_factory=list)
    deployment: Deployment | None = None
    report: Path | None = None
    reasons: list[str] = field(default_factory=list)

    @property
    def method(self) -> str | None:
        """The method of the chosen candidate."""
        methods = {candidate.version: candidate.method for candidate in self.candidates}
        return methods.get(self.version) if self.version else None

    @property
    def approved(self) -> bool:
        """Whether the gate approved it, fully or for a canary."""
        return self.verdict in (Verdict.APPROVED, Verdict.CANARY)

    def to_json(self) -> dict[str, Any]:
        """As one JSON value; the evaluation by its id and primary measure."""
        values = asdict(self)
        values["method"] = self.method
        if self.evaluation is not None:
            primary = self.evaluation.primary.model_dump(mode="json")
            values["evaluation"] = {
                "id": self.evaluation.id,
                "against": self.evaluation.against,
                "primary": primary,
            }
        return values
