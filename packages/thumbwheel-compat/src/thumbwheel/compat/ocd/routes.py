"""The training API of the five agents as a dialect: a person's word about a decision, rewards,
outcomes, statistics, exports, and the A/B test.

Decisions are traces here, imported or recorded; each is known by its id, whichever agent of the
home it belongs to. Rewards are in the arithmetic of the original (-5 to 5) and computed when they
are read; `calculate-pending` judges for the ledger, on which training draws. What is unknown is
null: no mean of nothing is 0.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from statistics import fmean
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi import Path as PathParameter
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from thumbwheel.access.needs import needs
from thumbwheel.access.types import Principal, Verb
from thumbwheel.app.served_home import awaited_result
from thumbwheel.compat.ocd.ab_test import ab_test
from thumbwheel.compat.ocd.decision_prompts import system_of
from thumbwheel.compat.ocd.outcomes import FinishedItem, outcome_metrics
from thumbwheel.compat.ocd.records import DecisionRecord
from thumbwheel.compat.ocd.source import TRACKER, WORDS
from thumbwheel.compat.ocd.spelling import apply_change, in_order
from thumbwheel.compat.ocd.stored_decisions import (
    AgentDecision,
    has_decisions,
    newest_decisions,
    stored_decisions,
)
from thumbwheel.compat.received_rows import (
    Row,
    Text,
    objection_to,
    rater_of,
    require_stored,
    store_rows,
)
from thumbwheel.core import ids
from thumbwheel.core.errors import Conflict, InputError, NotFound
from thumbwheel.db.workspace import Workspace
from thumbwheel.experiments.running import running
from thumbwheel.models.versions import agents, require_agent
from thumbwheel.rewards import ledger
from thumbwheel.rewards.component import components
from thumbwheel.rewards.judge_traces import judge_pending
from thumbwheel.rewards.types import JudgeReport

AgentType = Literal["FILER", "LIBRARIAN", "PRIORITIZER", "STORER", "RETRIEVER", "GUARDRAIL"]
Word = Literal["CONFIRMED", "CORRECTED", "IGNORED", "OVERRIDDEN"]
DecisionId = Annotated[str, PathParameter(min_length=1, max_length=400, pattern=r"^[^\x00]*$")]
OptionalType = Annotated[AgentType | None, Query(alias="agentType")]
RequiredType = Annotated[AgentType, Query(alias="agentType")]
LINES = "application/x-ndjson"
MOST_ROWS = 10_000
"""Decisions or items of one request."""
BLOCK = 100
"""Decisions of a block, by which the original counts its progress."""
FEWEST_REWARDS = 50
"""Rewards with which it calls the decisions ready for training."""
OF_THE_WORD = ("id", "userFeedback", "feedbackAt")
"""Columns that whoever judges a decision sees, though they may not read it."""


class DecisionFeedback(BaseModel):
    """What a person says about a decision."""

    feedback: Word
    correction: dict[str, Any] | None = None
    """The fields that should have been different."""


class DecisionIds(BaseModel):
    """Which decisions to judge."""

    decision_ids: list[Text] = Field(alias="decisionIds", max_length=MOST_ROWS)


class FinishedItems(BaseModel):
    """Items of the app that were finished."""

    items: list[FinishedItem] = Field(default=[], max_length=MOST_ROWS)


class DecisionFilter(BaseModel):
    """Which decisions are wanted; nothing is left out unless it is asked for."""

    agent_type: AgentType | None = Field(default=None, alias="agentType")
    min_reward: float | None = Field(default=None, alias="minReward", allow_inf_nan=False)
    max_reward: float | None = Field(default=None, alias="maxReward", allow_inf_nan=False)
    require_reward: bool = Field(default=False, alias="requireReward")
    require_feedback: bool = Field(default=False, alias="requireFeedback")
    limit: int | None = Field(default=None, ge=1)

    def of(self, decisions: Iterable[AgentDecision]) -> list[AgentDecision]:
        """Return the decisions that match, at most `limit`; no more is read than it takes to find
        them."""
        wanted = (decision for decision in decisions if self._takes(decision.record))
        most = None if self.limit is None else min(self.limit, sys.maxsize)
        return list(islice(wanted, most))

    def _takes(self, record: DecisionRecord) -> bool:
        if self.require_feedback and record.user_feedback is None:
            return False
        if record.reward is None:
            return not self.require_reward
        low = -math.inf if self.min_reward is None else self.min_reward
        high = math.inf if self.max_reward is None else self.max_reward
        return low <= record.reward <= high


def add_routes(routes: APIRouter) -> None:
    """Add the routes."""
    look, work = needs("read", by_row=True), needs("run", by_row=True)
    say = needs("rate", by_row=True)
    table: tuple[tuple[str, str, Any, Any, str, str], ...] = (
        ("PATCH", "/api/decisions/{id}/feedback", give_feedback, say, "feedback", "Judge one"),
        ("GET", "/api/training/decisions", list_decisions, look, "list", "List decisions"),
        ("POST", "/api/training/decisions", judge, work, "judge", "Judge some for the ledger"),
        ("GET", "/api/training/stats", stats, look, "stats", "Counts, and whether they suffice"),
        ("GET", "/api/training/export", export, look, "export", "Chats as JSON lines"),
        ("GET", "/api/training/export-file", export_file, look, "export_file", "Prompts as lines"),
        ("GET", "/api/training/calculate-pending", pending, look, "pending", "What waits"),
        ("POST", "/api/training/calculate-pending", calculate, work, "calculate", "Judge it"),
        ("GET", "/api/training/ab-test", ab_test_of, look, "ab_test", "Compare the versions"),
    )
    for path, name in (("track-outcomes", "track_outcomes"), ("outcomes", "outcomes")):
        table += (
            ("GET", f"/api/training/{path}", untracked, look, f"{name}.pending", "What waits"),
            ("POST", f"/api/training/{path}", track, work, name, "Note what became of items"),
        )
    lines = {"description": "JSON lines.", "content": {LINES: {"schema": {"type": "string"}}}}
    for method, path, answer, need, name, summary in table:
        is_file = name in ("export", "export_file")
        responses: dict[int | str, Row] = {200: lines} if is_file else {}
        routes.add_api_route(
            path,
            answer,
            methods=[method],
            dependencies=[need],
            operation_id=f"ocd.{name}",
            summary=summary,
            responses=responses,
            response_model=None,
            tags=["ocd"],
        )


def give_feedback(request: Request, id: DecisionId, body: DecisionFeedback) -> Row:
    """Store the word, and the correction; the decision as it is then. Who may not read it is told
    of the word alone."""
    ws: Workspace = request.app.state.workspace
    decision = _decision(request, id, "rate")
    now = datetime.now(UTC).isoformat()
    shared: Row = {"type": "feedback", "target": {"trace": id}, "occurred_at": now}
    rater = rater_of(request, decision.subject)
    if rater is not None:
        shared["rater"] = rater
    rows = [_statement(shared, "label", body.feedback) | {"name": "user_feedback"}]
    if WORDS[body.feedback] is not None:
        rows.append(_statement(shared, "thumb", WORDS[body.feedback]))
    objection = objection_to(body.correction)
    if objection is not None:
        raise InputError("correction", objection, "Correct it")
    action = decision.record.action
    corrected = apply_change(action, body.correction or {})
    if action and corrected != action:
        text = json.dumps(in_order(decision.record.agent_type, corrected), ensure_ascii=False)
        rows.append(_statement(shared, "correction", text))
    require_stored(store_rows(request, decision.agent, decision.source, [rows]))
    (changed,) = stored_decisions(ws, [decision.agent], decision_id=id)
    principal: Principal = request.state.principal
    if principal.may("read", decision.agent):
        return _row(changed)
    return {name: value for name, value in _row(changed).items() if name in OF_THE_WORD}


def _statement(shared: Mapping[str, Any], kind: str, value: Any) -> Row:
    return {**shared, "id": ids.new("word"), "kind": kind, "value": value}


def list_decisions(request: Request, wanted: Annotated[DecisionFilter, Query()]) -> list[Row]:
    """List the decisions, newest first."""
    decisions = _readable(request, wanted.agent_type)
    return [_row(decision) for decision in wanted.of(decisions)]


def judge(request: Request, body: DecisionIds) -> Row:
    """Judge these decisions; those that nobody said anything about have no reward."""
    ws: Workspace = request.app.state.workspace
    judged = []
    for decision_id in dict.fromkeys(body.decision_ids):
        try:
            decision = _decision(request, decision_id, "run")
        except NotFound:
            continue
        learner = require_agent(ws, decision.agent)
        parts = components(ws, learner.slug, ledger.settings(ws, learner.slug), ())
        ledger.run(ws, learner, parts, trace_id=decision.trace_id)
        if decision.record.reward is not None:
            judged.append(
                {
                    "id": decision_id,
                    "reward": decision.record.reward,
                    "components": decision.record.reward_components or {},
                }
            )
    return {"updated": len(judged), "decisions": judged}


def stats(request: Request, agent_type: OptionalType = None) -> Row:
    """Count all decisions, or one agent's."""
    decisions = list(_readable(request, None))
    by_type = Counter(decision.record.agent_type for decision in decisions)
    records = [decision.record for decision in decisions]
    if agent_type is not None:
        records = [record for record in records if record.agent_type == agent_type]
    rewards = [record.reward for record in records if record.reward is not None]
    in_block = len(records) % BLOCK
    return {
        "totalDecisions": len(records),
        "decisionsWithReward": len(rewards),
        "decisionsWithFeedback": sum(record.user_feedback is not None for record in records),
        "avgReward": fmean(rewards) if rewards else None,
        "progressBlocks": len(records) // BLOCK,
        "progressInCurrentBlock": in_block,
        "progressPercentage": in_block / BLOCK * 100,
        "byAgentType": dict(by_type),
        "readyForTraining": len(records) >= BLOCK and len(rewards) >= FEWEST_REWARDS,
    }


