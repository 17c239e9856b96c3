"""`reward`: fresh greedy answers on held-out prompts, scored by the agent's own reward functions
and by reward models.

A reward model that the candidate was trained against is shown under that name: it has been
optimised and is no evidence.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

from thumbwheel.core import ids
from thumbwheel.evaluation import compare
from thumbwheel.evaluation.measure import blocked
from thumbwheel.evaluation.suite import Replies, Suite, SuiteMeasures
from thumbwheel.evaluation.types import Answer, Ask, Measure
from thumbwheel.rewards.function import Case as Answered
from thumbwheel.rewards.function import Score, Status

Compared = tuple[Sequence[float | None], Sequence[float | None], float | None]
MEAN = "mean reward"
SILENT = Answer("", "unanswered", None)
UNSCORED = Score.none(Status.NOT_APPLICABLE, "this side has no answer")
OPTIMISED = " (trained against it: no evidence)"


class Row(NamedTuple):
    """A held-out prompt with what judges an answer to it."""

    prompt: list[dict[str, Any]]
    group: str
    reference: Any = None
    metadata: dict[str, Any] = {}  # noqa: RUF012 - never written


class Reward(Suite):
    """See the module."""

    name: ClassVar[str] = "reward"
    of_cases: ClassVar[bool] = True

    def unfit(self) -> str:
        """Without prompts."""
        return "" if self.rows else "no prompt is held out"

    @cached_property
    def rows(self) -> list[Row]:
        """Cases, then the prompts of recorded answers, each once; prompts with tools would be
        answered differently and are left out."""
        cases = self.material.cases
        found = [
            Row(
                one.prompt,
                one.group,
                one.reference,
                {"checker": one.checker, "checker_config": one.checker_config},
            )
            for one in cases
        ]
        found += [Row(one.prompt, one.group) for one in self.material.given if one.tools is None]
        return list({ids.canonical(row.prompt): row for row in reversed(found)}.values())[::-1]

    def asks(self) -> list[Ask]:
        """Every prompt."""
        return [Ask(row.prompt, self.config.max_new_tokens) for row in self.rows]

    def outcome(self, before: Replies, after: Replies) -> SuiteMeasures:
        """The mean reward first, then its components, then what reward models say."""
        first, second = self._scores(before), self._scores(after)
        missing = blocked(
            one for side in (first, second) for scores in side.values() for one in scores
        )
        answers = [[one[0] if one else None for one in replies] for replies in (before, after)]
        values: dict[str, Compared] = {
            name or MEAN: (_values(first[name]), _values(second[name]), 1.0) for name in first
        }
        for name in self.material.opinions:
            mark = OPTIMISED if name in self.material.optimised else ""
            before_, after_ = self._opinion(name, answers)
            values[compare.OPINION + name + mark] = (before_, after_, None)
        measures = [
            found for name in values if (found := self._measure(name, *values[name])) is not None
        ]
        judges = tuple(
            name
            for name in first
            if name and any(one.value is not None for one in (*first[name], *second[name]))
        )
        judges = judges or tuple(self.material.opinions)
        dropped = Counter(
            {"nothing could judge the answer": n}
            if (n := len(self.rows) - (measures[0].n if measures else 0))
            else {}
        )
        if not measures:
            return SuiteMeasures(None, dropped=dropped, blocked=missing)
        main = measures[0].name
        return SuiteMeasures(
            lambda level: self._measure(main, *values[main], level) or measures[0],
            tuple(measures[1:]),
            judges=judges,
            dropped=dropped,
            blocked=missing,
        )

    def _scores(self, replies: Replies) -> dict[str, list[Score]]:
        """component -> its scores of the answers; "" is all of them together."""
        cases = [
            Answered(
                one.text.strip(),
                row.reference,
                row.prompt,
                finish=one.finish,
                metadata=row.metadata,
            )
            for row, (one, *_) in zip(
                self.rows, (reply or (SILENT,) for reply in replies), strict=True
            )
        ]
        return {
            name: [
                score if reply else UNSCORED for score, reply in zip(scores, replies, strict=True)
            ]
            for name, scores in self.material.rewards(cases).items()
        }

    def _opinion(
        self, name: str, answers: Sequence[Sequence[Answer | None]]
    ) -> list[list[float | None]]:
        judge, prompts = self.material.opinions[name], [row.prompt for row in self.rows]
        scores = judge(prompts, [[answer or SILENT for answer in side] for side in answers])
        return [
            [
                value if one is not None and math.isfinite(value) else None
                for value, one in zip(values, side, strict=True)
            ]
            for values, side in zip(scores, answers, strict=True)
        ]

    def _measure(
        self,
        name: str,
        before: Sequence[float | None],
        after: Sequence[float | None],
        span: float | None,
        level: float | None = None,
    ) -> Measure | None:
        """Over the prompts on which both sides have a value; None without any."""
        both = [
            (x, y, row.group)
            for x, y, row in zip(before, after, self.rows, strict=True)
            if x is not None and y is not None
        ]
        if not both:
            return None
        first, second, groups = (list(one) for one in zip(*both, strict=True))
        bounded = span if all(0 <= one <= 1 for one in (*first, *second)) else None
        return compare.measure(name, first, second, groups, level or self.config.level, bounded)


def _values(scores: Sequence[Score]) -> list[float | None]:
    return [one.value for one in scores]
