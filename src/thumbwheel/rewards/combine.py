"""Combines component scores into one reward: components, weights, and the treatment of missing
values.

The reward is the weighted mean of the components that are `ok`; all others leave the denominator.
Where `decision` has a value, it already contains `thumb`, `outcome` and `score`: these leave the
mean too, because one click of a person counts once.

The preset `isaa` keeps the arithmetic of the system that it comes from: a missing value counts as a
middle (NEUTRAL) and a failure as 0, so a faultless plain answer cannot reach the threshold of a
good one. `ocd` is one component, `decision`, in its old arithmetic. To add a preset: a line in
PRESETS. Fresh answers in training are combined by the same mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, field_validator

from thumbwheel.core import ids
from thumbwheel.core.config import Config
from thumbwheel.core.plugins import nearest
from thumbwheel.rewards.function import Score, Status
from thumbwheel.rewards.functions import FUNCTIONS

CHECKER = "checker"
"""The component that judges by what the trace's own case names."""
DECISION = "decision"
IN_DECISION = frozenset({"thumb", "outcome", "score", "edit_distance"})
"""Functions that judge by the same statements as `decision`."""
Arithmetic = Literal["applicable", "isaa"]
NEUTRAL: Mapping[str, float] = {"efficiency": 1.0, "format_compliance": 1.0}
"""What a component without a value counts as in the arithmetic of isaa, where it is not 0.5:
nothing spent was the best."""


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


def _weights(
    weights: Mapping[str, float], settings: Mapping[str, dict[str, Any]] | None = None
) -> dict[str, ComponentConfig]:
    return {
        name: ComponentConfig(weight=weight, settings=(settings or {}).get(name, {}))
        for name, weight in weights.items()
    }