def export(request: Request, wanted: Annotated[DecisionFilter, Query()]) -> StreamingResponse:
    """Chats: the system prompt, the state as JSON, the action as JSON."""
    decisions = wanted.of(_readable(request, wanted.agent_type))
    return _lines(_chat_lines(decisions), f"training-data-{wanted.agent_type or 'all'}")


class ExportFilter(DecisionFilter):
    """As `DecisionFilter`, of one agent, and with rewards unless it says otherwise."""

    agent_type: AgentType = Field(alias="agentType")
    require_reward: bool = Field(default=True, alias="requireReward")


def export_file(request: Request, wanted: Annotated[ExportFilter, Query()]) -> StreamingResponse:
    """Prompts with marks of their roles, and completions."""
    decisions = wanted.of(_readable(request, wanted.agent_type))
    return _lines(_prompt_lines(decisions), f"training-{wanted.agent_type.lower()}")


def _lines(rows: Iterator[Row], name: str) -> StreamingResponse:
    texts = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    headers = {"content-disposition": f'attachment; filename="{name}.jsonl"'}
    return StreamingResponse(texts, media_type=LINES, headers=headers)


def _chat_lines(decisions: Iterable[AgentDecision]) -> Iterator[Row]:
    for decision in decisions:
        record = decision.record
        if record.completion is None:
            continue  # what a RETRIEVER wrote is lost, so there is nothing to train on
        question = record.prompt
        if record.state is not None:
            question = json.dumps(record.state, ensure_ascii=False)
        messages = [
            *system_of(record.agent_type, record.action),
            {"role": "user", "content": question},
            {"role": "assistant", "content": record.completion},
        ]
        yield {"messages": messages, "reward": record.reward, "metadata": _metadata(decision)}


