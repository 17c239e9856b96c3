"""Which rows make which optimiser step: a pure function of counts and seed, so that a resumed run
needs to remember nothing."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from thumbwheel.training.types import TrainConfig

FEW_ROWS_EPOCHS = 16
"""Most passes over rows that are too few for the fewest steps: a dozen rows that are passed over
fifty times are learned by heart."""


@dataclass(frozen=True)
class Order:
    """Shuffled anew every epoch; the last step of an epoch takes what is left."""

    rows: int
    batch_size: int
    steps: int
    seed: int

    @classmethod
    def of(cls, rows: int, config: TrainConfig) -> Order:
        """Return the order of a run over `rows` rows."""
        epoch_steps = math.ceil(rows / config.batch_size)
        by_epochs = math.ceil(epoch_steps * config.num_train_epochs)
        fewest = min(config.min_steps or 1, epoch_steps * FEW_ROWS_EPOCHS)
        steps = config.max_steps or max(by_epochs, fewest)
        return cls(rows, config.batch_size, steps if rows else 0, config.seed)

    @property
    def steps_an_epoch(self) -> int:
        """Optimiser steps in which every row comes once."""
        return math.ceil(self.rows / self.batch_size)

    def epoch(self, step: int) -> float:
        """Return the epochs done after `step` steps."""
        return step / self.steps_an_epoch if self.rows else 0.0

    def batches(self, done: int = 0) -> Iterator[list[int]]:
        """Yield the row numbers of every step after the first `done` ones."""
        for step in range(done, self.steps):
            epoch, position = divmod(step, self.steps_an_epoch)
            if position == 0 or step == done:
                order = list(range(self.rows))
                random.Random(f"{self.seed}:{epoch}").shuffle(order)
            yield order[position * self.batch_size : (position + 1) * self.batch_size]
