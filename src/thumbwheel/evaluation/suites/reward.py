"""`reward`: fresh greedy answers on held-out prompts, scored by the agent's reward functions and by
reward models.

A reward model that the candidate was trained against is marked: it was optimised, and so it is no
evidence.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

from thumbwheel.core import ids
from thumbwheel.evaluation import compare
from thumbwheel.evaluation.measure import blocked
from thumbwheel.evaluation.suite import Replies, Suite, SuiteMeasures
from thumbwheel.evaluation.types import Ask, Measure, ModelAnswer
from thumbwheel.rewards.function import Case as Answered
from thumbwheel.rewards.function import JudgementStatus, Score

MEAN = "mean reward"
NO_ANSWER = ModelAnswer("", "unanswered", None)
UNSCORED = Score.none(JudgementStatus.NOT_APPLICABLE, "this side has no answer")
OPTIMISED = " (trained against it: no evidence)"


@dataclass(frozen=True)
class HeldOutRow:
    """A held-out prompt with what judges an answer to it."""

    prompt: list[dict[str, Any]]
    group: str
    reference: Any = None
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Values:
    """Values of the answers of both responders, one a prompt. `span`: largest minus smallest
    possible value; None where there is no limit."""

    before: Sequence[float | None]
    after: Sequence[float | None]
    span: float | None


class RewardSuite(Suite):
    name: ClassVar[str] = "reward"
    of_cases: ClassVar[bool] = True

    def unfit(self) -> str:
        return "" if self.rows else "no prompt is held out"

    @cached_property
    def rows(self) -> list[HeldOutRow]:
        """Cases, then the prompts of recorded answers, each prompt once. Prompts with tools would
        be answered differently and are left out."""
        rows = []
        for case in self.context.cases:
            metadata = {"checker": case.checker, "checker_config": case.checker_config}
            rows.append(HeldOutRow(case.prompt, case.group, case.reference, metadata))
        without_tools = [answer for answer in self.context.recorded_answers if answer.tools is None]
        rows += [HeldOutRow(answer.prompt, answer.group) for answer in without_tools]
        # The first row of a prompt counts; their order is that of the last rows.
        last_first = {ids.canonical(row.prompt): row for row in reversed(rows)}
        return list(last_first.values())[::-1]

    def asks(self) -> list[Ask]:
        """Ask every prompt."""
        return [Ask(row.prompt, self.config.max_new_tokens) for row in self.rows]

    def outcome(self, before: Replies, after: Replies) -> SuiteMeasures:
        """Measure the mean reward first, then its components, then the scores of reward models."""
        scores_before, scores_after = self._scores(before), self._scores(after)
        values: dict[str, Values] = {}
        judges = []
        blocked_reasons = Counter[str]()
        for component in scores_before:
            both = (*scores_before[component], *scores_after[component])
            blocked_reasons += blocked(both)
            if component and any(score.value is not None for score in both):
                judges.append(component)
            component_before = [score.value for score in scores_before[component]]
            component_after = [score.value for score in scores_after[component]]
            values[component or MEAN] = Values(component_before, component_after, 1.0)
        for name in self.context.reward_models:
            mark = OPTIMISED if name in self.context.optimised else ""
            values[compare.OPINION + name + mark] = self._by_reward_model(name, before, after)

        measures = []
        for name in values:
            measure = self._measure(name, values[name], self.config.level)
            if measure is not None:
                measures.append(measure)
        judged = measures[0].n if measures else 0
        dropped = Counter({"nothing could judge the answer": len(self.rows) - judged})
        dropped = +dropped  # without zeros
        if not measures:
            return SuiteMeasures(None, dropped=dropped, blocked=blocked_reasons)
        main = measures[0].name
        return SuiteMeasures(
            lambda level: self._measure(main, values[main], level) or measures[0],
            tuple(measures[1:]),
            judges=tuple(judges or self.context.reward_models),
            dropped=dropped,
            blocked=blocked_reasons,
        )

    def _scores(self, replies: Replies) -> dict[str, list[Score]]:
        """Return component -> its scores of the answers; "" is the combined reward."""
        answered = []
        for row, reply in zip(self.rows, replies, strict=True):
            answer = _first(reply) or NO_ANSWER
            case = Answered(
                answer.text.strip(),
                row.reference,
                row.prompt,
                finish=answer.finish,
                metadata=row.metadata,
            )
            answered.append(case)
        scores_of = {}
        for component, scores in self.context.rewards(answered).items():
            scores_of[component] = [
                score if reply else UNSCORED for score, reply in zip(scores, replies, strict=True)
            ]
        return scores_of

    def _by_reward_model(self, name: str, before: Replies, after: Replies) -> Values:
        prompts = [row.prompt for row in self.rows]
        answers_before = [_first(reply) or NO_ANSWER for reply in before]
        answers_after = [_first(reply) or NO_ANSWER for reply in after]
        score = self.context.reward_models[name]
        scores_before, scores_after = score(prompts, [answers_before, answers_after])
        return Values(_usable(scores_before, before), _usable(scores_after, after), None)

    def _measure(self, name: str, values: Values, level: float) -> Measure | None:
        """Compare values over the prompts that have both; None if there are none."""
        before = []
        after = []
        groups = []
        for row, first, second in zip(self.rows, values.before, values.after, strict=True):
            if first is not None and second is not None:
                before.append(first)
                after.append(second)
                groups.append(row.group)
        if not groups:
            return None
        bounded = all(0 <= value <= 1 for value in (*before, *after))
        span = values.span if bounded else None
        return compare.measure(name, before, after, groups, level, span)


def _first(reply: Sequence[ModelAnswer]) -> ModelAnswer | None:
    return reply[0] if reply else None


def _usable(scores: Sequence[float], replies: Replies) -> list[float | None]:
    """Return the finite scores of prompts that have an answer; None for the others."""
    return [
        score if reply and math.isfinite(score) else None
        for score, reply in zip(scores, replies, strict=True)
    ]
