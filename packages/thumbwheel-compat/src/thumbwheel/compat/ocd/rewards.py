"""The reward of a decision in the arithmetic of the five agents: our reward function `decision`
with `compatible`.

The total lies between -5 and 5. `normalize_reward` keeps their bounds, which are narrower, so that
a total below -2 or above 2 leaves 0..1; `thumbwheel reward run` stays inside by default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from thumbwheel.compat.ocd.decision_function import OLD_BOUND, PARTS, DecisionFunction
from thumbwheel.compat.ocd.records import DecisionRecord
from thumbwheel.core.errors import InputError
from thumbwheel.importers.types import AnyRecord, FeedbackRecord, TraceRecord
from thumbwheel.rewards.function import Case, Score
from thumbwheel.rewards.types import Statement

ITEM = ("swimlane", "priority", "labels")
"""Fields of an action by which its item is filed."""


def reward_of_records(
    records: Sequence[AnyRecord], now: datetime
) -> tuple[float | None, dict[str, dict[str, float]] | None]:
    """Return (reward, components by group and name) of one line's trace and feedback, computed as
    the ledger does; (None, None) if nothing is known. `now` is the time of feedback that has
    none."""
    trace = next(record for record in records if isinstance(record, TraceRecord))
    heard = [record for record in records if isinstance(record, FeedbackRecord)]
    statements = [_statement(number, record, now) for number, record in enumerate(heard)]
    case = Case(trace.output or "", metadata=trace.metadata or {}, feedback=tuple(statements))
    (score,) = DecisionFunction.create({"compatible": True}).score([case])
    if score.value is None:
        return None, None
    return _clamped(score.evidence["total"]), components_by_group(score) or None


def _statement(number: int, record: FeedbackRecord, now: datetime) -> Statement:
    rater = record.rater
    return Statement(
        feedback_id=f"{number:04}",
        kind=record.kind,
        name=record.name,
        value=record.value,
        scale=record.scale.model_dump() if record.scale else None,
        rater=rater.id if rater else "",
        weight=1.0 if rater is None or rater.weight is None else rater.weight,
        at=record.occurred_at or now,
        automatic=rater is not None and rater.kind not in (None, "person"),
        timed=record.occurred_at is not None,
        named=rater is not None,
    )


def components_by_group(score: Score) -> dict[str, dict[str, float]]:
    """Return group -> name -> value of the components that made a score."""
    groups: dict[str, dict[str, float]] = {}
    for path, component in score.evidence.get("components", {}).items():
        group, _, name = path.partition(".")
        groups.setdefault(group, {})[name] = component["value"]
    return groups


def calculate_reward_from_record(record: DecisionRecord) -> float | None:
    """Return the record's reward, else the reward of its components, else the reward by feedback
    and outcome; None if nothing is known."""
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
    function = DecisionFunction.create({"compatible": True})
    (score,) = function.score([Case(record.completion or "", metadata={"decision": decision})])
    return None if score.value is None else _clamped(score.evidence["total"])


def calculate_reward_from_components(agent_type: str, components: Mapping[str, Any]) -> float:
    """Return the weighted sum of components ({group: {name: value}}), within the bounds; a
    component without a weight is ignored. Raises InputError for an unknown agent type."""
    if agent_type not in PARTS:
        raise InputError(
            f"agent type {agent_type!r}",
            "no rewards are known for it",
            f"Known: {', '.join(PARTS)}",
        )
    weights = {name: weight for name, weight, _ in PARTS[agent_type]}
    return _clamped(sum(weights.get(name, 0.0) * value for name, value in _leaves(components)))


def normalize_reward(reward: float, min_reward: float = -2.0, max_reward: float = 2.0) -> float:
    """Return the position of a reward between two bounds, 0 to 1; a reward beyond them lies beyond
    0 or 1."""
    return (reward - min_reward) / (max_reward - min_reward)


def _clamped(total: float) -> float:
    return max(-OLD_BOUND, min(OLD_BOUND, total))


def _leaves(components: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield (group.name, value) of every number."""
    for key, value in components.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield name, float(value)
