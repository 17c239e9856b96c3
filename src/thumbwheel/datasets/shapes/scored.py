"""`scored`: a prompt, one answer and a number that says how good it is. Ratings, scores and measured outcomes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from thumbwheel.datasets.shape import Shape, assistant, base
from thumbwheel.datasets.types import DatasetConfig, Drop, Evidence, ScoredRow


class ScoredAnswers(Shape):
    """One row for each answer that somebody gave a number; thumbs and words are none."""

    name = "scored"
    row = ScoredRow

    def rows(self, evidence: Evidence, config: DatasetConfig) -> Iterator[ScoredRow | Drop]:
        """One row for each answer with a value."""
        for answer in evidence.answers:
            if answer.value is None:
                yield Drop("no number says how good the answer is")
                continue
            shared = base(self.name, evidence, (answer,), answer.value.kind, 1.0, answer.value.feedback_ids)
            yield ScoredRow(**shared, completion=answer.text, value=answer.value.raw, scale=list(answer.value.scale))

    def trl_columns(self, row: ScoredRow) -> dict[str, Any]:
        """`prompt`, `completion` and `score`."""
        return {"prompt": row.prompt, "completion": assistant(row.completion), "score": row.value}

    def fit(self, rows: list[ScoredRow], config: DatasetConfig) -> tuple[list[ScoredRow], dict[str, Any]]:
        """All values on the scale that most training rows have, so that they can be compared."""
        common = Counter(tuple(row.scale) for row in rows if row.split == "train").most_common()
        if not common:
            return rows, {}
        scale = min(scale for scale, count in common if count == common[0][1])
        return [_on(row, scale) for row in rows], {"scale": list(scale)}


def _on(row: ScoredRow, scale: tuple[float, ...]) -> ScoredRow:
    if tuple(row.scale) == scale:
        return row
    (low, high), (new_low, new_high) = row.scale, scale
    return replace(row, value=new_low + (row.value - low) / (high - low) * (new_high - new_low), scale=[new_low, new_high])
