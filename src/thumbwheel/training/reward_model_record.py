"""What becomes of a run that made a reward model: its figures on dev rows, and its record.

The gate's rows stay closed: a reward model is a tool of training and evaluation, and what shapes a
candidate may not have read them. Dev rows chose the model's checkpoint too, so that its figures are
a little better than on rows that nobody looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thumbwheel.datasets.build import load_rows
from thumbwheel.db.workspace import Workspace
from thumbwheel.models import reward_models
from thumbwheel.models.types import RewardModelRecord

if TYPE_CHECKING:
    from thumbwheel.engine.reward_model import RewardInput, RewardModel, Scale


def register(
    ws: Workspace, agent: str, run_id: str, dataset_id: str, result: Path
) -> RewardModelRecord:
    """The reward model in folder `result` as the next one of `agent`, with its figures on dev rows."""
    from thumbwheel.engine.reward_model import RewardModel
    from thumbwheel.training.hardware import device

    model = RewardModel.load(result, device=device("auto"))
    card = model.card
    figures = {
        "loss_type": card.loss_type,
        "dev": dict(card.dev),
        "held_out": held_out(model, load_rows(ws, dataset_id, "dev")),
    }
    return reward_models.add(ws, agent, run_id, card.base, card.base_fingerprint, result, figures)


def held_out(model: RewardModel, rows: Iterable[Any]) -> dict[str, Any]:
    """Figures on `rows` of the shape that the model learned from; `unreadable` are those that are
    too long for it, `majority` is the accuracy of calling every answer what most of them are."""
    from thumbwheel.engine.reward_model import RewardInput

    dev_rows = list(rows)
    if model.card.loss_type == "bradley_terry":
        compared = model.score_together([_both_sides(row) for row in dev_rows])
        ranked = [
            (chosen > rejected, row)
            for (chosen, rejected), row in zip(compared, dev_rows, strict=True)
            if not math.isnan(chosen + rejected)
        ]
        return of_answers(
            [right for right, _ in ranked], len(dev_rows), [row.group for _, row in ranked]
        )
    scores = model.score(
        [RewardInput(row.prompt, row.completion, row.finish_reason, row.tools) for row in dev_rows]
    )
    read = [
        (score, row) for score, row in zip(scores, dev_rows, strict=True) if not math.isnan(score)
    ]
    if model.scale is not None:
        return of_numbers(
            model.scale, [score for score, _ in read], [row.value for _, row in read], len(dev_rows)
        )
    right = of_answers(
        [(score > 0) == row.label for score, row in read],
        len(dev_rows),
        [row.group for _, row in read],
    )
    good = sum(row.label for _, row in read)
    return right | ({"majority": max(good, len(read) - good) / len(read)} if read else {})


def _both_sides(row: Any) -> list[RewardInput]:
    from thumbwheel.engine.reward_model import RewardInput

    return [
        RewardInput(row.prompt, getattr(row, side), getattr(row, f"{side}_finish"), row.tools)
        for side in ("chosen", "rejected")
    ]


def of_answers(right: Sequence[bool], asked: int, groups: Sequence[str]) -> dict[str, Any]:
    """The share that is right, with its 95 % intervals: Wilson's, and the exact one (Clopper and
    Pearson); where rows share a group (a session, a prompt), the one interval that respects
    that."""
    from thumbwheel.stats.paired import compare
    from thumbwheel.stats.rates import clopper_pearson, wilson

    n, hits = len(right), sum(right)
    if not n:
        return {"n": 0, "unreadable": asked}
    figures = {"n": n, "unreadable": asked - n, "accuracy": hits / n, "groups": len(set(groups))}
    if len(set(groups)) < n:
        lead = compare(
            [float(not is_right) for is_right in right],
            [float(is_right) for is_right in right],
            groups,
        )
        return figures | {"low": (1 + lead.low) / 2, "high": (1 + lead.high) / 2}
    score, exact = wilson(hits, n), clopper_pearson(hits, n)
    return figures | {
        "low": score.low,
        "high": score.high,
        "exact_low": exact.low,
        "exact_high": exact.high,
    }


def of_numbers(
    scale: Scale, scores: Sequence[float], values: Sequence[float], asked: int
) -> dict[str, Any]:
    """Mean squared and mean absolute error in raw units, beside those of the mean of the very rows,
    which knows nothing of the answers."""
    n = len(values)
    if not n:
        return {"n": 0, "unreadable": asked}
    gaps = [scale.raw(score) - value for score, value in zip(scores, values, strict=True)]
    centre = sum(values) / n
    return {
        "n": n,
        "unreadable": asked - n,
        "mse": sum(gap * gap for gap in gaps) / n,
        "mae": sum(map(abs, gaps)) / n,
        "mse_of_mean": sum((value - centre) ** 2 for value in values) / n,
    }
