"""GRPO teaches what can be checked: a base that writes one string in four backwards gets four in
five right, on prompts it never met."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.reversal import reversal_base, reversal_rows, strings, success
from tests.seeds import LEARNING_SEEDS
from tests.training_rows import by_split, loop_of
from thumbwheel.training.algorithms import ALGORITHMS
from thumbwheel.training.assemble import assemble, settings
from thumbwheel.training.base_defaults import with_base_defaults

HELD_OUT = 400
RUN: dict[str, Any] = {
    "batch_size": 16,
    "temperature": 0.7,
    "max_completion_length": 6,
    "max_length": 32,
    "max_steps": 320,
    "eval_steps": 160,
    "reward_workers": 1,
}


@pytest.fixture(scope="module")
def half_taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reversal_base(tmp_path_factory.mktemp("reversal"))


def rates(base: Path, folder: Path, **changes: Any) -> tuple[float, float]:
    """Greedy success on the same held-out prompts of the base and of the trained adapter, by the
    product's own loop."""
    rows = reversal_rows(512, 32)
    asked = {row["prompt"][0]["content"] for row in rows}
    held_out = list(islice((text for text in strings(99) if text not in asked), HELD_OUT))
    config = with_base_defaults(settings("grpo", RUN | changes), ALGORITHMS.get("grpo"), base)
    assembly = assemble("grpo", config, str(base), base, by_split(rows), folder / "reference.db")
    before = success(assembly.model, assembly.builder.tokenizer, held_out)
    loop_of(assembly, folder).run()
    assembly.runner.close()
    return before, success(assembly.model, assembly.builder.tokenizer, held_out)


@pytest.mark.slow
@pytest.mark.parametrize("seed", LEARNING_SEEDS)
def test_it_learns_the_task(half_taught: Path, tmp_path: Path, seed: int) -> None:
    before, after = rates(half_taught, tmp_path, seed=seed)
    print(f"seed {seed}: {before:.1%} -> {after:.1%} of {HELD_OUT}")
    assert 0.1 <= before <= 0.3 and after > 0.8


@pytest.mark.repeat
def test_a_reward_of_chance_teaches_nothing(half_taught: Path, tmp_path: Path) -> None:
    before, after = rates(half_taught, tmp_path, reward_functions=("reward_functions:chance",))
    print(f"random reward: {before:.1%} -> {after:.1%} of {HELD_OUT}")
    assert after < before + 0.05
