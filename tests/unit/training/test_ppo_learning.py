"""PPO teaches what can be checked: a base that writes one string in four backwards gets four in
five right, on prompts it never met."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.reversal import reversal_base, reversal_rows, strings, success
from tests.seeds import REPEATED_SEEDS
from tests.training_rows import by_split, loop_of
from thumbwheel.training.algorithms import ALGORITHMS
from thumbwheel.training.assemble import assemble, settings
from thumbwheel.training.base_defaults import with_base_defaults

HELD_OUT = 400
RUN: dict[str, Any] = {
    "batch_size": 32,
    "critic": "shared",
    "init_kl_coef": 0.05,
    "kl_target_per_token": None,
    "temperature": 0.7,
    "max_completion_length": 6,
    "max_length": 32,
    "max_steps": 110,
    "eval_steps": 110,
    "reward_workers": 1,
}


@pytest.fixture(scope="module")
def half_taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reversal_base(tmp_path_factory.mktemp("reversal"), low=0.25, high=0.35)


@pytest.mark.slow
@pytest.mark.parametrize("seed", REPEATED_SEEDS)
def test_it_learns_the_task(half_taught: Path, tmp_path: Path, seed: int) -> None:
    """By the product's own loop; greedy answers of the base and of the trained adapter to the same
    held-out prompts."""
    rows = reversal_rows(1000, 32)
    asked = {row["prompt"][0]["content"] for row in rows}
    held_out = list(islice((text for text in strings(99) if text not in asked), HELD_OUT))
    config = with_base_defaults(
        settings("ppo", RUN | {"seed": seed}), ALGORITHMS.get("ppo"), half_taught
    )
    assembly = assemble(
        "ppo", config, str(half_taught), half_taught, by_split(rows), tmp_path / "reference.db"
    )
    before = success(assembly.model, assembly.builder.tokenizer, held_out)
    loop_of(assembly, tmp_path).run()
    assembly.runner.close()
    after = success(assembly.model, assembly.builder.tokenizer, held_out)
    print(f"seed {seed}: {before:.1%} -> {after:.1%} of {HELD_OUT}")
    assert 0.1 <= before <= 0.3 and after > 0.8
