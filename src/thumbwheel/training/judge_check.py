"""Whether a reward model knows more about people's judgements than the model that is to learn from
it.

A model's own log-probability judges too: answers that it is sure of are right more often. A policy
that follows a reward model which ranks worse than that unlearns what it knew. So before the first
step both rank the same recorded answers of the dev split, those that people called good above those
that they called bad.

Pairs are no part of it: a model that learned from pairs compares answers to one prompt, and its
scores of different prompts have no common zero.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from thumbwheel.core import log
from thumbwheel.engine.prompt import TargetText
from thumbwheel.engine.tree import Branch, Example
from thumbwheel.training.algorithm import Algorithm, DropRow, Row, fitted

if TYPE_CHECKING:
    from thumbwheel.training.assemble import Assembly

FEWEST = 50
"""Judged answers from which on a ranking is compared; the standard error of an area is about 0.08
then."""


@dataclass(frozen=True)
class JudgeCheck:
    """How well `answers` judged answers are ranked: the chance that a good one stands above a bad
    one (area under the ROC curve), by the reward model and by the base's log-probability."""

    answers: int
    reward_model: float
    base: float

    @property
    def refusal(self) -> str | None:
        """Why the reward model cannot teach this base; None where it can."""
        if self.reward_model > self.base:
            return None
        return (
            "the reward model judges no better than the base it is to teach: of "
            f"{self.answers} judged dev answers it ranks good above bad "
            f"{self.reward_model:.0%} of the time, the base's own probability {self.base:.0%}"
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def check_judge(assembly: Assembly, rows: Iterable[Row]) -> JudgeCheck | None:
    """Compare the reward model with the base on `rows`, judged answers without corrections; return
    None if no reward model judges, it only ranks pairs, or there are too few answers or only one
    kind."""
    from thumbwheel.engine.reward_model import RewardInput
    from thumbwheel.stats.rates import ranking_area

    if isinstance(assembly.method, Algorithm):
        return None  # it learns from recorded answers, which nobody judges
    from thumbwheel.training.online_step import OnlineRunner

    runner = assembly.runner
    if not isinstance(runner, OnlineRunner) or runner.reward_model is None:
        return None
    if runner.reward_model.card.loss_type == "bradley_terry":
        return None

    # Answers that both can read.
    judged = [row for row in rows if row["origin"] != "correction"]
    inputs = [
        RewardInput(row["prompt"], row["completion"], row["finish_reason"], row["tools"])
        for row in judged
    ]
    examples: list[Example] = []
    scores: list[float] = []
    good: list[bool] = []
    for row, score in zip(judged, runner.reward_model.score(inputs), strict=True):
        example = _example(row, assembly)
        if example is not None and not math.isnan(score):
            examples.append(example)
            scores.append(score)
            good.append(row["label"])

    by_reward_model = ranking_area(scores, good)
    if len(good) < FEWEST or by_reward_model is None:
        log.say(
            f"{len(good)} dev answers have a judgement: too few, or of one kind, to tell whether "
            "the reward model knows more than the base"
        )
        return None
    by_base = ranking_area(runner.base_logps(examples), good)
    assert by_base is not None  # noqa: S101 - the same two classes
    return JudgeCheck(len(good), by_reward_model, by_base)


def _example(row: Row, assembly: Assembly) -> Example | None:
    """Return the tokens of a judged answer, or None if it does not fit."""
    answer = TargetText(row["completion"], row["finish_reason"])
    try:
        (tokens,) = fitted(
            row, [answer], assembly.builder, assembly.config.max_length, Counter[str]()
        )
    except DropRow:
        return None
    return Example(tokens.prompt_ids, (Branch(tokens.completion_ids),), str(row["group"]))
