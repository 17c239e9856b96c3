"""The preset `isaa` of the reward: six components with the weights and the arithmetic of the
agent's RL pipeline.

There a component without a value counts as a middle value and a failure as 0, so that a faultless
plain answer does not reach the mark of a good one.
"""

from __future__ import annotations

from collections.abc import Mapping

from thumbwheel.rewards.function import JudgementStatus, Score
from thumbwheel.rewards.presets import RewardPreset, weighted_components

MIDDLE = 0.5
NEUTRAL: Mapping[str, float] = {"efficiency": 1.0, "format_compliance": 1.0}
"""What these count as instead of MIDDLE: nothing spent was the best."""

PRESET = RewardPreset(
    weighted_components(
        {
            "code_execution": 2.0,
            "syntax": 1.0,
            "tool_success": 2.0,
            "task_completion": 1.5,
            "efficiency": 0.5,
            "format_compliance": 1.0,
        },
        {"tool_success": {"compatible": True}},
    ),
    arithmetic="isaa",
)


def counted_value(name: str, score: Score) -> float | None:
    """Return the value with which a component enters the mean in the arithmetic `isaa`."""
    if score.value is not None:
        return score.value
    return 0.0 if score.status is JudgementStatus.FAILED else NEUTRAL.get(name, MIDDLE)
