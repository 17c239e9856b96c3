"""`train grpo` as a user runs it: a child process, judged by a checker and by a function of the
user's, interrupted, resumed."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.models.tiny_models import tiny_base
from tests.training_rows import frozen
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.base_check import find_base
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import adapter_folder, version
from thumbwheel.training.rundir import RunDir
from thumbwheel.training.train import find_run, require_same, resume, run_dir, runs, train
from thumbwheel.training.types import RunState

OPTIONS: dict[str, Any] = {
    "batch_size": 4,
    "num_generations": 4,
    "max_completion_length": 8,
    "max_steps": 8,
    "learning_rate": 1e-3,
    "lora_r": 4,
    "max_length": 128,
    "eval_steps": 2,
    "early_stopping_patience": 50,
    "reward_functions": ("checker=2", "reward_functions:chance"),
    "held_out": ("reward_functions:length",),
    "curriculum": True,
    "num_iterations": 2,
    "beta": 0.05,
    "reward_workers": 1,
}


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))


def curve(run: RunDir) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in line.items() if key != "step_seconds"}
        for line in run.read_metrics()
    ]


@pytest.mark.repeat
def test_interrupted_and_resumed_is_the_same_curve(tmp_path: Path) -> None:
    base = tiny_base(tmp_path / "base")
    with Workspace.open(Home.at(tmp_path / "home").prepare(), Sources({}, "", {})) as ws:
        dataset = frozen(ws, "a", "prompts", 24, 5)
        whole = train(
            ws,
            Agent.named("a"),
            "grpo",
            find_base(str(base), ws.home.cache),
            dataset=dataset,
            options=OPTIONS,
        )
        first = train(
            ws,
            Agent.named("a"),
            "grpo",
            find_base(str(base), ws.home.cache),
            dataset=dataset,
            options=OPTIONS | {"callbacks": ("training_callbacks:Interrupt",)},
        )
        assert (first.state, first.metrics["steps"]) == (RunState.STOPPED, 3)
        stopped = find_run(ws, first.run_id)
        require_same(stopped, "grpo", options={"held_out": OPTIONS["held_out"]})
        last = resume(ws, stopped)
        assert (whole.state, last.state) == (RunState.FINISHED, RunState.FINISHED)
        smooth, parts = (curve(run_dir(ws, run)) for run in runs(ws, Agent.named("a")))
        assert parts == smooth
        assert {
            "reward",
            "kl",
            "entropy",
            "frac_reward_zero_std",
            "rewards/checker/mean",
            "completions/mean_length",
        } <= set(smooth[1])
        assert {"eval_reward", "eval_held_out/reward_functions:length", "eval_eos_rate"} <= set(
            smooth[0]
        )
        assert adapter_folder(ws, version(ws, "a", str(last.version))) is not None
