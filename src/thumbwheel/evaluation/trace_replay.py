"""Replays: a version answers recorded traces, and each answer is a trace beside the recorded one.

The version answers as in an evaluation (`responder.ask`): in this process, or at the endpoint that
it was registered with. So a candidate needs no deployment, a replay that was stopped goes on where
it was, and idle workers help. The new trace has the same conversation as the recorded one, so that
a vote between the two trains like any other preference, and the same person, so that an erasure
takes both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from thumbwheel.capture.ingest import save, scope_under
from thumbwheel.capture.trace_filter import TraceFilter
from thumbwheel.capture.trace_queries import answered_traces, by_metadata, named_traces, trace_row
from thumbwheel.capture.trace_types import REPLAY_SOURCE, TraceSummary
from thumbwheel.capture.traces import list_traces
from thumbwheel.core import ids
from thumbwheel.core.errors import DataError, NotFound
from thumbwheel.db.message_chains import conversation
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation.replay_types import (
    ReplayedTrace,
    ReplaySpec,
    ShownReplay,
    TraceReplay,
    Winner,
)
from thumbwheel.evaluation.responder import Responder, ask
from thumbwheel.evaluation.responders import Responders, base_of
from thumbwheel.evaluation.types import Ask, EvaluationConfig, ModelAnswer
from thumbwheel.importers.fields import content_text
from thumbwheel.importers.source import Line
from thumbwheel.importers.types import StepRecord, Tokens, TraceRecord
from thumbwheel.models import versions
from thumbwheel.models.types import Agent, ModelVersion

REPLAY, REPLAY_OF, POSITION, VERSION = "replay", "replay_of", "position", "replayed_by"
"""Keys of their metadata: the replay, the recorded trace, its place in the replay, and the version.
Only the gateway says which version answered an app, so the column of versions stays empty."""
REPEATED_ROLES = ("system", "developer", "user", "assistant")
WINNERS: Mapping[str, Winner] = {
    "preferred": "replayed",
    "not preferred": "recorded",
    "tie": "tie",
}
"""How a trace summary words a preference about the new answer -> the answer that won."""


@dataclass(frozen=True)
class RecordedCall:
    """A recorded trace that can be answered again."""

    row: sa.RowMapping
    chat: list[dict[str, Any]]
    """The conversation, as it is stored."""
    prompt: list[dict[str, Any]]
    """The same conversation as texts, as it is asked."""


def select_traces(
    ws: Workspace, agent: Agent, wanted: TraceFilter, most: int, names: Sequence[str] = ()
) -> list[str]:
    """Return the ids of the traces that a replay asks: those with these names, or else the newest
    `most` answered ones that match the filter, without answers of replays. Raises NotFound for an
    unknown name, DataError if no trace matches."""
    with ws.db.read() as connection:
        if names:
            return [trace_row(connection, agent, name)["id"] for name in dict.fromkeys(names)]
        recorded = replace(wanted, without_source=REPLAY_SOURCE)
        trace_ids = [row.id for row in answered_traces(connection, agent.id, recorded, most)]
    if not trace_ids:
        raise DataError(
            f"traces of {agent.slug!r}",
            "no answered trace matches",
            f"Filter less strictly; see thumbwheel traces list --agent {agent.slug}",
        )
    return trace_ids


def replay_traces(ws: Workspace, spec: ReplaySpec) -> TraceReplay:
    """Let the version answer the traces, and store each answer as a trace. The same request stores
    nothing twice."""
    version = versions.version(ws, spec.agent, spec.version)
    agent = versions.require_agent(ws, spec.agent)
    replay_id = ids.derived("rpl", version.id, str(spec.max_new_tokens), *spec.traces)
    config = ws.settings(EvaluationConfig, "evaluation", {"max_new_tokens": spec.max_new_tokens})

    # What can be asked again
    calls: dict[str, RecordedCall] = {}
    left_out: dict[str, str] = {}
    with ws.db.read() as connection:
        for trace_id in spec.traces:
            call = _recorded_call(connection, agent, trace_id)
            if isinstance(call, RecordedCall):
                calls[trace_id] = call
            else:
                left_out[trace_id] = call

    # The answers; stored ones are not generated again
    asks = [Ask(call.prompt, config.max_new_tokens) for call in calls.values()]
    responder = _responder(ws, version, config)
    try:
        replies = ask(ws, agent.id, responder, asks, "replayed answers") if asks else []
    finally:
        responder.close()

    # Their traces
    scope = scope_under(ws, agent.id, agent.slug, REPLAY_SOURCE)
    lines = []
    records: dict[int, tuple[str, TraceRecord]] = {}
    for position, (trace_id, reply) in enumerate(zip(calls, replies, strict=True)):
        if not reply:
            left_out[trace_id] = "the model server refused the question"
            continue
        metadata = {
            REPLAY: replay_id,
            REPLAY_OF: trace_id,
            POSITION: position,
            VERSION: version.name,
        }
        record = _trace_record(calls[trace_id], reply[0], agent, metadata)
        lines.append(Line(position, [record], ""))
        records[position] = (trace_id, record)
    answered = equal = 0
    for result in save(ws, scope, lines):
        trace_id, stored = records[result.line.number]
        if result.erased or result.reason:
            left_out[trace_id] = result.reason or "its person was erased"
            continue
        answered += 1
        equal += _is_equal(calls[trace_id].row["output"], stored.output)
    return TraceReplay(
        id=replay_id,
        agent=agent.slug,
        version=version.name,
        answered=answered,
        equal=equal,
        left_out=left_out,
    )


def _recorded_call(connection: sa.Connection, agent: Agent, trace_id: str) -> RecordedCall | str:
    """Return the recorded call, or why it cannot be asked again."""
    rows = [row for row in named_traces(connection, agent.id, trace_id) if row["id"] == trace_id]
    if not rows:
        return "it is not stored any more"
    (row,) = rows
    if row["output"] is None:
        return "it has no recorded answer"
    chat = conversation(connection, row["input_id"])
    prompt = []
    for message in chat:
        text = _text_only(message)
        if text is None:
            return "its conversation has more than texts, such as calls of tools or images"
        prompt.append({"role": message["role"], "content": text})
    if not prompt:
        return "its conversation is not stored"
    return RecordedCall(row, chat, prompt)


def _text_only(message: Mapping[str, Any]) -> str | None:
    """Return the text of a message that is nothing but a text, else None."""
    content = message.get("content")
    if message["role"] not in REPEATED_ROLES or message.get("tool_calls"):
        return None
    if isinstance(content, list):
        kinds = {part.get("type") if isinstance(part, dict) else None for part in content}
        if kinds != {"text"}:
            return None
    return content_text(content)


def _responder(ws: Workspace, version: ModelVersion, config: EvaluationConfig) -> Responder:
    """Return the responder of a version, as an evaluation of it has it."""
    beside = version if version.endpoint else base_of(ws, version)
    return Responders(ws, config, [], version, beside).after


def _trace_record(
    call: RecordedCall, answer: ModelAnswer, agent: Agent, metadata: dict[str, Any]
) -> TraceRecord:
    """Return the trace of a new answer. It is the same row if the replay is repeated."""
    now = datetime.now(UTC)
    began = now - timedelta(seconds=answer.seconds or 0.0)
    text = answer.text.replace("\x00", "\ufffd")  # no database stores it
    step = StepRecord(
        output=text,
        started_at=None if answer.seconds is None else began,
        ended_at=None if answer.seconds is None else now,
        model=f"{agent.slug}:{metadata[VERSION]}",
        finish_reason=answer.finish,
        tokens=Tokens(prompt=answer.prompt_tokens, completion=answer.tokens),
        complete=True,
    )
    record = TraceRecord(
        id=f"{metadata[REPLAY]}:{metadata[REPLAY_OF]}",
        subject=call.row["subject"],
        input=call.chat,
        output=text,
        steps=[step],
        occurred_at=began,
        metadata=metadata,
    )
    return record.with_identity([metadata[REPLAY], metadata[REPLAY_OF]])


def _is_equal(before: str | None, after: str | None) -> bool:
    return (before or "").strip() == (after or "").strip()


def show_replay(ws: Workspace, agent: Agent, replay_id: str) -> ShownReplay:
    """Return a replay with its answers side by side, in the order in which they were asked. Raises
    NotFound if the agent has no such replay."""
    with ws.db.read() as connection:
        rows = by_metadata(connection, agent.id, REPLAY_SOURCE, REPLAY, [replay_id])
    if not rows:
        raise NotFound(
            f"replay {replay_id!r}",
            f"agent {agent.slug!r} has none with that id",
            f"Begin one: thumbwheel replay run latest --agent {agent.slug}",
        )
    rows.sort(key=lambda row: row["metadata"][POSITION])
    recorded_ids = [str(row["metadata"][REPLAY_OF]) for row in rows]
    summaries = _summaries(ws, agent, [*recorded_ids, *(row["id"] for row in rows)])
    shown = []
    for row, recorded_id in zip(rows, recorded_ids, strict=True):
        recorded, replayed = summaries.get(recorded_id), summaries.get(row["id"])
        if recorded is not None and replayed is not None:  # retention may have taken one of them
            shown.append(_beside(recorded, replayed))
    votes: Counter[Winner] = Counter()
    for trace in shown:
        votes.update(trace.votes)
    return ShownReplay(
        id=replay_id,
        agent=agent.slug,
        version=str(rows[0]["metadata"][VERSION]),
        traces=tuple(shown),
        equal=sum(trace.is_equal for trace in shown),
        votes=dict(votes),
    )


def _summaries(ws: Workspace, agent: Agent, trace_ids: Sequence[str]) -> dict[str, TraceSummary]:
    wanted = TraceFilter(trace_ids=tuple(trace_ids))
    summaries: dict[str, TraceSummary] = {}
    after = None
    while True:
        page = list_traces(ws, agent.slug, wanted, limit=len(trace_ids), after=after)
        summaries.update((summary.id, summary) for summary in page.traces)
        after = page.after
        if after is None:
            return summaries


def _beside(recorded: TraceSummary, replayed: TraceSummary) -> ReplayedTrace:
    votes = Counter(WINNERS[word] for word in replayed.feedback if word in WINNERS)
    return ReplayedTrace(
        recorded=recorded.id,
        replayed=replayed.id,
        question=recorded.input or "",
        before=recorded.output or "",
        after=replayed.output or "",
        answered_by=recorded.version or recorded.model or "",
        is_equal=_is_equal(recorded.output, replayed.output),
        votes=dict(votes),
    )
