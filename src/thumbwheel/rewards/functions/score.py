"""`score`: the raters' newest scores of this very answer, as positions on their scales, the mean by weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thumbwheel.core.config import Config
from thumbwheel.rewards.function import Case, RewardFunction, Score, Status
from thumbwheel.rewards.reading import of_kinds, value_of
from thumbwheel.rewards.types import LabelConfig


class GivenScoreConfig(Config):
    """`score` has no settings: a score brings its scale."""


class GivenScore(RewardFunction[GivenScoreConfig]):
    """See the module."""

    Config = GivenScoreConfig
    reads = frozenset({"feedback"})

    def inputs(self, case: Case) -> Mapping[str, Any]:
        """The scores alone: other feedback changes nothing here."""
        return {"feedback": of_kinds(case.feedback, "score")}

    def judge(self, case: Case) -> Score:
        """From 0, the worst of the scale, to 1, the best; evidence: the mean on the raters' own scale, and who was counted."""
        found = value_of(of_kinds(case.feedback, "score"), LabelConfig(), ("score",))
        if found is None:
            return Score.none(Status.NOT_APPLICABLE, "nobody gave a score")
        return Score(found.unit, evidence={"score": found.raw, "scale": list(found.scale), "feedback_ids": list(found.feedback_ids)})
