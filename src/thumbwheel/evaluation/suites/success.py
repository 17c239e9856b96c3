"""`success`: fresh greedy answers on the held-out cases, judged by their checkers. The primary
measure wherever there are cases."""

from __future__ import annotations

from typing import ClassVar

from thumbwheel.evaluation import compare
from thumbwheel.evaluation.compare import Pair
from thumbwheel.evaluation.measure import blocked, checkers, judge, paired, unjudged
from thumbwheel.evaluation.secondary_tests import secondary_tests
from thumbwheel.evaluation.suite import Replies, Suite, SuiteMeasures
from thumbwheel.evaluation.types import SUCCESS, Ask
from thumbwheel.rewards.checker import checker_of


class Success(Suite):
    name: ClassVar[str] = "success"
    default: ClassVar[bool] = True
    of_cases: ClassVar[bool] = True

    def unfit(self) -> str:
        return "" if self.context.cases else "there is no held-out case"

    def content(self) -> list[str]:
        """Return the checkers, including the missing ones: with other checkers the same cases give
        another result."""
        return checkers(self.context.cases, self.context.checkers)

    def asks(self) -> list[Ask]:
        """Return the prompt of each case."""
        return [Ask(case.prompt, self.config.max_new_tokens) for case in self.context.cases]

    def outcome(self, before: Replies, after: Replies) -> SuiteMeasures:
        """Measure success, with slices, the most changed answers, and the guards of generation."""
        cases, level = self.context.cases, self.config.level
        judged_before = judge(cases, before, self.context.checkers)
        judged_after = judge(cases, after, self.context.checkers)
        values = list(paired(judged_before, judged_after))
        counted = [value.index for value in values]
        dropped = unjudged(judged_before, judged_after, set(counted))
        blocked_reasons = blocked([*judged_before, *judged_after])
        if not values:
            return SuiteMeasures(None, dropped=dropped, blocked=blocked_reasons)

        pairs = [Pair(cases[value.index], value.before, value.after) for value in values]
        texts_before = [judged_before[index].text for index in counted]
        texts_after = [judged_after[index].text for index in counted]
        groups = [case.group for case in cases]
        judges = {pair.case.checker or checker_of(pair.case.reference) for pair in pairs}
        return SuiteMeasures(
            lambda level: compare.success(SUCCESS, pairs, level),
            slices=compare.slices(pairs, level),
            guards=compare.generation_guards(judged_before, judged_after, groups, level),
            examples=compare.most_changed(pairs, texts_before, texts_after, self.config.examples),
            details={"second_opinions": secondary_tests(pairs, level)},
            judges=tuple(sorted(judges)),
            dropped=dropped,
            blocked=blocked_reasons,
        )
