"""Decisions that are stored in the home, as rows of the original's table, with the reward that they
have now: what they were worth is computed when it is read, so it is never out of date.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from thumbwheel.capture import trace_queries
from thumbwheel.compat.ocd.decision_function import METRICS, OLD_BOUND
from thumbwheel.compat.ocd.decision_function import DecisionFunction as DecisionReward
from thumbwheel.compat.ocd.records import DecisionRecord
from thumbwheel.compat.ocd.rewards import components_by_group
from thumbwheel.compat.ocd.source import WORDS
from thumbwheel.compat.ocd.spelling import declared
from thumbwheel.db.workspace import Workspace
from thumbwheel.importers.json_text import value_in
from thumbwheel.models.types import Agent
from thumbwheel.rewards.cases import StoredCase, stored_cases
from thumbwheel.rewards.function import Case, Score
from thumbwheel.rewards.types import Statement

FIRST_PAGE, LATER_PAGE = 20, 500
"""Decisions that are read at once: of those that a client looks at, and of the rest."""
METADATA = "decision"
"""The key of a trace's metadata that every decision has."""
READS = frozenset({"text", "metadata", "feedback", "prompt", "steps"})


@dataclass(frozen=True)
class AgentDecision:
    """A decision of an agent of this home."""

    agent: str
    trace_id: str
    source: str
    """Where it came from; what is said about it is of the same source."""
    subject: str | None
    """Whose decision it is."""
    prompt: Sequence[Mapping[str, Any]]
    record: DecisionRecord
    judged_at: datetime | None
    """When what its reward comes from was said last."""


def stored_decisions(
    ws: Workspace,
    agents: Iterable[str],
    agent_type: str | None = None,
    decision_id: str | None = None,
) -> list[AgentDecision]:
    """Return the decisions of these agents of this home, the newest first: all, or the ones of one
    agent type, or the ones with this id."""
    if decision_id is None:
        return list(newest_decisions(ws, agents, agent_type))
    decisions: list[AgentDecision] = []
    for agent in agents:
        learner = Agent.named(agent)
        with ws.db.read() as connection:
            traces = trace_queries.with_metadata(connection, learner.id, METADATA, decision_id)
            decisions += _of_traces(connection, learner, traces)
    return decisions


def newest_decisions(
    ws: Workspace, agents: Iterable[str], agent_type: str | None = None
) -> Iterator[AgentDecision]:
    """Yield the decisions, the newest first, read by pages: a caller that wants ten pays for a
    page."""
    by_agent = [_newest_of(ws, Agent.named(agent), agent_type) for agent in agents]
    for _, decision in heapq.merge(*by_agent, key=lambda pair: pair[0], reverse=True):
        yield decision


def _newest_of(
    ws: Workspace, agent: Agent, agent_type: str | None
) -> Iterator[tuple[datetime, AgentDecision]]:
    """Yield (when it happened, the decision) of one agent, the newest first."""
    inner = None if agent_type is None else ("agent_type", agent_type)
    page, offset = FIRST_PAGE, 0
    while True:
        with ws.db.read() as connection:
            rows = trace_queries.newest_with_metadata(
                connection, agent.id, METADATA, page, offset, inner
            )
            decisions = _of_traces(connection, agent, {row["id"]: row for row in rows})
        by_trace = {decision.trace_id: decision for decision in decisions}
        for row in rows:
            if row["id"] in by_trace:
                yield row["happened_at"], by_trace[row["id"]]
        if len(rows) < page:
            return
        offset += page
        page = LATER_PAGE


def has_decisions(ws: Workspace, agent: str) -> bool:
    """Return whether this agent of the home has any decisions."""
    with ws.db.read() as connection:
        return bool(trace_queries.with_metadata(connection, Agent.named(agent).id, METADATA))


def _of_traces(
    connection: sa.Connection, agent: Agent, traces: Mapping[str, Any]
) -> list[AgentDecision]:
    """Return the decisions in these traces of an agent, in no order."""
    if not traces:
        return []
    calls = trace_queries.last_calls(connection, list(traces))
    function = DecisionReward.create({"compatible": True})
    decisions = []
    for batch in stored_cases(connection, agent, READS, among=list(traces)):
        scores = function.score([stored.case for stored in batch])
        for stored, score in zip(batch, scores, strict=True):
            trace_id = str(stored.case.target_id)
            call = calls.get(trace_id)
            decisions.append(_decision(agent.slug, stored, score, traces[trace_id], call))
    return decisions


