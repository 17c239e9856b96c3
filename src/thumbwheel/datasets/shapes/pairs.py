"""`pairs`: a prompt, a better and a worse answer. Edits over originals, preferences, and siblings
of the same prompt: one judged good and one bad, or two whose numbers lie apart."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from thumbwheel.datasets.shape import Shape, assistant, base
from thumbwheel.datasets.types import MACHINES, DatasetConfig, Drop, Edge, Evidence, PairRow


class Pairs(Shape):
    """Direct comparisons come first; then siblings, up to a number for each prompt."""

    name = "pairs"
    teaches = "learns from a better and a worse answer to the same prompt"
    row = PairRow

    def rows(self, evidence: Evidence, config: DatasetConfig) -> Iterator[PairRow | Drop]:
        """Yield one row for each edge and for each chosen pair of siblings."""
        for edge in evidence.edges:
            yield self._row(evidence, edge)
        for _ in range(evidence.withheld_edges):
            yield Drop(MACHINES)
        siblings = _siblings(evidence, config.margin, config.reward == "ledger")
        for number, edge in enumerate(siblings):
            if number < config.siblings:
                yield self._row(evidence, edge)
            else:
                yield Drop("more siblings than are taken from one prompt")

    def trl_columns(self, row: PairRow) -> dict[str, Any]:
        """Return `prompt`, `chosen` and `rejected`."""
        return {
            "prompt": row.prompt,
            "chosen": assistant(row.chosen),
            "rejected": assistant(row.rejected),
        }

    def _row(self, evidence: Evidence, edge: Edge) -> PairRow:
        chosen, rejected = evidence.answers[edge.better], evidence.answers[edge.worse]
        shared = base(
            self.name, evidence, (chosen, rejected), edge.origin, edge.strength, edge.feedback_ids
        )
        shared |= {"chosen_finish": chosen.finish_reason, "rejected_finish": rejected.finish_reason}
        return PairRow(**shared, chosen=chosen.text, rejected=rejected.text)


def _siblings(evidence: Evidence, margin: float | None, people_only: bool) -> Iterator[Edge]:
    """Yield pairs of answers that nobody compared: one good and one bad, in rounds in which every
    good answer is used once; then pairs whose numbers differ by more than `margin`, the largest
    difference first. With `people_only`, good and bad are verdicts of people.

    The answers are in the order of a hash of their text, so the choice of pairs depends neither on
    time nor on length.
    """
    compared = {frozenset((edge.better, edge.worse)) for edge in evidence.edges}
    good: list[int] = []
    bad: list[int] = []
    for position, answer in enumerate(evidence.answers):
        if answer.good is not None and (answer.by_people or not people_only):
            (good if answer.good else bad).append(position)
    for turn in range(len(bad)):
        for number, better in enumerate(good):
            worse = bad[(number + turn) % len(bad)]
            if frozenset((better, worse)) not in compared:
                compared.add(frozenset((better, worse)))
                chosen, rejected = evidence.answers[better], evidence.answers[worse]
                strength = min(chosen.strength, rejected.strength)
                feedback_ids = chosen.feedback_ids + rejected.feedback_ids
                yield Edge(better, worse, "siblings", strength, feedback_ids)
    if margin is not None:
        for edge in _by_margin(evidence, margin):
            if frozenset((edge.better, edge.worse)) not in compared:
                yield edge


def _by_margin(evidence: Evidence, margin: float) -> list[Edge]:
    """Return all pairs whose numbers differ by more than `margin`, the largest difference first."""
    values = []
    for position, answer in enumerate(evidence.answers):
        if answer.value is not None:
            values.append((position, answer.value))
    edges = []
    for (better, higher), (worse, lower) in product(values, values):
        difference = higher.unit - lower.unit
        if difference > margin + 1e-9:
            feedback_ids = higher.feedback_ids + lower.feedback_ids
            edges.append(Edge(better, worse, "rewards", difference, feedback_ids))
    return sorted(edges, key=lambda edge: (-edge.strength, edge.better, edge.worse))
