"""AdamW on the adapter and its learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from thumbwheel.training.checkpoint import Trained
from thumbwheel.training.types import TrainConfig

SCHEDULES = {"constant": "constant_with_warmup"}
"""Our name -> transformers' name, where they differ."""


def prepare(
    model: Any, config: TrainConfig, steps: int, groups: Sequence[dict[str, Any]] = ()
) -> Trained:
    """Model, optimiser and schedule for `steps` steps; `groups` are those of the optimiser where
    not all of the model trains alike."""
    import torch
    from torch.optim.lr_scheduler import LambdaLR
    from transformers import get_scheduler

    optimizer = torch.optim.AdamW(
        list(groups) or [parameter for parameter in model.parameters() if parameter.requires_grad],
        lr=config.peak_rate,
        weight_decay=config.weight_decay,
    )
    name = SCHEDULES.get(config.lr_scheduler_type, config.lr_scheduler_type)
    warm = math.ceil(steps * config.warmup_ratio)
    scheduler: Any = get_scheduler(
        name, optimizer, num_warmup_steps=warm, num_training_steps=steps + bool(warm)
    )
    factor = scheduler.lr_lambdas[0]
    if not warm:
        return Trained(model, optimizer, scheduler)
    return Trained(
        model, optimizer, LambdaLR(optimizer, lambda step: factor(step + 1))
    )  # a first step at rate 0 would teach nothing
