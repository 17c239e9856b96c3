"""The preset `ocd` of the reward: the function `decision` alone, in its old arithmetic, which may
leave 0..1.
"""

from __future__ import annotations

from thumbwheel.rewards.presets import RewardPreset, weighted_components

PRESET = RewardPreset(
    weighted_components({"decision": 1.0}, {"decision": {"compatible": True}}),
    leaves_unit_interval=True,
)
