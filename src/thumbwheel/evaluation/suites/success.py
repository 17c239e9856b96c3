"""`success`: fresh greedy answers on the held-out cases, judged by their checkers. The primary
measure wherever there are cases."""

from __future__ import annotations

from typing import ClassVar

from thumbwheel.evaluation import compare
from thumbwheel.evaluation.compare import Pair
from thumbwheel.evaluation.measure import blocked, checkers, judge, paired, unjudged
from thumbwheel.evaluation.secondary_tests import opinions
from thumbwheel.evaluation.suite import Replies, Suite, SuiteMeasures
from thumbwheel.evaluation.types import SUCCESS, Ask
from thumbwheel.rewards.checker import checker_of


class Success(Suite):
    """See the module."""

    name: ClassVar[str] = "success"
    default: ClassVar[bool] = True
    of_cases: ClassVar[bool] = True

    def unfit(self) -> str:
        """Without cases."""
        return "" if self.material.cases else "there is no held-out case"

    def content(self) -> list[str]:
        """The checkers, and those that are not there: with other ones the same cases give another
        result."""
        return checkers(self.material.cases, self.material.checkers)

    def asks(self) -> list[Ask]:
        """The prompt of each case."""
        return [Ask(case.prompt, self.config.max_new_tokens) for case in self.material.cases]

    def outcome(self, before: Replies, after: Replies) -> SuiteMeasures:
        """With slices, the most changed answers, and the guards on how answers are made."""
        cases = self.material.cases
        owner = self.material.checkers
        first, second = judge(cases, before, owner), judge(cases, after, owner)
        places = list(paired(first, second))
        dropped = unjudged(first, second, {place for place, *_ in places})
        missing = blocked([*first, *second])
        pairs = [Pair(cases[place], one, other) for place, one, other in places]
        if not pairs:
            return SuiteMeasures(None, dropped=dropped, blocked=missing)
        texts = (
            [first[place].text for place, *_ in places],
            [second[place].text for place, *_ in places],
        )
        return SuiteMeasures(
            lambda level: compare.success(SUCCESS, pairs, level),
            slices=compare.slices(pairs, self.config.level),
            guards=compare.generation_guards(
                first, second, [case.group for case in cases], self.config.level
            ),
            examples=compare.most_changed(pairs, *texts, self.config.examples),
            details={"second_opinions": opinions(pairs, self.config.level)},
            judges=tuple(
                sorted({pair.case.checker or checker_of(pair.case.reference) for pair in pairs})
            ),
            dropped=dropped,
            blocked=missing,
        )
