"""`efficiency`: how little a run used of three budgets: tokens, tool calls and reasoning steps.

Each part is 1 where nothing was used and 0 at the budget or above; the score is their mean by
weight, over the parts that are known. Tokens that nobody counted are unknown, not zero, and a run
without tool calls or reasoning steps is not praised for that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import Field, model_validator

from thumbwheel.core.config import Config
from thumbwheel.rewards.function import Case, JudgementStatus, RewardFunction, Score


class EfficiencyConfig(Config):
    """Settings of `efficiency`."""

    tokens: int = Field(default=2000, gt=0)
    """Prompt and completion tokens of all model calls together at which that part is 0."""
    calls: int = Field(default=10, gt=0)
    """Tool calls at which that part is 0."""
    steps: int = Field(default=15, gt=0)
    """Reasoning steps at which that part is 0."""
    tokens_weight: float = Field(default=0.4, ge=0)
    """Weight of the tokens."""
    calls_weight: float = Field(default=0.3, ge=0)
    """Weight of the tool calls."""
    steps_weight: float = Field(default=0.3, ge=0)
    """Weight of the reasoning steps."""

    @model_validator(mode="after")
    def _something_counts(self) -> EfficiencyConfig:
        if not self.tokens_weight + self.calls_weight + self.steps_weight:
            raise ValueError("every weight is zero; one must be above")
        return self


class Efficiency(RewardFunction[EfficiencyConfig]):
    Config = EfficiencyConfig
    case_settings = frozenset(
        {
            "calls",
            "calls_weight",
            "steps",
            "steps_weight",
            "tokens",
            "tokens_weight",
        }
    )
    reads = frozenset({"steps"})

    def inputs(self, case: Case) -> Mapping[str, Any]:
        """Return the three amounts."""
        return dict(used(case))

    def judge(self, case: Case) -> Score:
        """Return the weighted mean of the parts that are known; evidence: the amounts used."""
        amounts = used(case)
        parts = [
            (
                getattr(self.config, f"{name}_weight"),
                max(0.0, 1 - amount / getattr(self.config, name)),
            )
            for name, amount in amounts.items()
            if amount is not None and (amount or name == "tokens")
        ]
        total = math.fsum(weight for weight, _ in parts)
        if not total:
            return Score.none(
                JudgementStatus.NOT_APPLICABLE,
                "nobody counted the tokens, and the run has no tool call and no reasoning step",
            )
        return Score(
            min(1.0, math.fsum(weight * value for weight, value in parts) / total),
            evidence={"used": amounts},
        )


def used(case: Case) -> dict[str, int | None]:
    """Return tokens (None unless every model call of the run knows both counts), tool calls and
    reasoning steps."""
    counts: list[int | None] = []
    for step in case.steps:
        if step.kind == "llm":
            counts += (step.prompt_tokens, step.completion_tokens)
    counted = [count for count in counts if count is not None]
    return {
        "tokens": sum(counted) if counts and len(counted) == len(counts) else None,
        "calls": sum(step.kind == "tool" for step in case.steps),
        "steps": sum(step.kind == "reasoning" for step in case.steps),
    }
