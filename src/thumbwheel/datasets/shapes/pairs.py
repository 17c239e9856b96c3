"""`pairs`: a prompt, a better and a worse answer. Edits over originals, preferences, and siblings of the same prompt."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from thumbwheel.datasets.shape import Shape, assistant, base
from thumbwheel.datasets.types import DatasetConfig, Drop, Edge, Evidence, PairRow


class Pairs(Shape):
    """What was compared directly comes first; siblings (one judged good, one bad) fill up to a number for each prompt."""

    name = "pairs"
    row = PairRow

    def rows(self, evidence: Evidence, config: DatasetConfig) -> Iterator[PairRow | Drop]:
        """One row for each edge and for each chosen pair of siblings."""
        for edge in evidence.edges:
            yield self._row(evidence, edge)
        siblings = list(_siblings(evidence))
        for edge in siblings[: config.siblings]:
            yield self._row(evidence, edge)
        for _ in islice(siblings, config.siblings, None):
            yield Drop("more siblings than are taken from one prompt")

    def trl_columns(self, row: PairRow) -> dict[str, Any]:
        """`prompt`, `chosen` and `rejected`."""
        return {"prompt": row.prompt, "chosen": assistant(row.chosen), "rejected": assistant(row.rejected)}

    def _row(self, evidence: Evidence, edge: Edge) -> PairRow:
        chosen, rejected = evidence.answers[edge.better], evidence.answers[edge.worse]
        shared = base(self.name, evidence, (chosen, rejected), edge.origin, edge.strength, edge.feedback_ids)
        return PairRow(**shared, chosen=chosen.text, rejected=rejected.text)


def _siblings(evidence: Evidence) -> Iterator[Edge]:
    """Pairs of a good and a bad answer that nobody compared, in rounds in which every good answer is used once.

    The order of the answers is that of a hash of their text, so which pairs are taken depends neither on time nor on length.
    """
    compared = {frozenset((edge.better, edge.worse)) for edge in evidence.edges}
    good = [place for place, answer in enumerate(evidence.answers) if answer.good is True]
    bad = [place for place, answer in enumerate(evidence.answers) if answer.good is False]
    for turn in range(len(bad)):
        for number, better in enumerate(good):
            worse = bad[(number + turn) % len(bad)]
            if frozenset((better, worse)) not in compared:
                both = evidence.answers[better], evidence.answers[worse]
                yield Edge(better, worse, "siblings", min(one.strength for one in both), both[0].feedback_ids + both[1].feedback_ids)
