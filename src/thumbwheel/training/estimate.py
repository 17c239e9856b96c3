"""The dry run: everything up to training, and a few real steps that are measured and thrown away.

Rough by nature: other work on the machine, longer rows than those of the probe and evaluation by generation are not in the
figure. References are computed in the probe as in a first epoch, so later epochs are faster than it says.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from thumbwheel.training.algorithm import Row
from thumbwheel.training.assemble import Assembly, assemble
from thumbwheel.training.hardware import peak_memory_gb
from thumbwheel.training.order import Order
from thumbwheel.training.types import DryRun, TrainConfig

PROBED = 3
"""Steps that are measured, after one that warms up."""


def estimate(algorithm: str, config: TrainConfig, dataset_id: str, base: str, folder: Path, rows: Sequence[Row]) -> DryRun:
    """What a run over `rows` would be."""
    with tempfile.TemporaryDirectory() as scratch:
        made = assemble(algorithm, config, base, folder, rows, Path(scratch) / "reference.db")
        order = Order.of(len(made.train.items), config)
        probed, seconds = _probe(made, order)
        evaluation = _evaluation_seconds(made)
    evaluations = 11 if config.eval_steps is None else 1 + order.steps // config.eval_steps
    facts = made.facts
    return DryRun(
        algorithm=algorithm,
        dataset_id=dataset_id,
        rows=facts["train_rows"],
        dev_rows=facts["dev_rows"],
        dropped=facts["dropped"],
        notes=facts["notes"],
        tokens=made.train.tokens,
        scored_tokens=made.train.scored,
        steps=order.steps,
        matched_modules=facts["matched_modules"],
        trainable_parameters=facts["trainable_parameters"],
        dtype=made.dtype,
        layout=facts["layout"] + (f" ({facts['layout_reason']})" if facts["layout_reason"] else ""),
        minutes=round((order.steps * seconds + evaluations * evaluation) / 60, 2),
        peak_memory_gb=round(peak_memory_gb(), 2),
        probed_steps=probed,
    )


def _probe(made: Assembly, order: Order) -> tuple[int, float]:
    """(steps measured, seconds a step)."""
    times: list[float] = []

    def discard(loss: float) -> float:
        made.model.zero_grad()
        return loss

    for step, rows in enumerate(islice(order.batches(), PROBED + 1)):
        started = time.monotonic()
        made.at_work.train([made.train.items[row] for row in rows], step, discard)
        times.append(time.monotonic() - started)
    measured = times[1:] or times
    return len(measured), sum(measured) / len(measured)


def _evaluation_seconds(made: Assembly) -> float:
    """Of all dev rows, scaled up from a sample."""
    sample = made.dev.items[:32]
    if not sample:
        return 0.0
    started = time.monotonic()
    made.at_work.evaluate(sample)
    return (time.monotonic() - started) * len(made.dev.items) / len(sample)
