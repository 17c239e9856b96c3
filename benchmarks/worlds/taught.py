"""Trains a pretrained base by a method's own runner and schedule, without evaluations, checkpoints
or a home; and makes the bases of worlds whose app had a few examples of its task before it went
into use.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thumbwheel.demo.base import publish
from thumbwheel.training.algorithm import SplitRows
from thumbwheel.training.algorithms import ALGORITHMS
from thumbwheel.training.assemble import assemble, settings
from thumbwheel.training.base_defaults import with_base_defaults
from thumbwheel.training.optimizer import prepare
from worlds.smollm2 import smollm2
from worlds.world import Chat

REVISION = 1
"""Raise it when a change of this file changes what is trained."""
OPTIONS: dict[str, Any] = {"num_train_epochs": 3, "batch_size": 16}
"""Of the training that makes a base."""


@dataclass(frozen=True)
class Trained:
    """A model with its adapter, its tokenizer, and the loss of each step."""

    model: Any
    tokenizer: Any
    losses: list[float]


def trained(method: str, options: Mapping[str, Any], base: Path, rows: SplitRows) -> Trained:
    """Train the base in folder `base` on `rows`; the last weights count."""
    import torch

    config = with_base_defaults(settings(method, dict(options)), ALGORITHMS.get(method), base)
    with tempfile.TemporaryDirectory() as scratch:
        assembly = assemble(
            method,
            config,
            str(base),
            base,
            {"train": rows, "dev": []},
            Path(scratch) / "reference.db",
        )
        parts = prepare(assembly.model, assembly.config, assembly.steps, assembly.runner.groups())

        def apply(_: float) -> float:
            for group in parts.optimizer.param_groups:
                torch.nn.utils.clip_grad_norm_(group["params"], assembly.config.max_grad_norm)
            parts.optimizer.step()
            parts.scheduler.step()
            parts.optimizer.zero_grad(set_to_none=True)
            return 0.0

        losses = []
        for step, numbers in enumerate(assembly.order.batches()):
            items = [assembly.train.items[number] for number in numbers]
            losses.append(assembly.runner.train(items, step, apply).loss)
        assembly.runner.close()
    return Trained(assembly.model, assembly.builder.tokenizer, losses)


def taught_base(name: str, chats: Sequence[Chat], cache: Path) -> Path:
    """Return the folder of SmolLM2 after a training on chats that end with an answer; trained where
    it is not in `cache` yet, and published by one rename."""
    base = smollm2()
    content = json.dumps([REVISION, base.name, OPTIONS, chats], sort_keys=True)
    target = cache / f"{name}-smollm2-{hashlib.sha256(content.encode()).hexdigest()[:16]}"
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    rows = [demonstration(number, chat) for number, chat in enumerate(chats)]
    result = trained("sft", OPTIONS, base, rows)
    scratch = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=cache))
    try:
        result.model.merge_and_unload().save_pretrained(scratch)
        result.tokenizer.save_pretrained(scratch)
        publish(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def demonstration(number: int, chat: Chat) -> dict[str, Any]:
    """Return a chat as a row of a dataset."""
    return {
        "prompt": chat[:-1],
        "completion": chat[-1]["content"],
        "weight": 1.0,
        "group": str(number),
        "origin": "demonstration",
    }
