"""`length`: the answer is as long as it should be: 1 between `least` and `most`, falling to 0 at
nothing and at twice `most`."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from thumbwheel.core.config import Config
from thumbwheel.rewards.function import Case, RewardFunction, Score


class LengthConfig(Config):
    """Settings of `length`."""

    least: int = Field(default=1, ge=0)
    """Shorter answers lose in proportion."""
    most: int = Field(default=400, ge=1)
    """Longer answers lose in proportion, and have 0 from twice this length on."""
    unit: Literal["words", "characters"] = "words"
    """What is counted."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.least > self.most:
            raise ValueError(f"least ({self.least}) is more than most ({self.most})")
        return self


class Length(RewardFunction[LengthConfig]):
    Config = LengthConfig
    case_settings = frozenset({"least", "most", "unit"})
    reads = frozenset({"text"})

    def judge(self, case: Case) -> Score:
        """Return a score between 0 and 1; evidence: the length that was counted."""
        count = len(case.text.split()) if self.config.unit == "words" else len(case.text)
        evidence = {
            "length": count,
            "unit": self.config.unit,
            "least": self.config.least,
            "most": self.config.most,
        }
        if count < self.config.least:
            return Score(count / self.config.least, evidence=evidence)
        return Score(min(1.0, max(0.0, 2 - count / self.config.most)), evidence=evidence)
