"""Combines component scores into one reward: components, weights, and the treatment of missing
values.

The reward is the weighted mean of the components that are `ok`; all others leave the denominator.
Where a function that `replaces` others has a value, these leave the mean too, because one click of
a person counts once. A preset may bring another arithmetic (`presets`). Fresh answers in training
are combined by the same mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field, field_validator

from thumbwheel.core import ids
from thumbwheel.core.config import Config
from thumbwheel.core.plugins import VariantTable, missing_variant
from thumbwheel.rewards.function import Score
from thumbwheel.rewards.functions import FUNCTIONS
from thumbwheel.rewards.presets import ARITHMETICS, CHECKER, PRESETS, ComponentConfig


class RewardConfig(Config):
    """What the reward of an agent's answers is made of."""

    preset: str = "default"
    """Where to start from: default (the checker of a case, and what people said), none, or a preset
    that a plugin brings."""
    components: dict[str, ComponentConfig] = Field(default_factory=dict)
    """Added to those of the preset; of one that the preset has, only what is set here changes."""
    checkers: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Settings of functions that cases name as their checker, as {judge: {url:
    "http://127.0.0.1:11434/v1", model: qwen3}}. A case may itself bring only what the function
    declares harmless; addresses, keys, paths, limits and trust are set here."""
    arithmetic: str | None = None
    """What a component without a value counts as. applicable: it leaves the mean. Unset: the
    preset's own."""
    good_from: float = 0.6
    """A reward from this on is called good."""

    @field_validator("preset")
    @classmethod
    def _check_preset(cls, name: str) -> str:
        return _known(PRESETS, name)

    @field_validator("arithmetic")
    @classmethod
    def _check_arithmetic(cls, name: str | None) -> str | None:
        return name if name is None else _known(ARITHMETICS, name)

    @field_validator("checkers")
    @classmethod
    def _installed(cls, checkers: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for name in checkers:
            _known(FUNCTIONS, name)
        return checkers

    def parts(self) -> dict[str, ComponentConfig]:
        """Return every component that is to be run, by name. A component of the preset is left out
        if its function comes with an extra that is not installed."""
        preset = PRESETS.get(self.preset).components
        available = {name: part for name, part in preset.items() if not _needs_extra(name, part)}
        return merged(available, self.components)

    @property
    def arithmetic_name(self) -> str:
        """The arithmetic that is set, else the preset's."""
        return self.arithmetic or PRESETS.get(self.preset).arithmetic

    def combine(self, scores: Mapping[str, Score]) -> float | None:
        """Return the reward of these components, or None if none has a value."""
        return self.combiner()(scores)

    def combiner(self) -> Callable[[Mapping[str, Score]], float | None]:
        """Return `combine` for many traces: the settings are resolved once."""
        counting = ComponentValues(self)
        return lambda scores: weighted_mean(counting.values(scores), counting.weights)

    def fingerprint(self) -> str:
        """Return a fingerprint of everything that turns scores into a reward."""
        parts = {
            name: [part.function or name, part.weight, part.settings]
            for name, part in self.parts().items()
        }
        checkers = [self.checkers] if self.checkers else []
        return ids.fingerprint([parts, self.arithmetic_name, *checkers])


class ComponentValues:
    """With which value each component enters the mean, by the settings of an agent."""

    def __init__(self, config: RewardConfig) -> None:
        parts = config.parts()
        functions = {name: part.function or name for name, part in parts.items()}
        self.weights = {name: part.weight for name, part in parts.items()}
        self._arithmetic = ARITHMETICS.get(config.arithmetic_name)
        self._replaced: dict[str, frozenset[str]] = {}
        for name, function in functions.items():
            if not self.weights[name] or function not in FUNCTIONS.names():
                continue
            replaced = FUNCTIONS.get(function).replaces
            others = frozenset(other for other in parts if functions[other] in replaced)
            if others:
                self._replaced[name] = others

    def values(self, scores: Mapping[str, Score]) -> dict[str, float | None]:
        """Return component -> its value in the mean, or None if it is left out of it; components
        that the settings do not have are missing."""
        left_out = self.left_out(scores)
        return {
            name: None if name in left_out else self._arithmetic(name, score)
            for name, score in scores.items()
            if name in self.weights
        }

    def left_out(self, scores: Mapping[str, Score]) -> frozenset[str]:
        """Return the components that leave the mean because another component, which has a value,
        already counts their statements."""
        left_out: frozenset[str] = frozenset()
        for name, others in self._replaced.items():
            if name in scores and scores[name].value is not None:
                left_out |= others
        return left_out


def _needs_extra(name: str, part: ComponentConfig) -> bool:
    function = part.function or name
    is_known = function == CHECKER or function in FUNCTIONS.locations
    return not is_known and missing_variant(FUNCTIONS.kind, FUNCTIONS.group, function) is not None


def _known(table: VariantTable[Any], name: str) -> str:
    if error := table.error_of(name):
        raise ValueError(f"{error.why}. {error.fix}")
    return name


class RewardsConfig(RewardConfig):
    """The section `rewards`: for all agents, and in `agents` what differs for one."""

    agents: dict[str, RewardConfig] = Field(default_factory=dict)
    """agent -> its own settings, in place of those above; of a component, only what is set there
    changes, and a function under `checkers` has the settings that stand there."""

    def of(self, agent: str) -> RewardConfig:
        """Return the settings of `agent`."""
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
    """Return the components of both; for one that both have, the fields set in `high` win."""
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


def weighted_mean(values: Mapping[str, float | None], weights: Mapping[str, float]) -> float | None:
    """Return the mean by weight of the values that are not None, or None if none of them has a
    weight above 0.

    >>> weighted_mean({"a": 1.0, "b": None, "c": 0.0}, {"a": 3.0, "b": 5.0, "c": 1.0})
    0.75
    """
    present = {name: value for name, value in values.items() if value is not None}
    total = math.fsum(weights[name] for name in present)
    if not total:
        return None
    return math.fsum(value * weights[name] for name, value in present.items()) / total


def group_normalised(rewards: Sequence[float | None], ddof: int = 0) -> list[float | None]:
    """Subtract the mean of the group from each reward and divide by the group's standard deviation
    (n - ddof in the denominator; 0: of a population).

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