def _prompt_lines(decisions: Iterable[AgentDecision]) -> Iterator[Row]:
    for decision in decisions:
        record = decision.record
        if record.completion is None:
            continue
        turns = [f"<|{turn['role']}|>\n{turn['content']}\n" for turn in decision.prompt]
        yield {
            "prompt": "".join(turns) + "<|assistant|>\n",
            "completion": record.completion,
            "reward": record.reward,
            "confidence": record.confidence,
            "metadata": _metadata(decision),
        }


def _metadata(decision: AgentDecision) -> Row:
    left_out = ("id", "state", "action", "reward", "confidence", "reasoning")
    row = _row(decision)
    about = {key: value for key, value in row.items() if key not in left_out}
    return {"decisionId": row["id"], **about}


def pending(request: Request) -> Row:
    """Count the decisions that `POST` would look at."""
    ws: Workspace = request.app.state.workspace
    count = 0
    for agent in _agents_with_decisions(request, "read"):
        count += _looked_at(judge_pending(ws, agent, dry_run=True))
    return {
        "pendingRewards": count,
        "message": f"{count} decisions are ready for reward calculation",
    }


async def calculate(request: Request) -> Row:
    """Judge what was not judged, of every agent with decisions; answers when that is done."""
    processed = 0
    errors = 0
    for agent in _agents_with_decisions(request, "run"):
        report = await awaited_result(request, "reward pending", {"agent": agent}, math.inf)
        processed += _looked_at(report)
        errors += _failures(report)
    return {
        "success": True,
        "processed": processed,
        "errors": errors,
        "message": f"Processed {processed} decisions, {errors} errors",
    }


