"""The job `train policy`: a reward model from the scores, then PPO against it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from pydantic import Field

from thumbwheel.compat.n3.config import DatasetConfig, TrainingConfig
from thumbwheel.compat.n3.datasets import FeedbackExample
from thumbwheel.compat.n3.duration import expected_minutes, learning_rate, seconds_a_token
from thumbwheel.compat.n3.policies import policy_version
from thumbwheel.compat.n3.readiness import split_rules
from thumbwheel.compat.n3.version_tree import REWARD_MODEL, export, results_of
from thumbwheel.compat.training_rows import everything_trains
from thumbwheel.core.config import Config
from thumbwheel.core.errors import TrainingError
from thumbwheel.datasets.build import build, load_rows
from thumbwheel.datasets.types import Dataset
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.base_check import find_base
from thumbwheel.engine.load import load_config
from thumbwheel.export.package import exports
from thumbwheel.jobs import current
from thumbwheel.jobs.types import HEAVY, JobKind
from thumbwheel.loop.jobs import TrainSpec, trained
from thumbwheel.models import reward_models
from thumbwheel.models.base import locate
from thumbwheel.models.types import Agent, ModelVersion
from thumbwheel.models.versions import require_agent, version
from thumbwheel.training.train import runs
from thumbwheel.training.types import RunResult, RunState, TrainConfig

REWARD_RUN, POLICY_RUN = "reward_run", "policy_run"
"""The notes which runs the job began: an attempt after the first goes on with them."""


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
    """Only say how long it would take."""

    def config(self, context: int | None = None) -> TrainingConfig:
        """Return the settings of both stages, for a base that reads `context` tokens. What no
        client can name is as we recommend it."""
        longest = min(TrainConfig().max_length, context or sys.maxsize)
        answer = TrainingConfig().max_new_tokens
        return TrainingConfig(
            self.base,
            dataset=DatasetConfig(max_length=longest, max_prompt_length=longest - answer),
            max_steps=self.max_steps,
            learning_rate=self.learning_rate,
            lora_dropout=0.0,
            top_k=0,
            top_p=1.0,
        )


def run_train_policy(ws: Workspace, spec: TrainPolicySpec) -> dict[str, Any]:
    """Train both stages; the second one does not begin where the first one gave no reward model.
    The policy is a candidate like any other: nothing is evaluated or deployed."""
    learner = require_agent(ws, spec.agent)
    if spec.dry_run:
        return _estimate(ws, learner, spec.config())
    config = spec.config(_context(spec.base))

    scored = _dataset(ws, spec.agent, "scored")
    reward_options = config.reward_model().options(scored.counts["train"])
    judge = _run(ws, learner, spec, "reward", scored, reward_options, REWARD_RUN)
    if judge.reward_model is None:
        raise _failure(judge, "no reward model, so no policy is trained")

    prompts = _dataset(ws, spec.agent, "prompts")
    options = config.options(Path(judge.reward_model))
    run = _run(ws, learner, spec, "ppo", prompts, options, POLICY_RUN)
    if run.version is None:
        raise _failure(run, "no policy")
    candidate = version(ws, spec.agent, run.version)
    policy_folder = _exported(ws, candidate)
    policy = policy_version(ws, candidate)
    record = reward_models.find(ws, spec.agent, judge.reward_model)
    return {
        "policy": policy.to_dict(),
        "training_steps": results_of(ws, candidate)["training_steps"],
        "model_path": str(policy_folder),
        "reward_model": record.name,
        "reward_model_path": str(policy_folder.with_name(REWARD_MODEL)),
    }


def _context(base: str) -> int | None:
    """Return how many tokens a base reads; None if its configuration names none."""
    _, folder = locate(base)
    config = load_config(folder).get_text_config()
    return getattr(config, "max_position_embeddings", None)


def _dataset(ws: Workspace, agent: str, shape: str) -> Dataset:
    """Build a dataset of which rows are held out where there are enough of them."""
    rows = build(ws, agent, shape, everything_trains(ws)).counts["train"]
    return build(ws, agent, shape, split_rules(ws, rows))


def _exported(ws: Workspace, candidate: ModelVersion) -> Path:
    """Write the version to their tree, `models/AGENT/VERSION/policy` below the home's exports (or
    below MODELS_DIR); what an earlier attempt wrote stays."""
    root = Path(os.environ.get("MODELS_DIR") or ws.home.path / "exports" / "models")
    folder = (root / candidate.agent / candidate.name / "policy").expanduser().resolve()
    for earlier in exports(ws, candidate):
        if earlier.path == folder and folder.is_dir():
            return folder
    return export(ws, candidate, "merged", root).path


def _run(
    ws: Workspace,
    learner: Agent,
    spec: TrainPolicySpec,
    method: str,
    dataset: Dataset,
    options: dict[str, Any],
    note: str,
) -> RunResult:
    training = TrainSpec(method=method, agent=spec.agent, base=spec.base, dataset=dataset.id)
    result = trained(ws, learner, training, options, note)
    if result.state is RunState.STOPPED:
        if current.is_job():
            raise KeyboardInterrupt  # the training took the interrupt for itself
        raise _failure(result, "nothing: it was stopped")
    return result


def _failure(run: RunResult, result: str) -> TrainingError:
    reason = run.reason or "its log in the home says how it ended"
    return TrainingError(f"run {run.run_id!r}", f"it gave {result} ({reason})", "See its log")


def _estimate(ws: Workspace, learner: Agent, config: TrainingConfig) -> dict[str, Any]:
    """Estimate the minutes that both stages take on this machine; return them with the learning
    rate of the policy."""
    base = find_base(config.base_model, ws.home.cache)
    dataset = build(ws, learner.slug, "scored", everything_trains(ws))
    rows = [
        FeedbackExample(str(row.prompt[-1].get("content") or ""), row.completion, row.value)
        for row in load_rows(ws, dataset.id, "train")
    ]
    past = [run for run in runs(ws, learner) if run.base_fingerprint == base.fingerprint]
    minutes = expected_minutes(config, rows, ws.home.cache, seconds_a_token(past))
    return {"minutes": minutes, "learning_rate": learning_rate(config)}


TRAIN_POLICY = JobKind(TrainPolicySpec, run_train_policy, (HEAVY,))
