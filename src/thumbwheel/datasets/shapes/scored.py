"""`scored`: a prompt, one answer and a number that says how good it is. Ratings, scores and
measured outcomes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from thumbwheel.datasets.row_stats import Columns, RowStats
from thumbwheel.datasets.shape import Shape, assistant, base
from thumbwheel.datasets.types import (
    MACHINES,
    WITHHELD_VALUE,
    DatasetConfig,
    Drop,
    Evidence,
    ScoredRow,
)


class ScoredAnswers(Shape):
    """One row for each answer with a number; thumbs and words give none."""

    name = "scored"
    teaches = "learns numbers"
    row = ScoredRow
    adjusts = ("value", "scale")

    def rows(self, evidence: Evidence, config: DatasetConfig) -> Iterator[ScoredRow | Drop]:
        """Yield one row for each answer with a value."""
        for answer in evidence.answers:
            value = answer.value
            if value is not None:
                yield ScoredRow(
                    **base(self.name, evidence, (answer,), value.kind, 1.0, value.feedback_ids),
                    completion=answer.text,
                    value=value.raw,
                    scale=list(value.scale),
                    finish_reason=answer.finish_reason,
                )
            elif WITHHELD_VALUE in answer.withheld:
                yield Drop(MACHINES)
            else:
                yield Drop("no number says how good the answer is")

    def trl_columns(self, row: ScoredRow) -> dict[str, Any]:
        """Return `prompt`, `completion` and `score`."""
        return {"prompt": row.prompt, "completion": assistant(row.completion), "score": row.value}

    def fit(self, stats: RowStats, config: DatasetConfig) -> dict[str, Any]:
        """Return the scale of most training rows, and the part of it that becomes -1 to 1 if scores
        are normalised."""
        import numpy as np

        if not stats.scales:
            return {}
        most = max(stats.scales.values())
        common_scale = min(scale for scale, count in stats.scales.items() if count == most)
        fitted: dict[str, Any] = {"scale": list(common_scale)}
        if config.normalise != "none":
            values = []
            for scale, scores in stats.values:
                values += [_rescaled(score, scale, common_scale) for score in scores]
            bounds = (0, 1) if config.normalise == "range" else (0.05, 0.95)
            low, high = np.quantile(values, bounds)
            fitted["normalised"] = {"from": [float(low), float(high)], "to": [-1.0, 1.0]}
        return fitted

    def finish(self, columns: Columns, fitted: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Rescale all values to the fitted scale, so that they can be compared."""
        if not fitted:
            return {}
        target = fitted["scale"]
        rows = zip(columns["value"], columns["scale"], strict=True)
        values = [_rescaled(value, scale, target) for value, scale in rows]
        if normalised := fitted.get("normalised"):
            low, high = normalised["from"]
            target = normalised["to"]
            if high > low:
                clipped = [min(max(value, low), high) for value in values]
                values = [_rescaled(value, (low, high), target) for value in clipped]
            else:
                values = [0.0] * len(values)
        return {"value": values, "scale": [target] * len(values)}


def _rescaled(value: float, scale: Sequence[float], target: Sequence[float]) -> float:
    (low, high), (target_low, target_high) = scale, target
    if (low, high) == (target_low, target_high):
        return value
    return target_low + (value - low) / (high - low) * (target_high - target_low)