def _looked_at(report: JudgeReport) -> int:
    """Return how many traces some component judged, or would judge."""
    return max((component.judged for component in report.components.values()), default=0)


def _failures(report: JudgeReport) -> int:
    failures = 0
    for component in report.components.values():
        failures += component.statuses.get("failed", 0) + component.statuses.get("blocked", 0)
    return failures


def untracked(request: Request) -> Row:
    """Items with a decision of which nobody knows what came."""
    items = set()
    for decision in _readable(request, None):
        record = decision.record
        if record.item_id is not None and record.outcome_metrics is None:
            items.add(record.item_id)
    return {
        "pendingOutcomes": len(items),
        "message": f"{len(items)} items need outcome tracking",
    }


async def track(
    request: Request,
    body: FinishedItems | None = None,
    limit: Annotated[int, Query(ge=1, le=MOST_ROWS)] = MOST_ROWS,
) -> Row:
    """Note what became of finished items at all of their decisions, and judge these.

    Items are the app's own, and no server reads its database by itself: the body has them.
    """
    items = (body or FinishedItems()).items[:limit]
    updated, errors, calculated = await run_in_threadpool(_tracked, request, items)
    text = f"Processed {len(items)} items, updated {updated} decisions, "
    text += f"calculated {calculated} rewards"
    if not items:
        text += '. Send the finished items in the body: {"items": [{"id": ..., "status": ...}]}'
    return {
        "success": True,
        "processed": len(items),
        "updated": updated,
        "rewardsCalculated": calculated,
        "errors": errors,
        "message": text,
    }


def _tracked(request: Request, items: Iterable[FinishedItem]) -> tuple[int, int, int]:
    """Store the outcomes; return (decisions that have outcomes now, outcomes that cannot be stored,
    decisions with a reward)."""
    ws: Workspace = request.app.state.workspace
    slugs = _agents_with_decisions(request, "run")
    by_item: dict[str, list[AgentDecision]] = {}
    for decision in stored_decisions(ws, slugs):
        by_item.setdefault(str(decision.record.item_id), []).append(decision)
    updated: list[AgentDecision] = []
    errors = 0
    for item in items:
        metrics = outcome_metrics(item)
        for decision in by_item.get(item.id, []):
            rows = _outcome_rows(decision, metrics, item.completed_at or datetime.now(UTC))
            (reason,) = store_rows(request, decision.agent, decision.source, [rows])
            errors += reason is not None
            if reason is None:
                updated.append(decision)
    changed = {(decision.agent, decision.record.id) for decision in updated}
    calculated = 0
    if changed:
        for decision in stored_decisions(ws, slugs):
            is_changed = (decision.agent, decision.record.id) in changed
            calculated += is_changed and decision.record.reward is not None
    return len(changed), errors, calculated


