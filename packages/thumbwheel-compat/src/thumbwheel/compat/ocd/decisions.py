"""Decisions of one agent from the table or a file, their statistics, and their export as lines that
train.

The import source `decisions` reads all of its dialects, and the reward function `decision` says
what each was worth, here as over HTTP and in the ledger: the stored reward, unless a person or an
outcome spoke later. A decision that is on several lines is returned once: the line with the latest
feedback counts. No default filter drops the worst decisions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from thumbwheel.compat.ocd.leading_goals import instant
from thumbwheel.compat.ocd.records import DecisionRecord
from thumbwheel.compat.ocd.rewards import reward_of_records
from thumbwheel.compat.ocd.source import SOURCE, RecordedDecision, decision_of
from thumbwheel.core import log
from thumbwheel.core.errors import DataError
from thumbwheel.importers.detect import address_of
from thumbwheel.importers.location import path_or_address
from thumbwheel.importers.source import AnyRecord, Line, Refused


def load_training_decisions(
    agent_type: str,
    max_samples: int | None = 1000,
    require_reward: bool = True,
    require_feedback: bool = False,
    min_reward: float | None = None,
    is_training_data: bool | None = True,
    *,
    source: str | Path | None = None,
) -> list[DecisionRecord]:
    """Return the newest `max_samples` (None: all) decisions of an agent. `source` is a file or an
    address (default: DATABASE_URL).

    `require_reward` asks for a reward, stored or computed; `min_reward` leaves out decisions below
    it. `is_training_data` None takes all of them. Raises InputError for an unknown agent and for a
    source that cannot be read.
    """
    decisions = []
    for decision in _decisions(agent_type, source):
        if is_training_data is not None and decision.is_training_data is not is_training_data:
            continue
        if require_reward and decision.reward is None:
            continue
        if require_feedback and decision.user_feedback is None:
            continue
        if min_reward is not None and decision.reward is not None and decision.reward < min_reward:
            continue
        decisions.append(decision)
    decisions.sort(key=lambda decision: _time(decision.created_at), reverse=True)
    return decisions[:max_samples]


def get_training_stats(agent_type: str, *, source: str | Path | None = None) -> dict[str, Any]:
    """Return counts of an agent's decisions, and mean and range of their rewards (None without
    any)."""
    decisions = _decisions(agent_type, source)
    rewards = [decision.reward for decision in decisions if decision.reward is not None]
    judged = [decision for decision in decisions if decision.user_feedback is not None]
    return {
        "total_decisions": len(decisions),
        "decisions_with_reward": len(rewards),
        "decisions_with_feedback": len(judged),
        "avg_reward": fmean(rewards) if rewards else None,
        "min_reward": min(rewards, default=None),
        "max_reward": max(rewards, default=None),
        "training_data_count": sum(decision.is_training_data for decision in decisions),
        "validation_data_count": sum(decision.is_validation_data for decision in decisions),
    }


def export_training_data(
    agent_type: str,
    output_path: str | Path,
    limit: int = 1000,
    min_reward: float | None = None,
    require_feedback: bool = False,
    *,
    source: str | Path | None = None,
) -> dict[str, Any]:
    """Write the decisions that have a reward, stored or computed, as lines of prompt, completion,
    reward, confidence and metadata.

    Returns count, avg_reward, confirmed_count and corrected_count. Raises DataError where there is
    no such decision.
    """
    judged = []
    missing = 0
    decisions = load_training_decisions(agent_type, None, False, require_feedback, source=source)
    for decision in decisions:
        reward = decision.reward
        if reward is None or decision.completion is None:
            missing += 1
        elif min_reward is None or reward >= min_reward:
            judged.append((decision, reward))
    judged = judged[:limit]
    if missing:
        log.say(f"{missing} decisions are left out: they have no reward, or have lost their text")
    if not judged:
        raise DataError(
            f"decisions of {agent_type}",
            "none of them has both a reward and a text",
            "See get_training_stats",
        )

    path = Path(output_path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as stream:
        for decision, reward in judged:
            stream.write(json.dumps(_line(decision, reward), ensure_ascii=False) + "\n")
    return {
        "count": len(judged),
        "avg_reward": fmean([reward for _, reward in judged]),
        "confirmed_count": sum(decision.user_feedback == "CONFIRMED" for decision, _ in judged),
        "corrected_count": sum(decision.user_feedback == "CORRECTED" for decision, _ in judged),
    }


def _decisions(agent_type: str, source: str | Path | None) -> list[DecisionRecord]:
    """Return every decision of an agent once; decisions without an id cannot be joined."""
    by_id: dict[str, DecisionRecord] = {}
    without_id = []
    for record in _read(agent_type, source):
        if record.id is None:
            without_id.append(record)
            continue
        earlier = by_id.get(record.id)
        if earlier is None or _time(record.feedback_at) >= _time(earlier.feedback_at):
            by_id[record.id] = record
    return [*by_id.values(), *without_id]


def _time(text: str | None) -> datetime:
    """Return the time of a column in UTC; the earliest possible time if the column is empty."""
    return instant(text) or datetime.min.replace(tzinfo=UTC)


def _read(agent_type: str, source: str | Path | None) -> Iterator[DecisionRecord]:
    if source:
        location = path_or_address(str(source))
    else:
        location = address_of(
            "decisions", f"decisions of {agent_type} without a source", "Give: source=FILE"
        )
    reader = SOURCE.of_agent(agent_type)
    refused: list[Refused] = []
    now = datetime.now(UTC)
    for item in reader.read(location, lambda position: None):
        if isinstance(item, Refused):
            refused.append(item)
        elif isinstance(item, Line):
            yield _record(decision_of(json.loads(item.text)), item.records, now)
    if refused:
        count = f"{len(refused)} lines are" if len(refused) > 1 else "1 line is"
        log.say(f"{count} no decision, the first for this reason: {refused[0].reason}")


def _record(
    decision: RecordedDecision, records: Sequence[AnyRecord], now: datetime
) -> DecisionRecord:
    columns = decision.columns
    reward, components = reward_of_records(records, now)
    return DecisionRecord(
        id=columns.get("id"),
        agent_type=str(decision.agent),
        state=decision.state,
        action=decision.action,
        reward=reward,
        reward_components=_json(columns.get("rewardComponents")) or components,
        confidence=columns.get("confidence", decision.action.get("confidence")),
        reasoning=columns.get("reasoning") or decision.action.get("reasoning"),
        user_feedback=columns.get("userFeedback"),
        user_correction=_json(columns.get("userCorrection")),
        outcome_metrics=_json(columns.get("outcomeMetrics")),
        item_id=columns.get("itemId"),
        opus_id=columns.get("opusId"),
        model_version=columns.get("modelVersion"),
        created_at=columns.get("createdAt"),
        feedback_at=columns.get("feedbackAt"),
        outcome_observed_at=columns.get("outcomeObservedAt"),
        is_training_data=columns.get("isTrainingData") is not False,
        is_validation_data=columns.get("isValidationData") is True,
        prompt=str(decision.prompt[-1]["content"]),
        completion=decision.answer,
    )


def _json(value: Any) -> Any:
    """Return the value of a JSON column, which an export may have written as text."""
    return json.loads(value) if isinstance(value, str) else value


def _line(decision: DecisionRecord, reward: float) -> dict[str, Any]:
    metadata = {
        "decisionId": decision.id,
        "agentType": decision.agent_type,
        "itemId": decision.item_id,
        "opusId": decision.opus_id,
        "userFeedback": decision.user_feedback,
        "userCorrection": decision.user_correction,
        "feedbackAt": decision.feedback_at,
        "rewardComponents": decision.reward_components,
        "outcomeMetrics": decision.outcome_metrics,
        "outcomeObservedAt": decision.outcome_observed_at,
        "createdAt": decision.created_at,
    }
    return {
        "prompt": decision.prompt,
        "completion": decision.completion,
        "reward": reward,
        "confidence": decision.confidence,
        "metadata": metadata,
    }
