"""`code`: programs drawn for tasks with tests, really run in the sandbox: pass@k, the chance that
one of k programs passes.

Estimated from n programs a task as 1 - C(n - c, k) / C(n, k), of which c passed, which has no bias
(Chen et al. 2021). Where it is not safe to run code, nothing is measured.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from math import comb
from typing import ClassVar

from thumbwheel.evaluation import compare
from thumbwheel.evaluation.measure import blocked, score
from thumbwheel.evaluation.suite import Replies, Suite, SuiteMeasures
from thumbwheel.evaluation.types import Ask, Case, Measure
from thumbwheel.rewards.function import Score, Status

RUNS = "code_execution"


class Code(Suite):
    """See the module."""

    name: ClassVar[str] = "code"
    of_cases: ClassVar[bool] = True

    def unfit(self) -> str:
        """Without tasks with tests."""
        if self.config.pass_at > self.config.samples:
            return (
                f"pass@{self.config.pass_at} cannot be estimated from {self.config.samples} samples"
            )
        return "" if self.cases else "no held-out case has tests (checker code_execution)"

    @cached_property
    def cases(self) -> list[Case]:
        """Cases whose answers are run."""
        return [one for one in self.material.cases if one.checker == RUNS]

    def asks(self) -> list[Ask]:
        """Several programs for each; one greedy program where one is asked for."""
        several = self.config.samples > 1
        given = (
            self.config.max_new_tokens,
            self.config.samples,
            self.config.temperature if several else 0.0,
        )
        return [Ask(case.prompt, *given) for case in self.cases]

    def outcome(self, before: Replies, after: Replies) -> SuiteMeasures:
        """pass@k first; where k is more than 1, also pass@1."""
        scores = [self._scores(replies) for replies in (before, after)]
        sides = [[_count(one) for one in side] for side in scores]
        missing = blocked(one for side in scores for task in side for one in task)
        places = [
            place
            for place in range(len(self.cases))
            if sides[0][place] is not None and sides[1][place] is not None
        ]
        dropped = Counter(
            {"the programs could not be run": len(self.cases) - len(places)}
            if len(places) < len(self.cases)
            else {}
        )
        if not places:
            return SuiteMeasures(None, dropped=dropped, blocked=missing)

        def measure(level: float, k: int = self.config.pass_at) -> Measure:
            values = [
                [pass_at(*count, k) for place in places if (count := side[place])] for side in sides
            ]
            return compare.measure(
                f"pass@{k}",
                values[0],
                values[1],
                [self.cases[place].group for place in places],
                level,
            )

        more = (measure(self.config.level, 1),) if self.config.pass_at > 1 else ()
        return SuiteMeasures(measure, more, judges=(RUNS,), dropped=dropped, blocked=missing)

    def _scores(self, replies: Replies) -> list[list[Score]]:
        """Of the programs of each task."""
        flat = [
            (case, one.text)
            for case, answers in zip(self.cases, replies, strict=True)
            for one in answers
        ]
        scores = iter(
            score([case for case, _ in flat], [text for _, text in flat], self.material.checkers)
        )
        return [[next(scores) for _ in answers] for answers in replies]


def _count(scores: list[Score]) -> tuple[int, int] | None:
    """(programs, how many passed); None where one could not be judged."""
    values = (
        0.0 if one.status in (Status.FAILED, Status.NOT_APPLICABLE) else one.value for one in scores
    )
    known = [value for value in values if value is not None]
    return (
        (len(known), sum(value == 1 for value in known))
        if len(known) == len(scores) and known
        else None
    )


def pass_at(n: int, passed: int, k: int) -> float:
    """The chance that one of k programs passes, when `passed` of n did.

    >>> pass_at(5, 1, 1), pass_at(5, 5, 3)
    (0.2, 1.0)
    """
    return 1 - comb(n - passed, k) / comb(n, k)
