"""Presets of the reward: the components and weights that an agent's reward starts from, and what a
component without a value counts as.

To add a preset: a `RewardPreset` and a line in PRESETS, or an entry point of its group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from thumbwheel.core.config import Config
from thumbwheel.core.plugins import VariantTable
from thumbwheel.rewards.function import Score

CHECKER = "checker"
"""The component that judges by what the trace's own case names."""
Arithmetic = Callable[[str, Score], float | None]
"""(name of a component, its score) -> its value in the mean, None for a score that leaves it."""


class ComponentConfig(Config):
    """One component of the reward."""

    weight: float = Field(default=1.0, ge=0)
    """Its part in the weighted mean; 0 keeps it out of the reward, and recorded."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of the function."""
    function: str | None = None
    """The reward function, or `checker` (what the trace's case names); where none is named, the one
    called like the component."""
    timeout: float = Field(default=60.0, gt=0)
    """Seconds for one answer; what takes longer is a failure."""


@dataclass(frozen=True)
class RewardPreset:
    """Where the reward of an agent starts from."""

    components: Mapping[str, ComponentConfig]
    arithmetic: str = "applicable"
    leaves_unit_interval: bool = False
    """Whether its rewards may lie below 0 or above 1."""


def weighted_components(
    weights: Mapping[str, float], settings: Mapping[str, dict[str, Any]] | None = None
) -> dict[str, ComponentConfig]:
    """Return components by name, with these weights and the settings of some of them."""
    components = {}
    for name, weight in weights.items():
        own_settings = (settings or {}).get(name, {})
        components[name] = ComponentConfig(weight=weight, settings=own_settings)
    return components


def applicable(name: str, score: Score) -> float | None:
    """Return the score's value; a component without one leaves the denominator."""
    return score.value


DEFAULT = RewardPreset(
    weighted_components(
        {
            CHECKER: 2.0,
            "thumb": 1.0,
            "rating": 1.0,
            "score": 1.0,
            "outcome": 1.0,
            "edit_distance": 1.0,
            "decision": 1.0,
        }
    )
)
"""The checker of a case, and what people said."""
NONE = RewardPreset({})

PRESETS: VariantTable[RewardPreset] = VariantTable(
    "preset",
    "thumbwheel.reward_presets",
    {
        "default": "thumbwheel.rewards.presets:DEFAULT",
        "none": "thumbwheel.rewards.presets:NONE",
    },
)
ARITHMETICS: VariantTable[Arithmetic] = VariantTable(
    "arithmetic",
    "thumbwheel.reward_arithmetics",
    {"applicable": "thumbwheel.rewards.presets:applicable"},
)
