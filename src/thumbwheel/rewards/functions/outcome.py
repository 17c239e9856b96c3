"""`outcome`: what became of it within a declared window, good or bad, saying less the longer it
took.

An outcome counts from the answer on until `window_days` later; where nobody knows when the answer
was given, every outcome counts, and the evidence says so. Without an outcome the score is pending
while the window is open, and does not apply after that: silence is no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pydantic import Field

from thumbwheel.core.config import Config
from thumbwheel.rewards.aggregate import newest_per_speaker, of_kinds, scale_position, speaker_of
from thumbwheel.rewards.function import Case, JudgementStatus, RewardFunction, Score
from thumbwheel.rewards.types import LabelConfig, Statement

DAY = timedelta(days=1)
MIDDLE = 0.5
"""Of an outcome that says neither good nor bad."""


class OutcomeConfig(Config):
    """Settings of `outcome`."""

    names: tuple[str, ...] = ()
    """Outcomes that count; none named: all of them."""
    window_days: float = Field(default=30.0, gt=0, le=36_500)
    """The attribution window: an outcome later than this after the answer is not credited to it."""
    discount: float = Field(default=1.0, gt=0, le=1)
    """What a day of waiting leaves of what an outcome says, good or bad: with 0.9, 1.0 is 0.905
    after two days, and 0.0 is 0.095."""
    bad: tuple[str, ...] = LabelConfig().bad_outcomes
    """Outcomes that are bad when they are true or high."""


class Outcome(RewardFunction[OutcomeConfig]):
    Config = OutcomeConfig
    case_settings = frozenset({"bad", "discount", "names", "window_days"})
    version = 2
    reads = frozenset({"feedback", "occurred_at", "as_of"})

    def inputs(self, case: Case) -> Mapping[str, Any]:
        """Return the outcomes that count, the time of the answer, and whether the window is still
        open."""
        return {
            "feedback": self._counted(case),
            "occurred_at": case.occurred_at,
            "open": self._open(case),
        }

    def judge(self, case: Case) -> Score:
        """Return the mean by weight of the newest value of each outcome, discounted; evidence: each
        of them."""
        latest, _ = newest_per_speaker(
            self._counted(case), speaker_of, lambda outcome: outcome.value
        )
        if not latest:
            days = f"{self.config.window_days:g} days"
            if self._open(case):
                return Score.none(
                    JudgementStatus.PENDING, f"no outcome yet; its window of {days} is open"
                )
            return Score.none(JudgementStatus.NOT_APPLICABLE, f"no outcome within {days}")
        values = [
            MIDDLE
            + (self._value(outcome) - MIDDLE) * self.config.discount ** self._days(case, outcome)
            for outcome in latest
        ]
        parts = [
            {"name": outcome.name, "days": round(self._days(case, outcome), 3), "value": value}
            for outcome, value in zip(latest, values, strict=True)
        ]
        weights = [outcome.weight for outcome in latest]
        evidence = {
            "outcomes": parts,
            "window_days": self.config.window_days,
            "feedback_ids": sorted(outcome.feedback_id for outcome in latest),
        }
        if case.occurred_at is None:
            evidence["window"] = "not applied: nobody knows when the answer was given"
        return Score(
            math.fsum(v * w for v, w in zip(values, weights, strict=True)) / math.fsum(weights),
            evidence=evidence,
        )

    def _counted(self, case: Case) -> tuple[Statement, ...]:
        names, last = {name.casefold() for name in self.config.names}, self.config.window_days
        return tuple(
            outcome
            for outcome in of_kinds(case.feedback, "outcome")
            if (not names or (outcome.name or "").casefold() in names)
            and (isinstance(outcome.value, bool) or scale_position(outcome) is not None)
            and (
                case.occurred_at is None
                or timedelta() <= outcome.at - case.occurred_at <= last * DAY
            )
        )

    def _open(self, case: Case) -> bool:
        dated = case.occurred_at is not None and case.as_of is not None
        return dated and case.as_of < case.occurred_at + self.config.window_days * DAY  # type: ignore[operator]

    def _value(self, outcome: Statement) -> float:
        if isinstance(outcome.value, bool):
            value = float(outcome.value)
        else:
            value, _ = scale_position(outcome) or (0.0, None)
        bad = {name.casefold() for name in self.config.bad}
        return 1 - value if (outcome.name or "").casefold() in bad else value

    @staticmethod
    def _days(case: Case, outcome: Statement) -> float:
        return 0.0 if case.occurred_at is None else (outcome.at - case.occurred_at) / DAY
