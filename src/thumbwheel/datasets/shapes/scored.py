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
    """One row for each answer that somebody gave a number; thumbs and words are none."""

    name = "scored"
    row = ScoredRow
    adjusts = ("value", "scale")

    def rows(self, evidence: Evidence, config: DatasetConfig) -> Iterator[ScoredRow | Drop]:
        """One row for each answer with a value."""
        for answer in evidence.answers:
            if answer.value is None:
                yield Drop(
                    MACHINES
                    if WITHHELD_VALUE in answer.withheld
                    else "no number says how good the answer is"
                )
                continue
            shared = base(
                self.name, evidence, (answer,), answer.value.kind, 1.0, answer.value.feedback_ids
            )
            shared |= {
                "value": answer.value.raw,
                "scale": list(answer.value.scale),
                "finish_reason": answer.finish_reason,
            }
            yield ScoredRow(**shared, completion=answer.text)

    def trl_columns(self, row: ScoredRow) -> dict[str, Any]:
        """`prompt`, `completion` and `score`."""
        return {"prompt": row.prompt, "completion": assistant(row.completion), "score": row.value}

    def fit(self, facts: RowStats, config: DatasetConfig) -> dict[str, Any]:
        """The scale that most training rows have, and what part of it becomes -1 to 1 where scores
        are normalised."""
        import numpy as np

        common = facts.scales.most_common()
        if not common:
            return {}
        scale = min(scale for scale, count in common if count == common[0][1])
        fitted: dict[str, Any] = {"scale": list(scale)}
        if config.normalise != "none":
            values = np.array(
                [_on(value, own, scale) for own, some in facts.values for value in some]
            )
            low, high = np.quantile(values, (0, 1) if config.normalise == "range" else (0.05, 0.95))
            fitted["normalised"] = {"from": [float(low), float(high)], "to": [-1.0, 1.0]}
        return fitted

    def finish(self, columns: Columns, fitted: Mapping[str, Any]) -> dict[str, list[Any]]:
        """All values on that scale, so that they can be compared."""
        if not fitted:
            return {}
        scale = fitted["scale"]
        values = [
            _on(value, own, scale)
            for value, own in zip(columns["value"], columns["scale"], strict=True)
        ]
        if normal := fitted.get("normalised"):
            low, high = normal["from"]
            scale = normal["to"]
            values = [
                _on(min(max(value, low), high), (low, high), scale) if high > low else 0.0
                for value in values
            ]
        return {"value": values, "scale": [scale] * len(values)}


def _on(value: float, own: Sequence[float], scale: Sequence[float]) -> float:
    (low, high), (new_low, new_high) = own, scale
    return (
        value
        if (low, high) == (new_low, new_high)
        else new_low + (value - low) / (high - low) * (new_high - new_low)
    )
