"""`polite`: an answer of a support desk greets, thanks or apologises, and does so once."""

from __future__ import annotations

import re

from thumbwheel.core.config import Config
from thumbwheel.rewards.function import Case, JudgementStatus, RewardFunction, Score

WORD = re.compile(r"[a-z']+")


class PoliteConfig(Config):
    """Settings of `polite`."""

    words: tuple[str, ...] = ("hello", "please", "sorry", "thank", "thanks", "welcome")
    """Any of them is polite."""
    most: int = 2
    """More than so many are too much."""


class Polite(RewardFunction[PoliteConfig]):
    """Counts polite words: 1 from one to `most`, 0 without any, one half where there are more."""

    Config = PoliteConfig
    reads = frozenset({"text"})

    def judge(self, case: Case) -> Score:
        """Judge one answer; an empty one is neither polite nor rude."""
        words = WORD.findall(case.text.lower())
        if not words:
            return Score.none(JudgementStatus.NOT_APPLICABLE, "there is no text")
        polite = [word for word in words if word in self.config.words]
        if len(polite) > self.config.most:
            return Score(0.5, evidence={"polite": polite})
        return Score(1.0 if polite else 0.0, evidence={"polite": polite})
