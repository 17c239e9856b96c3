"""`thumb`: the part of the raters, by weight, whose newest thumb about this very answer is up; of
people, where one of them gave one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from thumbwheel.core.config import Config
from thumbwheel.rewards.aggregate import newest_per_speaker, of_kinds, people_first, speaker_of
from thumbwheel.rewards.function import Case, JudgementStatus, RewardFunction, Score


class ThumbConfig(Config):
    """`thumb` has no settings."""


class Thumb(RewardFunction[ThumbConfig]):
    Config = ThumbConfig
    version = 2
    reads = frozenset({"feedback"})

    def inputs(self, case: Case) -> Mapping[str, Any]:
        """Return the thumbs alone: other feedback changes nothing here."""
        return {"feedback": of_kinds(case.feedback, "thumb")}

    def judge(self, case: Case) -> Score:
        """Return a score from 0, all down, to 1, all up; evidence: the number of raters and the ids
        of the feedback counted."""
        heard = people_first(of_kinds(case.feedback, "thumb"))
        latest, torn = newest_per_speaker(heard, speaker_of, lambda statement: statement.value)
        if not latest:
            return Score.none(
                JudgementStatus.NOT_APPLICABLE,
                "each rater gives both thumbs at once" if torn else "nobody gave a thumb",
            )
        up = math.fsum(statement.weight for statement in latest if statement.value is True)
        evidence = {
            "raters": len(latest),
            "feedback_ids": sorted(statement.feedback_id for statement in latest),
        }
        return Score(up / math.fsum(statement.weight for statement in latest), evidence=evidence)
