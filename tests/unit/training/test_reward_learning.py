"""The reward model of the demo world is right about what nobody rated: over 85 % of noise-free
pairs, three persons."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.seeds import REPEATED_SEEDS
from tests.worlds.judged_world import judge, true_pairs
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.reward_model import RewardInput, RewardModel
from thumbwheel.models import reward_models
from thumbwheel.training.reward_model_record import of_answers


@pytest.mark.slow
@pytest.mark.parametrize("seed", REPEATED_SEEDS)
def test_it_knows_better_from_worse(seed: int, tmp_path: Path) -> None:
    with Workspace.open(Home(tmp_path / "home"), Sources({}, "", {})) as ws:
        record, base = judge(ws, seed, tmp_path / "world")
        model = RewardModel.load(reward_models.folder(ws, record), device="cpu")
    prompts, right, wrong = true_pairs(seed, base, 450)
    better, worse = (model.score(list(map(RewardInput, prompts, side))) for side in (right, wrong))
    figures = of_answers(
        [a > b for a, b in zip(better, worse, strict=True)],
        len(prompts),
        [str(number) for number in range(len(prompts))],
    )
    print({key: round(value, 3) for key, value in figures.items()}, record.metrics["held_out"])
    assert figures["n"] >= 400
    assert figures["accuracy"] > 0.85
    assert record.metrics["held_out"]["accuracy"] > 0.6  # of labels, a tenth of which is wrong
