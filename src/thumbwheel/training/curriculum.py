"""Easy to hard by measured success: which prompts a run that samples takes at which step.

Before the first step every prompt is answered a few times, unless recorded answers say how hard
each is; the share of prompts that may be drawn then grows from the easiest `START` to all of them
by `FULL` of the run. Rates follow what the policy earns while it learns. What was measured is part
of the checkpoint, so that a resumed run draws the same prompts.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from thumbwheel.training.order import Order

START, FULL = 0.25, 0.7
"""Share of the prompts that is open at the first step, and share of the run after which all are."""
NEWEST = 0.5
"""Weight of a prompt's newest rate over what was known of it."""


@dataclass(frozen=True)
class Curriculum(Order):
    """`measure` gives the mean reward of every prompt that has one, by row number; `record` keeps
    it up to date."""

    measure: Callable[[], Mapping[int, float]] = dict
    rates: dict[int, float] = field(default_factory=dict)
    drawn: Counter[int] = field(default_factory=Counter)

    def record(self, row: int, rate: float) -> None:
        """Record that prompt `row` has just earned `rate` on average."""
        self.rates[row] = NEWEST * rate + (1 - NEWEST) * self.rates.get(row, rate)

    def batches(self, done: int = 0) -> Iterator[list[int]]:
        """Yield the row numbers of every step after the first `done` ones: the open prompts that
        were drawn least often."""
        if not self.rates:
            self.rates.update(self.measure())
        for step in range(done, self.steps):
            pool = self.pool(step)
            random.Random(f"{self.seed}:{step}").shuffle(pool)
            chosen = sorted(pool, key=lambda row: self.drawn[row])[: self.batch_size]
            self.drawn.update(chosen)
            yield chosen

    def pool(self, step: int) -> list[int]:
        """Return the open prompts at `step`, easiest first; a prompt that could not be judged
        counts as the hardest."""
        opened = START + (1 - START) * min(1.0, step / max(1.0, FULL * self.steps))
        ranked = sorted(range(self.rows), key=lambda row: (-self.rates.get(row, -math.inf), row))
        return ranked[: max(self.batch_size, math.ceil(opened * self.rows))]

    def state(self) -> dict[str, Any]:
        return {"rates": dict(self.rates), "drawn": dict(self.drawn)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.rates.update(state["rates"])
        self.drawn.update(state["drawn"])
