"""`pairs`: a prompt, a better and a worse answer. Edits over originals, preferences, and siblings
of the same prompt: one judged good and one bad, or two whose numbers lie apart."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence, Set
from itertools import islice
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
        siblings, further = _siblings(evidence, config)
        for edge in siblings:
            yield self._row(evidence, edge)
        if further:
            yield Drop("more siblings than are taken from one prompt", further)

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


Pair = frozenset[int]
"""Positions of two answers."""
Valued = tuple[float, int]
"""The number of an answer, from 0 to 1, and its position."""
ROUNDING = 1e-9


def _siblings(evidence: Evidence, config: DatasetConfig) -> tuple[list[Edge], int]:
    """Return pairs of answers that nobody compared, at most `config.siblings`, and how many more
    there are.

    First come pairs of one good and one bad answer, in rounds in which every good answer is used
    once; then those whose numbers differ by more than the margin, the largest difference first.
    With rewards of the ledger, only people's verdicts make an answer good or bad.

    The answers are in the order of a hash of their text, so the choice of pairs depends neither on
    time nor on length. A prompt that thousands asked has millions of pairs: those beyond the limit
    are counted, and none of them is made.
    """
    people_only = config.reward == "ledger"
    compared = {frozenset((edge.better, edge.worse)) for edge in evidence.edges}
    good: list[int] = []
    bad: list[int] = []
    for position, answer in enumerate(evidence.answers):
        if answer.good is not None and (answer.by_people or not people_only):
            (good if answer.good else bad).append(position)
    edges = list(islice(_opposites(evidence, good, bad, compared), config.siblings))
    sides = (frozenset(good), frozenset(bad))
    count = len(good) * len(bad) - sum(_is_across(pair, sides) for pair in compared)

    if config.margin is not None:
        least = config.margin + ROUNDING
        count += _count_by_margin(evidence, least, sides, compared)
        # the pairs that are passed over are those of `compared`, and fewer opposites than asked for
        if len(edges) < config.siblings:
            by_margin = _by_margin(evidence, least, sides, compared)
            edges += islice(by_margin, config.siblings - len(edges))
    return edges, count - len(edges)


def _is_across(pair: Pair, sides: tuple[Set[int], Set[int]]) -> bool:
    """Return whether one answer of the pair is good and the other one bad."""
    return all(len(pair & side) == 1 for side in sides)


def _opposites(
    evidence: Evidence, good: Sequence[int], bad: Sequence[int], compared: Set[Pair]
) -> Iterator[Edge]:
    """Pair each good answer with each bad one, except for the pairs that people compared."""
    for turn in range(len(bad)):
        for number, better in enumerate(good):
            worse = bad[(number + turn) % len(bad)]
            if frozenset((better, worse)) not in compared:
                chosen, rejected = evidence.answers[better], evidence.answers[worse]
                strength = min(chosen.strength, rejected.strength)
                feedback_ids = chosen.feedback_ids + rejected.feedback_ids
                yield Edge(better, worse, "siblings", strength, feedback_ids)


def _valued(evidence: Evidence) -> list[Valued]:
    """Return the answers that have a number, the lowest first."""
    values = []
    for position, answer in enumerate(evidence.answers):
        if answer.value is not None:
            values.append((answer.value.unit, position))
    return sorted(values)


def _by_margin(
    evidence: Evidence, least: float, sides: tuple[Set[int], Set[int]], compared: Set[Pair]
) -> Iterator[Edge]:
    """Yield pairs whose numbers differ by more than `least`, the largest difference first, without
    those that were compared or are opposites."""
    values = _valued(evidence)

    def below(higher: float, better: int) -> Iterator[tuple[float, int, int]]:
        for lower, worse in values:
            if higher - lower <= least:
                return
            yield lower - higher, better, worse

    for negative, better, worse in heapq.merge(*(below(*valued) for valued in values)):
        pair = frozenset((better, worse))
        if pair not in compared and not _is_across(pair, sides):
            feedback_ids = _value_feedback(evidence, better) + _value_feedback(evidence, worse)
            yield Edge(better, worse, "rewards", -negative, feedback_ids)


def _value_feedback(evidence: Evidence, position: int) -> tuple[str, ...]:
    """Return the ids of the feedback that gave an answer its number."""
    value = evidence.answers[position].value
    return () if value is None else value.feedback_ids


def _count_by_margin(
    evidence: Evidence, least: float, sides: tuple[Set[int], Set[int]], compared: Set[Pair]
) -> int:
    """Return how many pairs `_by_margin` has."""
    values = _valued(evidence)
    units = {position: unit for unit, position in values}
    good, bad = ([unit for unit, position in values if position in side] for side in sides)
    opposites = _count_apart(sorted(good + bad), least)
    opposites -= _count_apart(good, least) + _count_apart(bad, least)
    n_compared = 0
    for pair in compared:
        numbers = [units[position] for position in pair if position in units]
        is_apart = len(numbers) == 2 and max(numbers) - min(numbers) > least
        n_compared += is_apart and not _is_across(pair, sides)
    return _count_apart([unit for unit, _ in values], least) - opposites - n_compared


def _count_apart(ascending: Sequence[float], least: float) -> int:
    """Return how many pairs of numbers differ by more than `least`."""
    count = n_lower = 0
    for higher in ascending:
        while higher - ascending[n_lower] > least:
            n_lower += 1
        count += n_lower
    return count
