"""`rating` and `score`: the raters' newest ones of this very answer, as positions on their scales,
the mean by weight; of people, where one of them gave one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from thumbwheel.core.config import Config
from thumbwheel.rewards.aggregate import mean_value, of_kinds, people_first
from thumbwheel.rewards.function import Case, JudgementStatus, RewardFunction, Score
from thumbwheel.rewards.types import LabelConfig


class OnAScale(Config):
    """No settings: a rating brings its scale."""


class Rating(RewardFunction[OnAScale]):
    Config = OnAScale
    version = 2
    reads = frozenset({"feedback"})
    kind: ClassVar[str] = "rating"

    def inputs(self, case: Case) -> Mapping[str, Any]:
        """Return the feedback of this kind alone: other feedback changes nothing here."""
        return {"feedback": of_kinds(case.feedback, self.kind)}

    def judge(self, case: Case) -> Score:
        """Return a score from 0, the worst of the scale, to 1, the best; evidence: the mean on the
        raters' own scale, and the ids of the feedback counted."""
        mean = mean_value(
            people_first(of_kinds(case.feedback, self.kind)), LabelConfig(), (self.kind,)
        )
        if mean is None:
            return Score.none(JudgementStatus.NOT_APPLICABLE, f"nobody gave a {self.kind}")
        return Score(
            mean.unit,
            evidence={
                self.kind: mean.raw,
                "scale": list(mean.scale),
                "feedback_ids": list(mean.feedback_ids),
            },
        )


class GivenScore(Rating):
    """The same of scores."""

    kind = "score"
