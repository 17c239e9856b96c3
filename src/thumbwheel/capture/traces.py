"""Verbs for looking at traces: list them by filters, show one with its steps and feedback."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

from thumbwheel.capture import trace_queries
from thumbwheel.capture.trace_filter import TraceFilter
from thumbwheel.capture.trace_queries import NOTHING_KNOWN, CallTotals
from thumbwheel.capture.trace_types import ShownTrace, TracePage, TraceSummary
from thumbwheel.db.message_chains import conversation
from thumbwheel.db.page_cursor import PageCursor
from thumbwheel.db.workspace import IMPORTED, OWNER_OF_HOME, Workspace
from thumbwheel.importers.fields import content_text
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import require_agent


def list_traces(
    ws: Workspace,
    agent: str,
    wanted: TraceFilter | None = None,
    *,
    limit: int = 20,
    after: str | None = None,
    seconds: float = 0.0,
) -> TracePage:
    """Return a page of the agent's traces. A search for a text reads as many traces as take tens of
    milliseconds, and more while the page is not full and fewer than `seconds` have passed. A page
    ends before its limit when its traces have as much content as a page may have.

    Raises NotFound for an unknown agent, InputError for an invalid cursor.
    """
    agent_id = require_agent(ws, agent).id
    cursor = PageCursor.read(after) if after else None
    wanted = wanted or TraceFilter()
    end = time.monotonic() + seconds
    with ws.db.read() as connection:
        search = trace_queries.trace_page(connection, agent_id, wanted, limit + 1, cursor)
        matches = search.trace_ids
        while search.searched_to is not None and time.monotonic() < end:
            missing = limit + 1 - len(matches)
            search = trace_queries.trace_page(
                connection, agent_id, wanted, missing, search.searched_to
            )
            matches += search.trace_ids
        trace_ids = trace_queries.fitting_traces(connection, matches[:limit])
        page = trace_queries.listed(connection, trace_ids)
        calls = trace_queries.last_calls(connection, trace_ids)
        totals = trace_queries.call_totals(connection, trace_ids)
        judgements = trace_queries.judgements(connection, agent_id, trace_ids)
    summaries = []
    for row in page:
        call = calls.get(row["id"])
        words = [dict(judgement) for judgement in judgements.get(row["id"], [])]
        took = totals.get(row["id"], NOTHING_KNOWN)
        summaries.append(_summary(dict(row), dict(call) if call else None, words, took))
    is_whole = len(trace_ids) == len(matches)
    if is_whole and search.searched_to is not None:
        searched_to = search.searched_to
        return TracePage(summaries, searched_to.to_text(), searched_to.recorded_at)
    if is_whole:
        return TracePage(summaries, None)
    last = PageCursor(page[-1]["recorded_at"], page[-1]["id"])
    return TracePage(summaries, last.to_text())


def count_matching(ws: Workspace, agent: str, wanted: TraceFilter, most: int) -> int | None:
    """Return how many of the agent's traces match, at most `most`; None for a search in texts or
    feedback, which would have to look at every trace."""
    agent_id = require_agent(ws, agent).id
    with ws.db.read() as connection:
        return trace_queries.count_matches(connection, agent_id, wanted, most)


def count_traces(ws: Workspace, agent: str) -> int:
    """Return the number of stored traces of an agent; 0 if the agent does not exist."""
    with ws.db.read() as connection:
        return trace_queries.count(connection, Agent.named(agent).id)


def show_trace(ws: Workspace, agent: str, name: str) -> ShownTrace:
    """Return everything about a trace: its chat, steps, feedback and the runs inside it. `name` is
    our id, its beginning, or the id in its source. Raises NotFound, and InputError if several
    traces match."""
    owner = require_agent(ws, agent)
    agent_id = owner.id
    with ws.db.read() as connection:
        row = trace_queries.trace_row(connection, owner, name)
        chat = conversation(connection, row["input_id"])
        steps = trace_queries.steps_of(connection, row["id"])
        judgements = trace_queries.judgements(connection, agent_id, [row["id"]])
        children = trace_queries.children(connection, agent_id, row["id"])
    hidden = ("agent_id", "session_id", "subject_id", "input_id", "fingerprint", "seal")
    shown = {
        **{key: row[key] for key in row if key not in hidden},
        "input": chat,
        "steps": [_step(dict(step)) for step in steps],
        "feedback": [_judgement(dict(judgement)) for judgement in judgements.get(row["id"], [])],
        "children": children,
    }
    return cast(ShownTrace, shown)


def signal(judgement: Mapping[str, Any]) -> str:
    """Return a judgement in a word or two.

    >>> signal({"kind": "thumb", "value": False, "name": None, "position": 0})
    'thumb down'
    """
    kind, value, name = judgement["kind"], judgement["value"], judgement["name"]
    if kind == "thumb":
        return "thumb up" if value else "thumb down"
    if kind in ("rating", "score"):
        return f"{kind} {value:g}"
    if kind in ("label", "outcome"):
        return f"{name} {value}" if isinstance(value, bool) else f"{name}: {value}"
    if kind == "preference":
        best = value["ranking"][0]
        if judgement["position"] not in best:
            return "not preferred"
        return "preferred" if len(best) == 1 else "tie"
    return str(kind)


def is_tag(judgement: Mapping[str, Any]) -> bool:
    """Return whether a judgement only gives the answer a name, as the tags of the bench do."""
    return judgement["kind"] == "label" and judgement["value"] is True


def _summary(
    row: Mapping[str, Any],
    call: Mapping[str, Any] | None,
    words: Sequence[Mapping[str, Any]],
    took: CallTotals,
) -> TraceSummary:
    number = call["version_number"] if call else None
    tags = dict.fromkeys(str(word["name"]) for word in words if is_tag(word))
    return TraceSummary(
        id=row["id"],
        external_id=row["external_id"],
        source=row["source"],
        session=row["session"],
        subject=row["subject"],
        status=row["status"],
        input=content_text(row["message"].get("content")),
        output=row["output"],
        model=(call["served_model"] or call["requested_model"]) if call else None,
        version=None if number is None else f"v{number}",
        feedback=[signal(word) for word in words],
        occurred_at=row["occurred_at"],
        recorded_at=row["recorded_at"],
        seconds=took.seconds,
        prompt_tokens=took.prompt_tokens,
        completion_tokens=took.completion_tokens,
        cost=took.cost,
        tags=tuple(tags),
    )


def _step(row: Mapping[str, Any]) -> dict[str, Any]:
    hidden = (
        "trace_id",
        "agent_id",
        "recorded_at",
        "model_version_id",
        "version_number",
        "token_ids",
        "token_logprobs",
    )
    step = {key: row[key] for key in row if key not in hidden and row[key] is not None}
    if row["version_number"] is not None:
        step["version"] = f"v{row['version_number']}"
    if row["token_ids"] is not None:
        step["recorded_tokens"] = len(row["token_ids"])
    return step


def said_for(row: Mapping[str, Any]) -> str | None:
    """Return who sent the feedback if it was not the rater; None if the rater did, and for files
    and the home's own app.

    >>> said_for({"sender": "key_1", "sender_name": "mobile-app", "rater": "customer-17"})
    'said by mobile-app for customer-17'
    >>> said_for({"sender": "usr_1", "sender_name": "ann", "rater": "ann"})
    """
    sender, rater = row["sender_name"], row["rater"]
    if row["sender"] in (None, OWNER_OF_HOME, IMPORTED) or sender == rater:
        return None
    return f"said by {sender} for {rater or 'nobody by name'}"


def _judgement(row: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("id", "kind", "name", "value", "comment", "rater", "sender", "step", "source")
    fields = {key: row[key] for key in keys if row[key] is not None}
    if (speaker := said_for(row)) is not None:
        fields["said"] = speaker
    return {**fields, "at": row["occurred_at"] or row["recorded_at"]}
