"""The schedule: it rises from above zero, and it is the same after a resume."""

from __future__ import annotations

import pytest

from thumbwheel.training.algorithms.sft import SftConfig
from thumbwheel.training.optimizer import prepare


@pytest.mark.parametrize("kind", ["cosine", "linear", "constant"])
@pytest.mark.parametrize("warmup", [0.0, 0.2])
def test_no_step_is_taken_at_rate_zero(kind: str, warmup: float) -> None:
    import torch

    config = SftConfig(learning_rate=1.0, lr_scheduler_type=kind, warmup_ratio=warmup)  # type: ignore[arg-type]
    trained = prepare(torch.nn.Linear(2, 2), config, 10)
    rates = []
    for _ in range(10):
        rates.append(trained.scheduler.get_last_lr()[0])
        trained.optimizer.step()
        trained.scheduler.step()
    assert min(rates) > 0
    assert max(rates) == rates[1 if warmup else 0] == 1.0
    assert rates[2:] == sorted(rates[2:], reverse=True)

    again = prepare(torch.nn.Linear(2, 2), config, 10)
    half = prepare(torch.nn.Linear(2, 2), config, 10)
    for _ in range(4):
        half.optimizer.step()
        half.scheduler.step()
    again.scheduler.load_state_dict(half.scheduler.state_dict())
    assert again.scheduler.get_last_lr()[0] == rates[4]
