"""`known_place`: the answer names a place that the kennel has."""

from __future__ import annotations

from typing import ClassVar

from thumbwheel.core.config import Config
from thumbwheel.rewards.function import Case, JudgementStatus, RewardFunction, Score


class KnownPlaceConfig(Config):
    """Settings of `known_place`."""

    places: tuple[str, ...] = ("den", "yard")
    """Any of them is a known place."""


class KnownPlace(RewardFunction[KnownPlaceConfig]):
    """1 with a known place, 0 without; an empty answer is neither."""

    Config = KnownPlaceConfig
    case_settings: ClassVar[frozenset[str]] = frozenset({"places"})
    reads: ClassVar[frozenset[str]] = frozenset({"text"})

    def judge(self, case: Case) -> Score:
        """The score of one answer."""
        if not case.text.strip():
            return Score.none(JudgementStatus.NOT_APPLICABLE, "there is no text")
        named = [place for place in self.config.places if place in case.text]
        return Score(float(bool(named)), evidence={"named": named})
