"""`labels`: a prompt, one answer, desirable or not. Lone thumbs, ratings, scores, labels and
outcomes, and both sides of an edit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from thumbwheel.datasets.row_stats import Columns, RowStats
from thumbwheel.datasets.shape import Shape, assistant, base
from thumbwheel.datasets.types import (
    MACHINES,
    WITHHELD_JUDGEMENT,
    DatasetConfig,
    Drop,
    Evidence,
    JudgedText,
    LabelRow,
)

BALANCE = (1.0, 4 / 3)
"""Where desirable weight x count should lie over undesirable weight x count: KTO (arXiv
2402.01306), section 4.2."""


class Labels(Shape):
    """One row for each answer that is good or bad; class weights are fitted on train."""

    name = "labels"
    teaches = "learns from single answers that were called good or bad"
    row = LabelRow
    adjusts = ("weight", "label")

    def rows(self, evidence: Evidence, config: DatasetConfig) -> Iterator[LabelRow | Drop]:
        """Yield one row for each judged answer, and for each edited original as an option."""
        edits = {edge.worse: edge for edge in evidence.edges if edge.origin == "correction"}
        for position, answer in enumerate(evidence.answers):
            edge = edits.get(position)
            if answer.good and answer.corrected:
                yield Drop("judged good and yet edited")
            elif answer.good is not None and (
                answer.origin != "correction" or config.labels_from_corrections
            ):
                yield self._row(
                    evidence,
                    answer,
                    answer.good,
                    answer.origin,
                    answer.strength,
                    answer.feedback_ids,
                )
            elif (
                answer.good is None
                and not answer.conflict
                and edge
                and config.labels_from_corrections
            ):
                yield self._row(
                    evidence, answer, False, "correction", edge.strength, edge.feedback_ids
                )
            else:
                yield Drop(_drop_reason(answer))

    def trl_columns(self, row: LabelRow) -> dict[str, Any]:
        """Return `prompt`, `completion` and `label`."""
        return {"prompt": row.prompt, "completion": assistant(row.completion), "label": row.label}

    def fit(self, stats: RowStats, config: DatasetConfig) -> dict[str, Any]:
        """Return class weights from the counts in train."""
        fitted = class_weights(stats.labels["train", True], stats.labels["train", False])
        desirable = config.desirable_weight or fitted[0]
        undesirable = config.undesirable_weight or fitted[1]
        return {"class_weights": {"desirable": desirable, "undesirable": undesirable}}

    def finish(self, columns: Columns, fitted: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Multiply the class weights into the rows of every split."""
        weights = fitted["class_weights"]
        desirable, undesirable = weights["desirable"], weights["undesirable"]
        class_weight = {True: desirable, False: undesirable}
        rows = zip(columns["weight"], columns["label"], strict=True)
        return {"weight": [weight * class_weight[label] for weight, label in rows]}

    def missing(self, stats: RowStats) -> str | None:
        """Return which class is missing in train; None if both are there."""
        desirable = bool(stats.labels["train", True])
        undesirable = bool(stats.labels["train", False])
        if desirable and undesirable:
            return None
        if desirable:
            return "all labels in train are desirable; training needs undesirable ones too"
        if undesirable:
            return "all labels in train are undesirable; training needs desirable ones too"
        return "there are no labels in train"

    def _row(
        self,
        evidence: Evidence,
        answer: JudgedText,
        label: bool,
        origin: str,
        weight: float,
        feedback_ids: tuple[str, ...],
    ) -> LabelRow:
        shared = base(self.name, evidence, (answer,), origin, weight, feedback_ids)
        return LabelRow(
            **shared, completion=answer.text, label=label, finish_reason=answer.finish_reason
        )


def class_weights(desirable: int, undesirable: int) -> tuple[float, float]:
    """Return (desirable, undesirable): 1.0 for the larger class; the smaller one is raised, in
    steps of 0.1, until both weigh the same.

    Both are 1.0 if the counts are within BALANCE already, and if a class is empty.

    >>> class_weights(222, 90), class_weights(40, 100)
    ((1.0, 2.4), (2.5, 1.0))
    >>> class_weights(100, 100), class_weights(120, 100), class_weights(5, 0)
    ((1.0, 1.0), (1.0, 1.0), (1.0, 1.0))
    """
    if not desirable or not undesirable or BALANCE[0] <= desirable / undesirable <= BALANCE[1]:
        return 1.0, 1.0
    if desirable > undesirable:
        return 1.0, math.floor(10 * desirable / undesirable + 1e-9) / 10
    return math.ceil(10 * undesirable / desirable - 1e-9) / 10, 1.0


def _drop_reason(answer: JudgedText) -> str:
    if WITHHELD_JUDGEMENT in answer.withheld:
        return MACHINES
    if answer.good is not None:
        return "known from a correction only"
    if answer.conflict:
        return "raters contradict each other evenly"
    return "no judgement that calls the answer good or bad"