def _agent_type(case: Case) -> str:
    about = case.metadata.get(METADATA)
    return str(about.get("agent_type", "")) if isinstance(about, dict) else ""


def _decision(agent: str, stored: StoredCase, score: Score, trace: Any, call: Any) -> AgentDecision:
    case = stored.case
    about = case.metadata[METADATA] if isinstance(case.metadata[METADATA], dict) else {}
    step = next((step for step in case.steps if step.kind == "decision"), None)
    action = step.output if step and isinstance(step.output, dict) else about.get("action", {})
    word = _newest(case, "label", _is_word)
    correction = _newest(case, "correction")
    outcomes = _outcomes(case)
    reward = None
    if score.value is not None:
        reward = max(-OLD_BOUND, min(OLD_BOUND, score.evidence["total"]))
    heard = [statement.at for statement in case.feedback]
    record = DecisionRecord(
        id=trace["external_id"],
        agent_type=_agent_type(case),
        state=step.input if step and isinstance(step.input, dict) else None,
        action=action,
        reward=reward,
        reward_components=components_by_group(score) or None,
        confidence=about.get("confidence"),
        reasoning=action.get("reasoning"),
        user_feedback=None if word is None else str(word.value).upper(),
        user_correction=None if correction is None else _change(action, correction.value),
        outcome_metrics={name: value for name, (value, _) in outcomes.items()} or None,
        item_id=case.metadata.get("item_id"),
        opus_id=case.metadata.get("opus_id"),
        model_version=_model(call),
        created_at=_iso(case.occurred_at or trace["recorded_at"]),
        feedback_at=None if word is None else _iso(word.at),
        outcome_observed_at=_iso(max((time for _, time in outcomes.values()), default=None)),
        is_training_data=case.metadata.get("is_training_data") is not False,
        is_validation_data=case.metadata.get("is_validation_data") is True,
        prompt=_last_text(case),
        completion=case.text if stored.answered else None,
    )
    judged_at = max(heard, default=None) if reward is not None else None
    return AgentDecision(
        agent, trace["id"], trace["source"], trace["subject"], case.prompt, record, judged_at
    )


def _newest(case: Case, kind: str, is_meant: Any = lambda statement: True) -> Statement | None:
    statements = [s for s in case.feedback if s.kind == kind and is_meant(s)]
    return max(statements, key=lambda s: (s.at, s.feedback_id), default=None)


def _is_word(statement: Statement) -> bool:
    return isinstance(statement.value, str) and statement.value.upper() in WORDS


def _outcomes(case: Case) -> dict[str, tuple[Any, datetime]]:
    """Return the known outcomes: name -> (value, when it was seen)."""
    outcomes = {}
    for statement in sorted(case.feedback, key=lambda s: s.at):
        name = str(statement.name)
        is_metric = name.replace("_", "").casefold() in METRICS
        if statement.kind in ("label", "outcome") and is_metric:
            value = statement.value
            outcomes[name] = (value_in(value) if isinstance(value, str) else value, statement.at)
    return outcomes


def _change(action: Mapping[str, Any], corrected: Any) -> dict[str, Any] | None:
    """Return the fields in which the corrected action differs; None if it is not a JSON object."""
    try:
        fields = json.loads(corrected)
    except (TypeError, ValueError):
        return None
    if not isinstance(fields, dict):
        return None
    before = declared(action)
    return {key: value for key, value in declared(fields).items() if value != before.get(key)}


def _model(call: Any) -> str | None:
    if call is None:
        return None
    if call["version_number"] is not None:
        return f"v{call['version_number']}"
    name = call["served_model"] or call["requested_model"]
    return None if name is None else str(name)


def _iso(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()


def _last_text(case: Case) -> str:
    content = case.prompt[-1].get("content") if case.prompt else ""
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
