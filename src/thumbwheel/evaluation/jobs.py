"""The jobs `evaluate` and `replay run`."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from thumbwheel.core import log
from thumbwheel.core.config import Config
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation.declaration import policy_of
from thumbwheel.evaluation.evaluate import evaluate
from thumbwheel.evaluation.gate import gate, why_refused, why_waiting
from thumbwheel.evaluation.replay_types import ReplaySpec, TraceReplay
from thumbwheel.evaluation.responders import base_of
from thumbwheel.evaluation.result import EvaluationResult
from thumbwheel.evaluation.trace_replay import replay_traces
from thumbwheel.evaluation.types import EvaluationConfig
from thumbwheel.models import versions
from thumbwheel.models.types import Agent


class EvaluateSpec(Config):
    """What to compare with what."""

    version: str
    """The version to judge: v3, an alias, or latest."""
    agent: str
    """The agent that the version belongs to."""
    compare_base: bool = False
    """Compare with the base, even where another is live."""
    against: str | None = None
    """Compare with this version."""
    form: str | None = Field(default=None, alias="as")
    """How the version is served: hf:FOLDER, gguf:FILE, URL#MODEL; unset, as trained."""
    against_form: str | None = Field(default=None, alias="against_as")
    """How the other one is served."""
    gate: bool = True
    """Decide on the version and store the decision."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Settings of the evaluation, by their names."""

    @model_validator(mode="after")
    def _compares_with_one(self) -> EvaluateSpec:
        if self.compare_base and self.against is not None:
            raise ValueError("only one version can be compared with: compare_base or against")
        return self


def run_evaluate(ws: Workspace, spec: EvaluateSpec) -> EvaluationResult:
    """Compare the versions and let the gate decide. Stored answers are not asked for again, and a
    stored comparison or decision is not made twice."""
    config = ws.settings(EvaluationConfig, "evaluation", spec.options)
    candidate = versions.version(ws, spec.agent, spec.version)
    incumbent = None
    if spec.against is not None:
        incumbent = versions.version(ws, spec.agent, spec.against)
    elif spec.compare_base:
        incumbent = base_of(ws, candidate)
    evaluation = evaluate(
        ws,
        candidate,
        config,
        against=incumbent,
        form=spec.form,
        against_form=spec.against_form,
    )
    policy = policy_of(ws, Agent.named(candidate.agent))
    why_not = why_refused(evaluation, policy) or why_waiting(evaluation, policy)
    decision = None
    if spec.gate and why_not:
        log.say(f"the gate does not decide: {why_not}")
    elif spec.gate:
        decision = gate(ws, evaluation)
    return EvaluationResult.of(evaluation, decision)


def run_replay(ws: Workspace, spec: ReplaySpec) -> TraceReplay:
    """Let the version answer the recorded traces."""
    return replay_traces(ws, spec)
