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
    """Return model, optimiser and schedule for `steps` steps; `groups` are the parameter groups of
    the optimiser if not all of the model trains alike."""
    import torch
    from torch.optim.lr_scheduler import LambdaLR
    from transformers import get_scheduler

    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # on a GPU one kernel updates all of the adapter, instead of a dozen
    on_gpu = all(parameter.device.type == "cuda" for parameter in trainable)
    optimizer = torch.optim.AdamW(
        list(groups) or trainable,
        lr=config.peak_rate,
        weight_decay=config.weight_decay,
        fused=on_gpu or None,
    )
    name = SCHEDULES.get(config.lr_scheduler_type, config.lr_scheduler_type)
    # 7 / 25 * 25 is a little more than 7
    warmup = math.ceil(steps * config.warmup_ratio - 1e-9)
    scheduler: Any = get_scheduler(
        name, optimizer, num_warmup_steps=warmup, num_training_steps=steps + bool(warmup)
    )
    if warmup:
        # Begin one step later: a first step at rate 0 would teach nothing.
        factor = scheduler.lr_lambdas[0]
        scheduler = LambdaLR(optimizer, lambda step: factor(step + 1))
    return Trained(model, optimizer, scheduler)
