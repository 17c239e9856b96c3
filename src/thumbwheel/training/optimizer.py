"""AdamW on the adapter and its learning-rate schedule."""

from __future__ import annotations

import math
from typing import Any

from thumbwheel.training.checkpoint import Trained
from thumbwheel.training.types import TrainConfig

SCHEDULES = {"constant": "constant_with_warmup"}
"""Our name -> transformers' name, where they differ."""


def adapter_parameters(model: Any) -> list[Any]:
    """The parameters that train."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def prepare(model: Any, config: TrainConfig, steps: int) -> Trained:
    """Model, optimiser and schedule for `steps` optimiser steps."""
    import torch
    from torch.optim.lr_scheduler import LambdaLR
    from transformers import get_scheduler

    optimizer = torch.optim.AdamW(adapter_parameters(model), lr=config.peak_rate, weight_decay=config.weight_decay)
    name = SCHEDULES.get(config.lr_scheduler_type, config.lr_scheduler_type)
    warm = math.ceil(steps * config.warmup_ratio)
    found: Any = get_scheduler(name, optimizer, num_warmup_steps=warm, num_training_steps=steps + bool(warm))
    factor = found.lr_lambdas[0]
    if not warm:
        return Trained(model, optimizer, found)
    return Trained(model, optimizer, LambdaLR(optimizer, lambda step: factor(step + 1)))  # a first step at rate 0 would teach nothing
