"""The job `train policy`: a reward model from the scores, then PPO against it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

from thumbwheel.compat.n3.policies import policy_version
from thumbwheel.compat.n3.training import TrainingConfig
from thumbwheel.compat.n3.version_tree import results_of
from thumbwheel.core.config import Config
from thumbwheel.core.errors import TrainingError
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.base_check import find_base
from thumbwheel.jobs import current
from thumbwheel.jobs.types import HEAVY, Kind
from thumbwheel.loop.jobs import TrainSpec, trained
from thumbwheel.models import reward_models
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import require_agent, version
from thumbwheel.training.train import dry_run
from thumbwheel.training.types import RunResult, RunState

REWARD_RUN, POLICY_RUN = "reward_run", "policy_run"
"""The notes which runs the job began: an attempt after the first goes on with them."""
STAND_IN = "length"
"""Judges the answers of a dry run where there is no reward model yet: only time is measured."""


class TrainPolicySpec(Config):
    """Which policy to train."""

    agent: str
    """Whose model learns."""
    base: str
    """Base model: a folder or a Hugging Face id."""
    max_steps: int = Field(default=1000, ge=1)
    """Updates of the policy."""
    learning_rate: float | None = Field(default=None, gt=0)
    """Of the policy; unset, the one for the base's width."""
    dry_run: bool = False
    """Only measure how long it would take."""

    def config(self) -> TrainingConfig:
        """The settings of both stages."""
        return TrainingConfig(self.base, max_steps=self.max_steps, learning_rate=self.learning_rate)


def run_train_policy(ws: Workspace, spec: TrainPolicySpec) -> dict[str, Any]:
    """Train both stages; the second one does not begin where the first one gave no reward model.
    The policy is a candidate like any other: nothing is evaluated or deployed."""
    learner = require_agent(ws, spec.agent)
    config = spec.config()
    if spec.dry_run:
        return {"minutes": _minutes(ws, learner, spec, config)}

    reward_options = config.reward_model().options()
    judge = _run(ws, learner, spec, "reward", reward_options, REWARD_RUN)
    if judge.reward_model is None:
        raise _failure(judge, "no reward model, so no policy is trained")

    options = config.options(Path(judge.reward_model))
    run = _run(ws, learner, spec, "ppo", options, POLICY_RUN)
    if run.version is None:
        raise _failure(run, "no policy")
    candidate = version(ws, spec.agent, run.version)
    policy = policy_version(ws, candidate)
    record = reward_models.find(ws, spec.agent, judge.reward_model)
    return {
        "policy": policy.to_dict(),
        "training_steps": results_of(ws, candidate)["training_steps"],
        "model_path": str(ws.home.runs / run.run_id / "adapter"),
        "reward_model": record.name,
        "reward_model_path": str(reward_models.folder(ws, record)),
    }


def _run(
    ws: Workspace,
    learner: Agent,
    spec: TrainPolicySpec,
    method: str,
    options: dict[str, Any],
    note: str,
) -> RunResult:
    training = TrainSpec(method=method, agent=spec.agent, base=spec.base)
    result = trained(ws, learner, training, options, note)
    if result.state is RunState.STOPPED:
        if current.is_job():
            raise KeyboardInterrupt  # the training took the interrupt for itself
        raise _failure(result, "nothing: it was stopped")
    return result


def _failure(run: RunResult, result: str) -> TrainingError:
    reason = run.reason or "its log in the home says how it ended"
    return TrainingError(f"run {run.run_id!r}", f"it gave {result} ({reason})", "See its log")


def _minutes(ws: Workspace, learner: Agent, spec: TrainPolicySpec, config: TrainingConfig) -> float:
    """How long both stages take on this machine, by a trial of their first steps."""
    base = find_base(spec.base, ws.home.cache)
    judge = dry_run(ws, learner, "reward", base, options=config.reward_model().options())
    options = config.options(Path("latest"))
    if not reward_models.reward_models(ws, spec.agent):
        del options["reward_model"]
        options["reward_functions"] = (STAND_IN,)
    policy = dry_run(ws, learner, "ppo", base, options=options)
    return judge.minutes + policy.minutes


TRAIN_POLICY = Kind(TrainPolicySpec, run_train_policy, (HEAVY,))
