"""Stored traces as cases for reward functions: prompt, answer, run, the task's reference, and the
feedback in force at a time.

Traces are streamed in batches, those of one prompt side by side, so that memory does not grow with
their number. Training and evaluation build the cases of fresh answers themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

import sqlalchemy as sa

from thumbwheel.db.message_chains import conversations
from thumbwheel.models.types import Agent
from thumbwheel.rewards import feedback_queries, store
from thumbwheel.rewards.conversations import next_turns
from thumbwheel.rewards.function import Case, Step
from thumbwheel.rewards.types import EVERY_PROMPT, FeedbackScope, PromptRange, Statement

BATCH = 500
MOST_MATES = 32
"""Other answers to the same prompt that a case carries; the first ones by id, so that the choice
stays the same."""
CHECKER_KEYS = ("checker", "checker_config")
"""Where the metadata of a case has what the trace's own case names; a trace's metadata cannot set
them."""


@dataclass(frozen=True)
class StoredCase:
    """A stored trace as a case; `answered`: whether its answer was recorded. Where it was not, the
    text is empty and means nothing."""

    case: Case
    answered: bool


def stored_cases(
    connection: sa.Connection,
    agent: Agent,
    reads: Collection[str],
    as_of: datetime | None = None,
    trace_id: str | None = None,
    among: Collection[str] | None = None,
    prompts: PromptRange = EVERY_PROMPT,
) -> Iterator[list[StoredCase]]:
    """Yield, in batches, all traces of `agent` (or one, or those `among` these ids, at most as many
    as a statement takes variables, or those of some `prompts`) that were recorded by `as_of`
    (default: now), with the fields in `reads` filled."""
    heard: Iterable[tuple[str, Statement]] = ()
    if "feedback" in reads:
        scope = FeedbackScope(first=prompts.first, last=prompts.last)
        heard = feedback_queries.statements(
            connection, agent.id, as_of, trace_id, scope, arrived_by=as_of, among=among
        )
    # about the traces of `rows` and no others, in the same order
    by_trace = groupby(heard, key=itemgetter(0))
    following = next(by_trace, None)
    now = as_of or datetime.now(UTC)
    rows = store.stored(connection, agent.id, as_of, trace_id, among, prompts)
    while batch := list(islice(rows, BATCH)):
        parts = _TraceParts(connection, agent.id, batch, reads, as_of)
        cases: list[StoredCase] = []
        for row in batch:
            feedback: list[Statement] = []
            if following is not None and following[0] == row["id"]:
                feedback = [statement for _, statement in following[1]]
                feedback.sort(key=lambda statement: (statement.at, statement.feedback_id))
                following = next(by_trace, None)
            case = replace(parts.of(row), feedback=tuple(feedback), as_of=now)
            cases.append(StoredCase(case, row["output"] is not None))
        yield cases


def offered_tools(*sources: Any) -> list[dict[str, Any]] | None:
    """Return the tools that the model was given, from the first of `sources` that lists some (the
    input of its step, then the trace's metadata), or None."""
    for source in sources:
        if isinstance(source, dict) and isinstance(source.get("tools"), list) and source["tools"]:
            return list(source["tools"])
    return None


class _TraceParts:
    """What the traces of a batch need from other tables, fetched at once."""

    def __init__(
        self,
        connection: sa.Connection,
        agent_id: str,
        rows: Sequence[sa.RowMapping],
        reads: Collection[str],
        as_of: datetime | None,
    ) -> None:
        prompts, runs = [row["input_id"] for row in rows], [row["id"] for row in rows]
        self._prompts: dict[str, list[dict[str, Any]]] = {}
        self._steps: dict[str, list[sa.RowMapping]] = {}
        self._mates: dict[str, list[Any]] = {}
        self._next_turns: dict[str, tuple[str, ...]] = {}
        if "prompt" in reads:
            self._prompts = conversations(connection, prompts)
        if {"steps", "finish", "tools"} & set(reads):
            self._steps = store.steps_of(connection, runs)
        if "mates" in reads:
            self._mates = store.mates(connection, agent_id, prompts, MOST_MATES + 1, as_of)
        if "next_turns" in reads:
            self._next_turns = next_turns(connection, agent_id, rows, as_of)

    def of(self, row: sa.RowMapping) -> Case:
        """Return the case of one trace, without feedback."""
        steps = self._steps.get(row["id"], [])
        model_calls = [step for step in steps if step["kind"] == "llm"]
        last_call = model_calls[-1] if model_calls else None
        metadata = row["metadata"] or {}
        metadata = {key: value for key, value in metadata.items() if key not in CHECKER_KEYS}
        if row["asked"]:
            metadata |= {key: row[key] for key in CHECKER_KEYS}
        answers = self._mates.get(row["input_id"], [])
        mates = [output for trace_id, output in answers if trace_id != row["id"]]
        return Case(
            text=row["output"] or "",
            reference=row["reference"],
            prompt=self._prompts.get(row["input_id"], ()),
            tools=offered_tools(last_call["input"] if last_call else None, row["metadata"]),
            steps=tuple(_step(step) for step in steps),
            status=row["status"],
            finish=last_call["finish_reason"] if last_call else None,
            metadata=metadata,
            mates=tuple(mates[:MOST_MATES]),
            next_turns=self._next_turns.get(row["id"], ()),
            occurred_at=row["occurred_at"],
            target_id=row["id"],
        )


def _step(row: Any) -> Step:
    timed = row["started_at"] is not None and row["ended_at"] is not None
    seconds = (row["ended_at"] - row["started_at"]).total_seconds() if timed else None
    plain = {
        key: row[key]
        for key in (
            "kind",
            "name",
            "input",
            "output",
            "status",
            "prompt_tokens",
            "completion_tokens",
        )
    }
    return Step(**plain, seconds=seconds)
