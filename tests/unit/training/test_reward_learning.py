"""The reward model of the demo world is right about what nobody rated, and what PPO learns from it is what the person wants."""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from judged_world import AGENT, judge, right, true_pairs
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.reward_model import RewardModel
from thumbwheel.models import reward_models
from thumbwheel.models.versions import adapter_folder, version
from thumbwheel.stats.paired import compare
from thumbwheel.training.judging import of_answers
from thumbwheel.training.train import find_run, run_dir, train

KL_BUDGET = 0.15
"""Nats a token between policy and base."""
PPO: dict[str, Any] = {
    "learning_rate": 1e-3, "init_kl_coef": 0.45, "kl_horizon": 1e9, "kl_budget": KL_BUDGET, "max_completion_length": 16,
    "max_length": 256, "max_steps": 110, "eval_steps": 22, "early_stopping_patience": None, "token_budget": 4096,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_knows_better_from_worse_and_ppo_learns_that_from_it(seed: int, tmp_path: Path) -> None:
    """Over 85 % of noise-free pairs, then over ten more points of fresh mails filed as the person wants, the KL in its budget."""
    with Workspace.open(Home(tmp_path / "home"), Sources({}, "", {})) as ws:
        record, base = judge(ws, seed, tmp_path / "world")
        model = RewardModel.load(reward_models.folder(ws, record), device="cpu")
        prompts, good, wrong = true_pairs(seed, base, 450)
        better, worse = model.score(prompts, good), model.score(prompts, wrong)
        found = of_answers([a > b for a, b in zip(better, worse, strict=True)], len(prompts))
        print({key: round(value, 3) for key, value in found.items()}, record.metrics["held_out"])
        assert found["n"] >= 400
        assert found["accuracy"] > 0.85
        assert record.metrics["held_out"]["accuracy"] > 0.6  # of labels, a tenth of which is wrong

        result = train(ws, AGENT, "ppo", str(base), options=PPO | {"reward_model": record.name, "seed": seed})
        adapter = adapter_folder(ws, version(ws, AGENT, str(result.version)))
        gain = compare(right(seed, base, None, 400), right(seed, base, adapter, 400))
        steps = [line["kl"] for line in run_dir(ws, find_run(ws, result.run_id)).read_metrics() if "kl" in line]
        print(f"seed {seed}: {gain.before:.1%} -> {gain.after:.1%}, {gain.interval}, KL {mean(steps[-20:]):.3f} nats a token")
        assert gain.gain > 0.1 and gain.interval.low > 0
        assert mean(steps[-20:]) < KL_BUDGET
