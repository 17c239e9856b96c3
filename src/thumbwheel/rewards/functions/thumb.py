"""`thumb`: the part of the raters, by weight, whose newest thumb about this very answer is up; of
people, where one of them gave one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from thumbwheel.core.config import Config
from thumbwheel.rewards.aggregate import newest, of_kinds, people_first, voice
from thumbwheel.rewards.function import Case, RewardFunction, Score, Status


class ThumbConfig(Config):
    """`thumb` has no settings."""


class Thumb(RewardFunction[ThumbConfig]):
    """See the module."""

    Config = ThumbConfig
    version = 2
    reads = frozenset({"feedback"})

    def inputs(self, case: Case) -> Mapping[str, Any]:
        """The thumbs alone: other feedback changes nothing here."""
        return {"feedback": of_kinds(case.feedback, "thumb")}

    def judge(self, case: Case) -> Score:
        """From 0, all down, to 1, all up; evidence: who was counted."""
        heard = people_first(of_kinds(case.feedback, "thumb"))
        latest, torn = newest(heard, voice, lambda one: one.value)
        if not latest:
            return Score.none(
                Status.NOT_APPLICABLE,
                "each rater gives both thumbs at once" if torn else "nobody gave a thumb",
            )
        up = math.fsum(one.weight for one in latest if one.value is True)
        evidence = {
            "raters": len(latest),
            "feedback_ids": sorted(one.feedback_id for one in latest),
        }
        return Score(up / math.fsum(one.weight for one in latest), evidence=evidence)
