"""The same comparisons with TRL over a model that is larger than tiny: eight heads, six layers of
256, several micro-batches a step. `make test-repeat` runs them: what they prove is proved on the
tiny model by every CI."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import test_grpo_parity
import test_parity_trl

from tests.models.tiny_models import tiny_base

pytestmark = [pytest.mark.slow, pytest.mark.repeat]
GRPO: dict[str, Any] = {"loss_type": "dapo", "beta": 0.04, "num_iterations": 2}
CASES: dict[str, Callable[[Path, Path], None]] = {
    "dpo": lambda base, folder: test_parity_trl.test_dpo(base, folder, {}, {}),
    "kto": test_parity_trl.test_kto,
    "sft": test_parity_trl.test_sft,
    "reward": lambda base, folder: test_parity_trl.test_reward(base, folder, 0.0, None),
    "grpo": lambda base, folder: test_grpo_parity.test_grpo(base, folder, GRPO),
}


@pytest.fixture(scope="module")
def larger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = {
        "hidden_size": 256,
        "intermediate_size": 704,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "head_dim": 32,
    }
    return tiny_base(tmp_path_factory.mktemp("larger"), initializer_range=0.04, **shape)


@pytest.mark.parametrize("method", CASES)
def test_twenty_updates(
    larger: Path, tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a rate of this size: a higher one makes much of rounding, step by step, on both sides."""
    for settings in (test_parity_trl.SHARED, test_parity_trl.REWARD, test_grpo_parity.SHARED):
        monkeypatch.setitem(settings, "learning_rate", 2e-4)
    CASES[method](larger, tmp_path)
