"""Trains a `RewardModel` that a script put together, on batches of its own DataLoader.

Such a loop sees padded token ids and no rows, so it is none of the engine's: `thumbwheel train
reward` trains what can judge a training.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from statistics import fmean
from typing import TYPE_CHECKING, Any

from thumbwheel.compat.n3.config import RewardModelConfig
from thumbwheel.compat.n3.torch_module import TorchModule
from thumbwheel.core import log
from thumbwheel.core.errors import DataError

if TYPE_CHECKING:
    import torch

LEARNING_RATE = 1e-5
"""Theirs, where the settings leave it open."""


def fit(
    model: TorchModule,
    config: RewardModelConfig,
    train_loader: Iterable[Any],
    val_loader: Iterable[Any] | None,
) -> dict[str, list[float]]:
    """Train the module by AdamW on squared errors; return the means of each epoch."""
    import torch
    from transformers import get_linear_schedule_with_warmup

    epochs = math.ceil(config.num_epochs)
    steps = sum(1 for _ in train_loader) * epochs
    if not steps:
        raise DataError("train_loader", "it has no batch", "Give one over at least one example")
    learned = [weights for weights in model.parameters() if weights.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=config.learning_rate or LEARNING_RATE)
    schedule = get_linear_schedule_with_warmup(optimizer, config.warmup_of(steps), steps)

    history: dict[str, list[float]] = {
        name: [] for name in ("train_loss", "val_loss", "train_mae", "val_mae")
    }
    for epoch in range(epochs):
        model.train()
        losses, errors = [], []
        for differences in _differences(model, train_loader):
            loss = differences.square().mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(learned, config.max_grad_norm)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
            errors.append(differences.abs().mean().item())
        history["train_loss"].append(fmean(losses))
        history["train_mae"].append(fmean(errors))

        model.eval()
        if val_loader is not None:
            with torch.no_grad():
                held_out = list(_differences(model, val_loader))
            if held_out:
                all_held_out = torch.cat(held_out)
                history["val_loss"].append(all_held_out.square().mean().item())
                history["val_mae"].append(all_held_out.abs().mean().item())
        figures = [f"{name} {values[-1]:.4f}" for name, values in history.items() if values]
        log.say(f"epoch {epoch + 1} of {epochs}: {', '.join(figures)}")
    return history


def _differences(model: TorchModule, loader: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield predicted minus given score [rows] of each batch."""
    device = next(model.parameters()).device
    for batch in loader:
        ids, mask = batch["input_ids"].to(device), batch["attention_mask"].to(device)
        predicted: torch.Tensor = model(ids, mask)
        yield predicted - batch["score"].to(device)