PRESETS: Mapping[str, tuple[Arithmetic, Mapping[str, ComponentConfig]]] = {
    "default": (
        "applicable",
        _weights(
            {
                CHECKER: 2.0,
                "thumb": 1.0,
                "rating": 1.0,
                "score": 1.0,
                "outcome": 1.0,
                "edit_distance": 1.0,
                "decision": 1.0,
            },
        ),
    ),
    "isaa": (
        "isaa",
        _weights(
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
    ),
    "ocd": ("applicable", _weights({"decision": 1.0}, {"decision": {"compatible": True}})),
    "none": ("applicable", {}),
}


class RewardConfig(Config):
    """What the reward of an agent's answers is made of."""

    preset: str = "default"
    """Where to start from: default (the checker of a case, and what people said), isaa, ocd, or
    none."""
    components: dict[str, ComponentConfig] = Field(default_factory=dict)
    """Added to those of the preset; of one that the preset has, only what is set here changes."""
    checkers: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Settings of functions that cases name as their checker, as {judge: {url:
    "http://127.0.0.1:11434/v1", model: qwen3}}. A case may itself bring only what the function
    declares harmless; addresses, keys, paths, limits and trust are set here."""
    arithmetic: Arithmetic | None = None
    """applicable: what has no value leaves the mean; isaa: it counts as a middle, and a failure as
    0. Unset: the preset's own."""
    good_from: float = 0.6
    """A reward from this on is called good."""

    @field_validator("preset")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in PRESETS:
            raise ValueError(f"known are {', '.join(PRESETS)}.{nearest(name, PRESETS)}")
        return name

    @field_validator("checkers")
    @classmethod
    def _installed(cls, checkers: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for name in checkers:
            if name not in FUNCTIONS.names():
                raise ValueError(
                    f"there is no reward function {name!r}.{nearest(name, FUNCTIONS.names())}"
                )
        return checkers

    def parts(self) -> dict[str, ComponentConfig]:
        """Every component that is to be run, by name."""
        return merged(PRESETS[self.preset][1], self.components)

    def combine(self, scores: Mapping[str, Score]) -> float | None:
        """The reward of these components; None where nothing has a value."""
        return self.combiner()(scores)

    def combiner(self) -> Callable[[Mapping[str, Score]], float | None]:
        """`combine` for many: what the settings come to is found out once."""
        counting = ComponentValues(self)
        return lambda scores: weighted_mean(counting.values(scores), counting.weights)

    def fingerprint(self) -> str:
        """Of all that turns scores into a reward."""
        parts = {
            name: [part.function or name, part.weight, part.settings]
            for name, part in self.parts().items()
        }
        checkers = [self.checkers] if self.checkers else []
        return ids.fingerprint([parts, self.arithmetic or PRESETS[self.preset][0], *checkers])


class ComponentValues:
    """With which value each component enters the mean, by the settings of an agent."""

    def __init__(self, config: RewardConfig) -> None:
        parts = config.parts()
        functions = {name: part.function or name for name, part in parts.items()}
        self.arithmetic: Arithmetic = config.arithmetic or PRESETS[config.preset][0]
        self.weights = {name: part.weight for name, part in parts.items()}
        self._decisions = [
            name for name in parts if functions[name] == DECISION and self.weights[name]
        ]
        self._in_decision = frozenset(name for name in parts if functions[name] in IN_DECISION)

    def values(self, scores: Mapping[str, Score]) -> dict[str, float | None]:
        """Component -> its value in the mean, None where it has no part in it; components that the
        settings do not have are left out."""
        left_out = self.left_out(scores)
        return {
            name: None if name in left_out else counted_value(name, score, self.arithmetic)
            for name, score in scores.items()
            if name in self.weights
        }

    def left_out(self, scores: Mapping[str, Score]) -> frozenset[str]:
        """Components that leave the mean because a decision has a value, in which their statements
        count already."""
        decided = any(name in scores and scores[name].value is not None for name in self._decisions)
        return self._in_decision if decided else frozenset()


class RewardsConfig(RewardConfig):
    """The section `rewards`: for all agents, and in `agents` what differs for one."""

    agents: dict[str, RewardConfig] = Field(default_factory=dict)
    """agent -> its own settings, in place of those above; of a component, only what is set there
    changes, and a function under `checkers` has the settings that stand there."""

    def of(self, agent: str) -> RewardConfig:
        """The settings of `agent`."""
        agent_config = self.agents.get(agent, RewardConfig())
        changed = {name: getattr(agent_config, name) for name in agent_config.model_fields_set}
        changed["components"] = merged(self.components, agent_config.components)
        changed["checkers"] = {**self.checkers, **agent_config.checkers}
        return RewardConfig(
            **({name: getattr(self, name) for name in RewardConfig.model_fields} | changed)
        )


def merged(
    low: Mapping[str, ComponentConfig], high: Mapping[str, ComponentConfig]
) -> dict[str, ComponentConfig]:
    """The components of both; for one that both have, the settings made in `high` win."""
    components = {**low, **high}
    for name, component in high.items():
        if name in low:
            changed = {key: getattr(component, key) for key in component.model_fields_set}
            components[name] = low[name].model_copy(update=changed)
    return components


@dataclass(frozen=True)
class Combined:
    """The reward of one answer and what it is made of: component -> score. `value` is None where
    nothing applies."""

    target_id: str
    value: float | None
    scores: Mapping[str, Score]

    @property
    def statuses(self) -> dict[str, str]:
        """Component -> status."""
        return {name: str(score.status) for name, score in self.scores.items()}


def counted_value(name: str, score: Score, arithmetic: Arithmetic) -> float | None:
    """The value with which a score enters the mean; None where it leaves the denominator."""
    if score.value is not None or arithmetic == "applicable":
        return score.value
    return 0.0 if score.status is Status.FAILED else NEUTRAL.get(name, 0.5)


def weighted_mean(values: Mapping[str, float | None], weights: Mapping[str, float]) -> float | None:
    """The mean of the values that are there, by weight; None where none has a weight above 0.

    >>> weighted_mean({"a": 1.0, "b": None, "c": 0.0}, {"a": 3.0, "b": 5.0, "c": 1.0})
    0.75
    """
    present = {name: value for name, value in values.items() if value is not None}
    total = math.fsum(weights[name] for name in present)
    if not total:
        return None
    return math.fsum(value * weights[name] for name, value in present.items()) / total


def group_normalised(rewards: Sequence[float | None], ddof: int = 0) -> list[float | None]:
    """Each reward less the mean of its group, over the group's standard deviation (n - ddof in the
    denominator; 0: of a population).

    An answer without a reward has no advantage, and is not counted. In a group without variance, or
    of one, all advantages are 0.

    >>> [round(value, 4) for value in group_normalised([1.0, 2.0, 3.0])]
    [-1.2247, 0.0, 1.2247]
    """
    present = [reward for reward in rewards if reward is not None]
    mean = math.fsum(present) / len(present) if present else 0.0
    deviation = 0.0
    if len(present) > ddof:
        squares = math.fsum((reward - mean) ** 2 for reward in present)
        deviation = math.sqrt(squares / (len(present) - ddof))
    advantages: list[float | None] = []
    for reward in rewards:
        if reward is None:
            advantages.append(None)
        elif math.isclose(deviation, 0.0, abs_tol=1e-8):
            advantages.append(0.0)
        else:
            advantages.append((reward - mean) / deviation)
    return advantages
