"""`rating`: the raters' newest ratings of this very answer, as positions on their scales, the mean by weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thumbwheel.core.config import Config
from thumbwheel.rewards.function import Case, RewardFunction, Score, Status
from thumbwheel.rewards.reading import of_kinds, value_of
from thumbwheel.rewards.types import LabelConfig


class RatingConfig(Config):
    """`rating` has no settings: a rating brings its scale."""


class Rating(RewardFunction[RatingConfig]):
    """See the module."""

    Config = RatingConfig
    reads = frozenset({"feedback"})

    def inputs(self, case: Case) -> Mapping[str, Any]:
        """The ratings alone: other feedback changes nothing here."""
        return {"feedback": of_kinds(case.feedback, "rating")}

    def judge(self, case: Case) -> Score:
        """From 0, the worst of the scale, to 1, the best; evidence: the mean on the raters' own scale, and who was counted."""
        found = value_of(of_kinds(case.feedback, "rating"), LabelConfig(), ("rating",))
        if found is None:
            return Score.none(Status.NOT_APPLICABLE, "nobody gave a rating")
        return Score(found.unit, evidence={"rating": found.raw, "scale": list(found.scale), "feedback_ids": list(found.feedback_ids)})
