"""The budget of the dev rows: how many of them a run is evaluated on, and how often.

The cost is counted in tokens, never in seconds, so that a run is the same on every machine and on
every rank: a token of an evaluation costs 1 (forward), a token of training 3 (forward and
backward). Where the evaluations would take more than their share of the run, there are fewer of
them first, then fewer rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from thumbwheel.datasets.split import share_of
from thumbwheel.training.order import Order
from thumbwheel.training.types import EvaluationPlan, TrainConfig

TRAINING_COST = 3
"""Cost of a trained token, in tokens that are only evaluated."""
FEWEST_ROWS = 64
"""Dev rows that are read whatever they cost: fewer do not tell whether a run gained anything."""
FEWEST_EVALUATIONS = 4
"""Evaluations during training, at least, where the run has so many steps: a collapse has to be seen
before the end."""
SALT = "dev rows of a run"


@dataclass(frozen=True)
class DevRow:
    """A dev row as the budget sees it."""

    key: str
    """Its place in the split and its group: they decide alone when the row is chosen."""
    tokens: int


@dataclass(frozen=True)
class DevChoice:
    """The dev rows that a run is evaluated on, and how often."""

    chosen: Sequence[int]
    """Indexes among the prepared dev rows, in their order."""
    plan: EvaluationPlan

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> DevChoice:
        """Return the choice that `to_json` stored."""
        return cls(stored["chosen"], EvaluationPlan(**stored["plan"]))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def choose(
    config: TrainConfig, order: Order, pass_tokens: int, dev: Sequence[DevRow], most_rows: int
) -> DevChoice:
    """Choose dev rows and evaluations for a run of `order`, whose training rows have `pass_tokens`
    tokens together; `most_rows` dev rows are read in any case at most.

    An `eval_steps` of the settings holds. The rows are the first ones by a hash of their keys, so
    that two runs over one dataset measure the same rows, or one of them a part of the other's.
    """
    ranked = sorted(range(len(dev)), key=lambda number: share_of(SALT, dev[number].key))
    ranked = ranked[:most_rows]
    training = TRAINING_COST * pass_tokens * order.epoch(order.steps)

    def share(rows: Sequence[int], eval_steps: int) -> float:
        evaluating = _evaluations(order, eval_steps) * sum(dev[row].tokens for row in rows)
        return evaluating / max(1.0, evaluating + training)

    # Fewer evaluations.
    eval_steps = config.eval_steps or max(1, order.steps // 10)
    if config.eval_steps is None:
        fewest = max(FEWEST_EVALUATIONS, 1 + (config.early_stopping_patience or 0))
        while share(ranked, eval_steps) > config.eval_budget:
            if math.ceil(order.steps / (eval_steps + 1)) < fewest:
                break
            eval_steps += 1

    # Fewer rows.
    count = len(ranked)
    if share(ranked, eval_steps) > config.eval_budget:
        count = min(count, FEWEST_ROWS)
        while share(ranked[: count + 1], eval_steps) <= config.eval_budget:
            count += 1
    chosen = sorted(ranked[:count])
    plan = EvaluationPlan(
        dev_rows=len(chosen),
        of=len(dev),
        eval_steps=eval_steps,
        evaluations=_evaluations(order, eval_steps) if chosen else 0,
        share=round(share(chosen, eval_steps), 4),
        budget=config.eval_budget,
    )
    return DevChoice(chosen, plan)


def _evaluations(order: Order, eval_steps: int) -> int:
    """Count the evaluations of a run: the base, every `eval_steps` steps, and the last step."""
    return 1 + math.ceil(order.steps / eval_steps)
