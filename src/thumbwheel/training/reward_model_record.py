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
from thumbwheel.training.types import Run

if TYPE_CHECKING:
    from thumbwheel.engine.reward_model import RewardInput, RewardModel, RewardScale


def register(ws: Workspace, run: Run, result: Path) -> RewardModelRecord:
    """Register the reward model that `run` left in `result` as the next one of its agent, with its
    figures on dev rows."""
    from thumbwheel.core.hardware import device
    from thumbwheel.engine.reward_model import RewardModel

    model = RewardModel.load(result, device=device("auto"), cache=ws.home.cache)
    card = model.card
    figures = {
        "loss_type": card.loss_type,
        "dev": dict(card.dev),
        "held_out": held_out(model, load_rows(ws, run.dataset_id, "dev")),
    }
    return reward_models.add(
        ws, run.agent, run.id, card.base, card.base_fingerprint, result, figures
    )


def held_out(model: RewardModel, rows: Iterable[Any]) -> dict[str, Any]:
    """Return figures on `rows` of the shape that the model learned from; `unreadable` counts rows
    too long for it, `majority` is the accuracy of always predicting the more frequent label."""
    from thumbwheel.engine.reward_model import RewardInput

    rows = list(rows)
    if model.card.loss_type == "bradley_terry":
        return _ranking_figures(model, rows)
    inputs = [RewardInput(row.prompt, row.completion, row.finish_reason, row.tools) for row in rows]
    scores, read = [], []
    for score, row in zip(model.score(inputs), rows, strict=True):
        if not math.isnan(score):
            scores.append(score)
            read.append(row)
    if model.scale is not None:
        return of_numbers(model.scale, scores, [row.value for row in read], len(rows))
    right = [(score > 0) == row.label for score, row in zip(scores, read, strict=True)]
    figures = of_answers(right, len(rows), [row.group for row in read])
    if read:
        good = sum(row.label for row in read)
        figures["majority"] = max(good, len(read) - good) / len(read)
    return figures


def _ranking_figures(model: RewardModel, rows: Sequence[Any]) -> dict[str, Any]:
    right: list[bool] = []
    groups: list[str] = []
    scores = model.score_together([_both_sides(row) for row in rows])
    for (chosen, rejected), row in zip(scores, rows, strict=True):
        if not math.isnan(chosen + rejected):
            right.append(chosen > rejected)
            groups.append(row.group)
    return of_answers(right, len(rows), groups)


def _both_sides(row: Any) -> list[RewardInput]:
    from thumbwheel.engine.reward_model import RewardInput

    return [
        RewardInput(row.prompt, getattr(row, side), getattr(row, f"{side}_finish"), row.tools)
        for side in ("chosen", "rejected")
    ]


def of_answers(right: Sequence[bool], asked: int, groups: Sequence[str]) -> dict[str, Any]:
    """Return the share that is right, with its 95 % intervals: Wilson's, and the exact one (Clopper
    and Pearson); if rows share a group (a session, a prompt), the one interval that respects
    that."""
    from thumbwheel.stats.paired import compare
    from thumbwheel.stats.rates import clopper_pearson, wilson

    n, hits, n_groups = len(right), sum(right), len(set(groups))
    if not n:
        return {"n": 0, "unreadable": asked}
    figures = {"n": n, "unreadable": asked - n, "accuracy": hits / n, "groups": n_groups}
    if n_groups < n:
        hit = [float(is_right) for is_right in right]
        lead = compare([1 - value for value in hit], hit, groups)
        return figures | {"low": (1 + lead.low) / 2, "high": (1 + lead.high) / 2}
    score, exact = wilson(hits, n), clopper_pearson(hits, n)
    return figures | {
        "low": score.low,
        "high": score.high,
        "exact_low": exact.low,
        "exact_high": exact.high,
    }


def of_numbers(
    scale: RewardScale, scores: Sequence[float], values: Sequence[float], asked: int
) -> dict[str, Any]:
    """Return mean squared and mean absolute error in raw units, and the squared error of always
    predicting the mean of these rows."""
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