def _outcome_rows(
    decision: AgentDecision, metrics: Mapping[str, Any], seen_at: datetime
) -> list[Row]:
    rows = []
    for name, value in metrics.items():
        is_outcome = name == "completedSuccessfully"
        row: Row = {
            "type": "feedback",
            "id": ids.new("outcome"),
            "target": {"trace": decision.record.id},
            "kind": "outcome" if is_outcome else "label",
            "name": name,
            "value": value if isinstance(value, bool | str) else json.dumps(value),
            "rater": {"id": TRACKER.id, "kind": TRACKER.kind},
            "occurred_at": seen_at.isoformat(),
        }
        rows.append(row)
    return rows


def ab_test_of(request: Request, agent_type: RequiredType) -> Row:
    """Return the figures of each version; the arms of a running experiment are the registry."""
    ws: Workspace = request.app.state.workspace
    decisions = list(_readable(request, agent_type))
    slugs = {decision.agent for decision in decisions}
    registry: list[Row] = []
    for experiment in running(ws):
        if experiment.agent in slugs:
            shares = experiment.strata[-1].shares
            registry += [{"version": name, "weight": share} for name, share in shares.items()]
    return ab_test(agent_type, [decision.record for decision in decisions], registry)


def _readable(request: Request, agent_type: str | None) -> Iterator[AgentDecision]:
    """Return the decisions of all agents that the caller may read, the newest first."""
    ws: Workspace = request.app.state.workspace
    return newest_decisions(ws, _agents(request, "read"), agent_type)


def _agents(request: Request, verb: Verb) -> list[str]:
    ws: Workspace = request.app.state.workspace
    principal: Principal = request.state.principal
    return [agent.slug for agent in agents(ws) if principal.may(verb, agent.slug)]


def _agents_with_decisions(request: Request, verb: Verb) -> list[str]:
    ws: Workspace = request.app.state.workspace
    return [slug for slug in _agents(request, verb) if has_decisions(ws, slug)]


def _decision(request: Request, decision_id: str, verb: Verb) -> AgentDecision:
    """Return the decision of this id. Raises NotFound if there is none for which the caller may do
    `verb`, Conflict if several agents have it."""
    ws: Workspace = request.app.state.workspace
    decisions = stored_decisions(ws, _agents(request, verb), decision_id=decision_id)
    if not decisions:
        raise NotFound(
            f"decision {decision_id!r}",
            "no such decision, or you may not see it",
            "Import the decisions first: thumbwheel import decisions URL --agent AGENT",
        )
    if len(decisions) > 1:
        names = ", ".join(decision.agent for decision in decisions)
        raise Conflict(
            f"decision {decision_id!r}",
            f"several agents have it: {names}",
            "Use a key for one of them: thumbwheel keys add NAME --agent AGENT",
        )
    return decisions[0]


def _row(decision: AgentDecision) -> Row:
    """Return the columns of the table for a decision."""
    record = decision.record
    judged_at = decision.judged_at
    return {
        "id": record.id,
        "agentType": record.agent_type,
        "state": record.state,
        "action": record.action,
        "reward": record.reward,
        "rewardComponents": record.reward_components,
        "rewardComputedAt": None if judged_at is None else judged_at.isoformat(),
        "itemId": record.item_id,
        "opusId": record.opus_id,
        "userId": decision.subject,
        "modelVersion": record.model_version,
        "confidence": record.confidence,
        "reasoning": record.reasoning,
        "userFeedback": record.user_feedback,
        "userCorrection": record.user_correction,
        "feedbackAt": record.feedback_at,
        "outcomeMetrics": record.outcome_metrics,
        "outcomeObservedAt": record.outcome_observed_at,
        "isTrainingData": record.is_training_data,
        "isValidationData": record.is_validation_data,
        "createdAt": record.created_at,
    }
