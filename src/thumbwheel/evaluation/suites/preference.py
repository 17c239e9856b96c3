"""`preference`: log-probabilities of recorded answers, response tokens only: does a model rank the
good above the bad?

Pairs where there are any, otherwise labels; by summed log-probability first, then per token. The
likelihood of good answers is a guard, and so is that of the app's own answers that people liked:
what the model could do before, on this agent's traffic.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import ClassVar

from thumbwheel.core import ids
from thumbwheel.evaluation import compare
from thumbwheel.evaluation.compare import AnswerLikelihoods
from thumbwheel.evaluation.suite import Replies, Suite, SuiteMeasures
from thumbwheel.evaluation.types import AskLikelihood, RecordedAnswer

NOTHING_TO_RANK = "the gate split has no pair and not both good and bad answers"


class PreferenceSuite(Suite):
    name: ClassVar[str] = "preference"
    fresh: ClassVar[bool] = False
    default: ClassVar[bool] = True

    def unfit(self) -> str:
        return "" if self.context.recorded_answers else "no recorded answer is held out"

    def cannot_judge(self) -> str:
        """Return why nothing can be ranked, else "": without a pair, and without a good and a bad
        answer, log-probabilities give no measure."""
        unscored = [
            AnswerLikelihoods(answer, 0.0, 0.0, 1) for answer in self.context.recorded_answers
        ]
        return "" if compare.preferences(unscored, self.config.level) else NOTHING_TO_RANK

    @cached_property
    def by_prompt(self) -> list[list[RecordedAnswer]]:
        """The recorded answers of each prompt: a prompt is computed once for all its answers."""
        by_prompt: dict[str, list[RecordedAnswer]] = {}
        for answer in self.context.recorded_answers:
            by_prompt.setdefault(ids.canonical([answer.prompt, answer.tools]), []).append(answer)
        return list(by_prompt.values())

    def asks(self) -> list[AskLikelihood]:
        """Return one question per prompt."""
        asks = []
        for answers in self.by_prompt:
            texts = tuple(answer.text for answer in answers)
            finish_reasons = tuple(answer.finish_reason for answer in answers)
            asks.append(AskLikelihood(answers[0].prompt, texts, answers[0].tools, finish_reasons))
        return asks

    def outcome(self, before: Replies, after: Replies) -> SuiteMeasures:
        """Measure accuracy over pairs, or the area under the curve over labels."""
        scored = []
        dropped = Counter[str]()
        for answers, sums_before, sums_after in zip(self.by_prompt, before, after, strict=True):
            if not sums_before or not sums_after:
                dropped["recorded answer does not fit the model"] += len(answers)
                continue
            for answer, first, second in zip(answers, sums_before, sums_after, strict=True):
                (total_before, tokens), (total_after, _) = first, second
                scored.append(AnswerLikelihoods(answer, total_before, total_after, tokens))
        level = self.config.level
        guards = (compare.nll_guard(scored, level), compare.liked_guard(scored, level))
        measures = compare.preferences(scored, level)
        if not measures:
            return SuiteMeasures(None, guards=guards, dropped=dropped)
        return SuiteMeasures(
            lambda level: compare.preferences(scored, level)[0],
            measures[1:],
            guards=guards,
            dropped=dropped,
        )
