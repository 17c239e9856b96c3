"""`code`: programs are drawn for tasks with tests and run in the sandbox. The measure is pass@k:
the chance that one of k programs passes.

From n programs a task, of which c passed, pass@k is estimated as 1 - C(n - c, k) / C(n, k), which
has no bias (Chen et al. 2021). Where it is not safe to run code, nothing is measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import comb
from typing import ClassVar

from thumbwheel.evaluation import compare
from thumbwheel.evaluation.measure import blocked, score
from thumbwheel.evaluation.suite import Replies, Suite, SuiteMeasures
from thumbwheel.evaluation.types import Ask, HeldOutCase, Measure
from thumbwheel.rewards.function import JudgementStatus, Score

CHECKER = "code_execution"


class Code(Suite):
    name: ClassVar[str] = "code"
    of_cases: ClassVar[bool] = True

    def unfit(self) -> str:
        k, samples = self.config.pass_at, self.config.samples
        if k > samples:
            return f"pass@{k} cannot be estimated from {samples} samples"
        return "" if self.cases else "no held-out case has tests (checker code_execution)"

    @cached_property
    def cases(self) -> list[HeldOutCase]:
        """Cases whose answers are run."""
        return [case for case in self.context.cases if case.checker == CHECKER]

    def asks(self) -> list[Ask]:
        """Ask for `samples` programs per task; a single program is drawn greedily."""
        config = self.config
        temperature = config.temperature if config.samples > 1 else 0.0
        return [
            Ask(case.prompt, config.max_new_tokens, config.samples, temperature)
            for case in self.cases
        ]

    def outcome(self, before: Replies, after: Replies) -> SuiteMeasures:
        """Measure pass@k first; if k is more than 1, also pass@1."""
        scores_before, scores_after = self._scores(before), self._scores(after)
        counts = []
        blocked_reasons = Counter[str]()
        for case, first, second in zip(self.cases, scores_before, scores_after, strict=True):
            blocked_reasons += blocked([*first, *second])
            passed_before, passed_after = _passed(first), _passed(second)
            if passed_before is not None and passed_after is not None:
                counts.append(
                    _TaskCount(case.group, len(first), passed_before, len(second), passed_after)
                )
        dropped = Counter({"the programs could not be run": len(self.cases) - len(counts)})
        dropped = +dropped  # without zeros
        if not counts:
            return SuiteMeasures(None, dropped=dropped, blocked=blocked_reasons)

        def measure(level: float, k: int = self.config.pass_at) -> Measure:
            values_before = [pass_at(task.n_before, task.passed_before, k) for task in counts]
            values_after = [pass_at(task.n_after, task.passed_after, k) for task in counts]
            groups = [task.group for task in counts]
            return compare.measure(f"pass@{k}", values_before, values_after, groups, level)

        more = (measure(self.config.level, 1),) if self.config.pass_at > 1 else ()
        return SuiteMeasures(
            measure, more, judges=(CHECKER,), dropped=dropped, blocked=blocked_reasons
        )

    def _scores(self, replies: Replies) -> list[list[Score]]:
        """Return the scores of the programs of each task; all programs are run together."""
        cases = []
        programs = []
        for case, answers in zip(self.cases, replies, strict=True):
            for answer in answers:
                cases.append(case)
                programs.append(answer.text)
        scores = score(cases, programs, self.context.checkers, self.context.run_programs)
        by_task = []
        start = 0
        for answers in replies:
            by_task.append(scores[start : start + len(answers)])
            start += len(answers)
        return by_task


@dataclass(frozen=True)
class _TaskCount:
    """Programs of one task, and how many passed."""

    group: str
    n_before: int
    passed_before: int
    n_after: int
    passed_after: int


def _passed(scores: Sequence[Score]) -> int | None:
    """Return how many programs passed; None if one could not be judged, or there is none."""
    passed = 0
    for program in scores:
        fails = program.status in (JudgementStatus.FAILED, JudgementStatus.NOT_APPLICABLE)
        if program.value is None and not fails:
            return None
        passed += not fails and program.value == 1
    return passed if scores else None


def pass_at(n: int, passed: int, k: int) -> float:
    """Return the chance that one of k programs passes, if `passed` of n did.

    >>> pass_at(4, 1, 1), pass_at(5, 5, 3)
    (0.25, 1.0)
    """
    return 1 - comb(n - passed, k) / comb(n, k)
