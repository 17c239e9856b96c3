"""The reward of a decision in the arithmetic of the five agents: our reward function `decision`
with `compatible`.

The total lies between -5 and 5. `normalize_reward` keeps their bounds, which are narrower, so that
a total below -2 or above 2 leaves 0..1; `thumbwheel reward run` stays inside by default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from thumbwheel.compat.ocd.decision_function import OLD_BOUND, PARTS, Decision
from thumbwheel.compat.ocd.records import DecisionRecord
from thumbwheel.core.errors import InputError
from thumbwheel.rewards.function import Case

ITEM = ("swimlane", "priority", "labels")
"""Fields of an action by which its item is filed."""


def calculate_reward_from_record(record: DecisionRecord) -> float | None:
    """The stored reward, else that of the stored components, else what feedback and outcome say;
    None where nothing is known.
    """
    if record.reward is not None:
        return record.reward
    if record.reward_components:
        return calculate_reward_from_components(record.agent_type, record.reward_components)
    decision = {
        "agent_type": record.agent_type,
        "confidence": record.confidence,
        "item": {key: record.action[key] for key in ITEM if record.action.get(key)},
        "outcome": record.outcome_metrics or {},
        "correction": record.user_correction or {},
        "action": record.action,
        "feedback": record.user_feedback,
    }
    function = Decision.create({"compatible": True})
    (score,) = function.score([Case(record.completion or "", metadata={"decision": decision})])
    return None if score.value is None else _clamped(score.evidence["total"])


def calculate_reward_from_components(agent_type: str, components: Mapping[str, Any]) -> float:
    """The weighted sum of components ({group: {name: value}}); a component without a weight has no
    part in it.
    """
    if agent_type not in PARTS:
        raise InputError(
            f"agent type {agent_type!r}",
            "no rewards are known for it",
            f"Known: {', '.join(PARTS)}",
        )
    weights = {name: weight for name, weight, _ in PARTS[agent_type]}
    return _clamped(sum(weights.get(name, 0.0) * value for name, value in _leaves(components)))


def normalize_reward(reward: float, min_reward: float = -2.0, max_reward: float = 2.0) -> float:
    """Where a reward lies between two bounds, 0 to 1; a reward beyond them lies beyond 0 or 1."""
    return (reward - min_reward) / (max_reward - min_reward)


def _clamped(total: float) -> float:
    return max(-OLD_BOUND, min(OLD_BOUND, total))


def _leaves(components: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """(group.name, value) of every number."""
    for key, value in components.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield name, float(value)
