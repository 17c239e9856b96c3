"""`rating` and `score`: the raters' newest ones of this very answer, as positions on their scales,
the mean by weight; of people, where one of them gave one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from thumbwheel.core.config import Config
from thumbwheel.rewards.aggregate import of_kinds, people_first, value_of
from thumbwheel.rewards.function import Case, RewardFunction, Score, Status
from thumbwheel.rewards.types import LabelConfig


class OnAScale(Config):
    """No settings: a rating brings its scale."""


class Rating(RewardFunction[OnAScale]):
    """See the module."""

    Config = OnAScale
    version = 2
    reads = frozenset({"feedback"})
    kind: ClassVar[str] = "rating"

    def inputs(self, case: Case) -> Mapping[str, Any]:
        """Feedback of this kind alone: other feedback changes nothing here."""
        return {"feedback": of_kinds(case.feedback, self.kind)}

    def judge(self, case: Case) -> Score:
        """From 0, the worst of the scale, to 1, the best; evidence: the mean on the raters' own
        scale, and who was counted."""
        found = value_of(
            people_first(of_kinds(case.feedback, self.kind)), LabelConfig(), (self.kind,)
        )
        if found is None:
            return Score.none(Status.NOT_APPLICABLE, f"nobody gave a {self.kind}")
        return Score(
            found.unit,
            evidence={
                self.kind: found.raw,
                "scale": list(found.scale),
                "feedback_ids": list(found.feedback_ids),
            },
        )


class GivenScore(Rating):
    """The same of scores."""

    kind = "score"
