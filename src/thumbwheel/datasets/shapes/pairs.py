"""`pairs`: a prompt, a better and a worse answer. Edits over originals, preferences, and siblings
of the same prompt: one judged good and one bad, or two whose numbers lie apart."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from thumbwheel.datasets.shape import Shape, assistant, base
from thumbwheel.datasets.types import MACHINES, DatasetConfig, Drop, Edge, Evidence, PairRow


class Pairs(Shape):
    """What was compared directly comes first; siblings fill up to a number for each prompt."""

    name = "pairs"
    row = PairRow

    def rows(self, evidence: Evidence, config: DatasetConfig) -> Iterator[PairRow | Drop]:
        """One row for each edge and for each chosen pair of siblings."""
        for edge in evidence.edges:
            yield self._row(evidence, edge)
        for _ in range(evidence.withheld_edges):
            yield Drop(MACHINES)
        siblings = list(_siblings(evidence, config.margin, config.reward == "ledger"))
        for edge in siblings[: config.siblings]:
            yield self._row(evidence, edge)
        for _ in islice(siblings, config.siblings, None):
            yield Drop("more siblings than are taken from one prompt")

    def trl_columns(self, row: PairRow) -> dict[str, Any]:
        """`prompt`, `chosen` and `rejected`."""
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
    """Pairs of answers that nobody compared: one good and one bad, in rounds in which every good
    answer is used once; then those whose numbers lie more than `margin` apart, the farthest first.
    With `people_only`, good and bad are what people called so.

    The order of the answers is that of a hash of their text, so which pairs are taken depends
    neither on time nor on length.
    """
    met = {frozenset((edge.better, edge.worse)) for edge in evidence.edges}
    judged = [
        (place, answer)
        for place, answer in enumerate(evidence.answers)
        if answer.by_people or not people_only
    ]
    good = [place for place, answer in judged if answer.good is True]
    bad = [place for place, answer in judged if answer.good is False]
    for turn in range(len(bad)):
        for number, better in enumerate(good):
            worse = bad[(number + turn) % len(bad)]
            if frozenset((better, worse)) not in met:
                met.add(frozenset((better, worse)))
                both = evidence.answers[better], evidence.answers[worse]
                yield Edge(
                    better,
                    worse,
                    "siblings",
                    min(one.strength for one in both),
                    both[0].feedback_ids + both[1].feedback_ids,
                )
    yield from _apart(evidence, margin, met) if margin is not None else ()


def _apart(evidence: Evidence, margin: float, met: set[frozenset[int]]) -> Iterator[Edge]:
    values = [
        (place, answer.value)
        for place, answer in enumerate(evidence.answers)
        if answer.value is not None
    ]
    found = [
        (one.unit - other.unit, better, worse, one.feedback_ids + other.feedback_ids)
        for better, one in values
        for worse, other in values
        if one.unit - other.unit > margin + 1e-9
    ]
    for apart, better, worse, named in sorted(found, key=lambda pair: (-pair[0], *pair[1:3])):
        if frozenset((better, worse)) not in met:
            yield Edge(better, worse, "rewards", apart, named)
