"""SQL for looking at traces: pages of them, newest first, and one with everything about it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import repeat
from typing import Any

import sqlalchemy as sa

from thumbwheel.capture.judged import KINDS, meaning
from thumbwheel.capture.trace_filter import TraceFilter
from thumbwheel.capture.trace_types import REPLAY_SOURCE
from thumbwheel.core import ids
from thumbwheel.core.errors import InputError, NotFound
from thumbwheel.db import feedback_in_force, message_chains
from thumbwheel.db.batches import batches
from thumbwheel.db.columns import has_id
from thumbwheel.db.engine import streamed
from thumbwheel.db.page_content import content_length, fitting
from thumbwheel.db.page_cursor import PageCursor
from thumbwheel.db.schema import (
    feedback,
    feedback_targets,
    messages,
    model_versions,
    raters,
    sessions,
    steps,
    subjects,
    traces,
)
from thumbwheel.models.types import Agent

MOST = 5_000
"""Values in one IN list."""
MOST_NAMES = 5_000
"""Traces that are named at once."""
FEW = 5_000
"""Traces that are looked up one by one and sorted."""
WINDOWS = (500, 1_500, 6_000)
"""Traces whose texts and feedback are looked at, one group after the other, while a page is not
full. A frequent word fills it from the first; a rare one costs no request more than these."""
SENDER = feedback_in_force.sender_name()
OPINION: tuple[sa.ColumnElement[Any], ...] = (
    feedback.c.kind,
    sa.case(
        (feedback.c.kind == "correction", sa.null()),
        else_=feedback.c.value,
    ).label("value"),
    feedback.c.scale,
)


@dataclass(frozen=True)
class Found:
    """Ids of traces for a page; `searched_to` is the last trace that was looked at where there are
    more which were not."""

    trace_ids: list[str]
    searched_to: PageCursor | None = None


def count(connection: sa.Connection, agent_id: str) -> int:
    """Return the number of traces of an agent."""
    query = sa.select(sa.func.count()).where(traces.c.agent_id == agent_id)
    return int(connection.execute(query).scalar_one())


def count_matches(
    connection: sa.Connection, agent_id: str, wanted: TraceFilter, most: int
) -> int | None:
    """Return how many traces match, at most `most`; None for a search in texts or feedback, which
    would have to look at every trace."""
    if wanted.is_searched:
        return None
    page = _page(connection, agent_id, wanted, most, None).order_by(None).subquery()
    return int(connection.execute(sa.select(sa.func.count()).select_from(page)).scalar_one())


def trace_page(
    connection: sa.Connection,
    agent_id: str,
    wanted: TraceFilter,
    limit: int,
    after: PageCursor | None,
) -> Found:
    """Find the newest traces after the cursor."""
    if not wanted.is_searched:
        page = _page(connection, agent_id, wanted, limit, after)
        return Found([row.id for row in connection.execute(page)])
    trace_ids: list[str] = []
    searched_to = after
    for matches, searched_to in _searched(connection, agent_id, wanted, WINDOWS, after):
        trace_ids += matches
        if len(trace_ids) >= limit:
            searched_to = None
            break
    return Found(trace_ids[:limit], searched_to)


def _searched(
    connection: sa.Connection,
    agent_id: str,
    wanted: TraceFilter,
    windows: Iterable[int],
    after: PageCursor | None,
) -> Iterator[tuple[list[str], PageCursor | None]]:
    """Yield for each window the ids of its traces that match `wanted`, newest first, and the cursor
    of its last trace, None if there are no older traces."""
    for window in windows:
        candidates = _page(connection, agent_id, wanted, window, after)
        matches = _matches(connection, agent_id, candidates.subquery(), wanted)
        last = candidates.offset(window - 1).limit(1)
        row = connection.execute(last).first()
        after = None if row is None else PageCursor(row.recorded_at, row.id)
        yield matches, after
        if after is None:
            return


def _matches(
    connection: sa.Connection, agent_id: str, candidates: sa.Subquery, wanted: TraceFilter
) -> list[str]:
    """Return the ids of the candidates that match the text and the judgement of `wanted`, newest
    first."""
    query = (
        sa.select(candidates.c.id, traces.c.input_id)
        .join(traces, traces.c.id == candidates.c.id)
        .order_by(candidates.c.recorded_at.desc(), candidates.c.id.desc())
    )
    if wanted.text is not None:
        query = query.join(messages, messages.c.id == traces.c.input_id)
        query = query.where(_has_text(wanted.text))
    if wanted.judged is not None:
        query = query.where(_is_rated(KINDS[wanted.judged]))
    rows = connection.execute(query).all()
    if wanted.prompt is not None:
        first_ids = message_chains.roots(connection, {row.input_id for row in rows})
        rows = [row for row in rows if first_ids.get(row.input_id) == wanted.prompt]
    trace_ids = [row.id for row in rows]
    if wanted.judged is None:
        return trace_ids
    by_trace = judgements(connection, agent_id, trace_ids, is_brief=True)
    return [
        trace_id
        for trace_id in trace_ids
        if any(meaning(dict(row)) is wanted.judged for row in by_trace.get(trace_id, ()))
    ]


def fitting_traces(connection: sa.Connection, trace_ids: Sequence[str]) -> list[str]:
    """Return the first of these ids, as many as a page has room for with the feedback on them."""
    message = (
        sa.select(content_length(messages.c.content))
        .where(messages.c.id == traces.c.input_id)
        .scalar_subquery()
    )
    judged = (
        sa.select(sa.func.sum(content_length(feedback.c.value, feedback.c.comment)))
        .join(feedback_targets, feedback_targets.c.feedback_id == feedback.c.id)
        .where(feedback_targets.c.target_id == traces.c.id)
        .scalar_subquery()
    )
    length = content_length(traces.c.output) + message + sa.func.coalesce(judged, 0)
    return fitting(connection, trace_ids, traces.c.id, length)


def listed(connection: sa.Connection, trace_ids: Sequence[str]) -> list[sa.RowMapping]:
    """Return the rows that a list shows for these traces, with their session, subject and last
    message, newest first."""
    rows: list[sa.RowMapping] = []
    for part in batches(trace_ids, MOST):
        query = (
            sa.select(
                traces.c.id,
                traces.c.external_id,
                traces.c.source,
                traces.c.status,
                traces.c.output,
                traces.c.occurred_at,
                traces.c.recorded_at,
                sessions.c.external_id.label("session"),
                subjects.c.external_id.label("subject"),
                messages.c.content.label("message"),
            )
            .join(messages, messages.c.id == traces.c.input_id)
            .outerjoin(sessions, sessions.c.id == traces.c.session_id)
            .outerjoin(subjects, subjects.c.id == traces.c.subject_id)
            .where(traces.c.id.in_(part))
            .order_by(traces.c.recorded_at.desc(), traces.c.id.desc())
        )
        rows += connection.execute(query).mappings()
    return rows


def answered_traces(
    connection: sa.Connection, agent_id: str, wanted: TraceFilter, most: int
) -> Iterator[sa.Row[Any]]:
    """Yield (id, input_id, output) of the newest traces with an answer, at most `most`."""
    wanted = replace(wanted, answered=True)
    columns: list[sa.ColumnElement[Any]] = [traces.c.id, traces.c.input_id, traces.c.output]
    newest_first = sa.select(*columns).order_by(traces.c.recorded_at.desc(), traces.c.id.desc())
    if not wanted.is_searched:
        page = _page(connection, agent_id, wanted, most, None).subquery()
        yield from streamed(connection, newest_first.where(traces.c.id.in_(sa.select(page.c.id))))
        return
    left = most
    for matches, _ in _searched(connection, agent_id, wanted, repeat(MOST), None):
        rows = connection.execute(newest_first.where(traces.c.id.in_(matches)).limit(left)).all()
        yield from rows
        left -= len(rows)
        if left == 0:
            return


def _page(
    connection: sa.Connection,
    agent_id: str,
    wanted: TraceFilter,
    limit: int,
    after: PageCursor | None,
) -> sa.Select[Any]:
    """Return a query for time and id of the traces of a page, whatever their text. Other columns
    are looked up for these traces only."""
    narrow = _narrow_conditions(connection, agent_id, wanted)
    wide = _wide_conditions(wanted)
    calls = _call_conditions(connection, agent_id, wanted)
    if calls and not narrow:
        by_call, *other_calls = calls
        wide += [_has_call(call) for call in other_calls]
        return _page_by_calls(by_call, agent_id, wide, limit, after)
    conditions = [
        _is_agent(agent_id, has_better_index=bool(narrow)),
        *narrow,
        *wide,
        *(_has_call(call) for call in calls),
        *_after(after, traces.c.recorded_at, traces.c.id),
    ]
    return (
        sa.select(traces.c.recorded_at, traces.c.id)
        .where(*conditions)
        .order_by(traces.c.recorded_at.desc(), traces.c.id.desc())
        .limit(limit)
    )


def _page_by_calls(
    by_call: Sequence[sa.ColumnElement[bool]],
    agent_id: str,
    conditions: Sequence[sa.ColumnElement[bool]],
    limit: int,
    after: PageCursor | None,
) -> sa.Select[Any]:
    """Return a query for a page of the traces with a call that meets one of `by_call`. Each of
    these conditions has an index in the order of the list, so the page is part of the union of
    their pages."""
    parts = []
    for condition in by_call:
        part = (
            sa.select(steps.c.recorded_at, steps.c.trace_id.label("id"))
            .distinct()
            .join(traces, traces.c.id == steps.c.trace_id)
            .where(
                condition,
                _is_agent(agent_id, has_better_index=True),
                *conditions,
                *_after(after, steps.c.recorded_at, steps.c.trace_id),
            )
            .order_by(steps.c.recorded_at.desc(), steps.c.trace_id.desc())
            .limit(limit)
        )
        parts.append(sa.select(part.subquery()))
    page = sa.union(*parts).subquery()
    return (
        sa.select(page.c.recorded_at, page.c.id)
        .order_by(page.c.recorded_at.desc(), page.c.id.desc())
        .limit(limit)
    )


def _after(
    after: PageCursor | None, recorded_at: sa.ColumnElement[Any], trace_id: sa.ColumnElement[Any]
) -> list[sa.ColumnElement[bool]]:
    """Return the conditions for rows after the cursor. The first one tells the database where in
    its index the page begins."""
    if after is None:
        return []
    is_later = sa.or_(recorded_at < after.recorded_at, trace_id < after.id)
    return [recorded_at <= after.recorded_at, is_later]


def _narrow_conditions(
    connection: sa.Connection, agent_id: str, wanted: TraceFilter
) -> list[sa.ColumnElement[bool]]:
    """Return the conditions that few traces of the home meet, and that use an index."""
    narrow: list[sa.ColumnElement[bool]] = []
    if wanted.trace_ids is not None:
        narrow.append(traces.c.id.in_(wanted.trace_ids))
    if wanted.session is not None:
        narrow.append(_belongs(connection, agent_id, traces.c.session_id, sessions, wanted.session))
    if wanted.subject is not None:
        narrow.append(_belongs(connection, agent_id, traces.c.subject_id, subjects, wanted.subject))
    has_calls = wanted.model is not None or wanted.version is not None
    if wanted.status is not None and has_calls:
        of_status = sa.select(traces.c.id).where(
            traces.c.agent_id == agent_id, traces.c.status == wanted.status
        )
        if _are_few(connection, of_status):
            narrow.append(traces.c.id.in_(of_status))
    return narrow


def _call_conditions(
    connection: sa.Connection, agent_id: str, wanted: TraceFilter
) -> list[list[sa.ColumnElement[bool]]]:
    """Return the conditions on the calls of a trace: for each list, some call must meet one
    condition."""
    calls = []
    if wanted.model is not None:
        names = (steps.c.requested_model, steps.c.served_model)
        is_agent = steps.c.agent_id == agent_id
        calls.append([sa.and_(is_agent, name == wanted.model) for name in names])
    if wanted.version is not None:
        query = sa.select(model_versions.c.id).where(
            model_versions.c.agent_id == agent_id, model_versions.c.number == wanted.version
        )
        version_id = connection.execute(query).scalar()
        is_version = steps.c.model_version_id == version_id
        calls.append([sa.false() if version_id is None else is_version])
    return calls


def _has_call(alternatives: Sequence[sa.ColumnElement[bool]]) -> sa.ColumnElement[bool]:
    """Return the condition that a trace has a call that meets one of these."""
    return sa.exists().where(steps.c.trace_id == traces.c.id, sa.or_(*alternatives))


def _has_text(text: str) -> sa.ColumnElement[bool]:
    """Return the condition that the answer or the last message of a trace contains the text."""
    message = messages.c.content["content"].as_string()
    return sa.or_(
        traces.c.output.icontains(text, autoescape=True),
        message.icontains(text, autoescape=True),
    )


def _wide_conditions(wanted: TraceFilter) -> list[sa.ColumnElement[bool]]:
    """Return the conditions that are checked while reading the traces in their order."""
    conditions: list[sa.ColumnElement[bool]] = []
    if wanted.answered:
        conditions.append(traces.c.output.is_not(None))
    if wanted.without_source is not None:
        conditions.append(traces.c.source != wanted.without_source)
    if wanted.status is not None:
        conditions.append(traces.c.status == wanted.status)
    if wanted.since is not None:
        conditions.append(traces.c.recorded_at >= wanted.since)
    if wanted.until is not None:
        conditions.append(traces.c.recorded_at < wanted.until)
    if wanted.rated is not None:
        conditions.append(_is_rated() if wanted.rated else sa.not_(_is_rated()))
    return conditions


def _is_rated(kinds: Sequence[str] = ()) -> sa.ColumnElement[bool]:
    """Return the condition that a trace or a step of it has feedback, of one of these kinds if any
    are given."""
    conditions = [
        feedback_targets.c.target_id == traces.c.id,
        feedback_targets.c.kind.in_(("trace", "step")),
    ]
    if kinds:
        conditions.append(feedback.c.id == feedback_targets.c.feedback_id)
        conditions.append(feedback.c.kind.in_(kinds))
    return sa.exists().where(*conditions)


def _is_agent(agent_id: str, has_better_index: bool) -> sa.ColumnElement[bool]:
    """Return the condition that a trace is the agent's. SQLite assumes that each of many agents has
    few traces, and would read all traces of this agent; an expression instead of the column
    prevents that."""
    if has_better_index:
        return traces.c.agent_id.concat("") == agent_id
    return traces.c.agent_id == agent_id


def _belongs(
    connection: sa.Connection,
    agent_id: str,
    column: sa.ColumnElement[Any],
    table: sa.Table,
    name: str,
) -> sa.ColumnElement[bool]:
    """Return the condition that a trace belongs to the session or subject of this name, which
    several sources may have."""
    query = sa.select(table.c.id).where(table.c.agent_id == agent_id, table.c.external_id == name)
    row_ids = list(connection.execute(query).scalars())
    return column == row_ids[0] if len(row_ids) == 1 else column.in_(row_ids)


def _are_few(connection: sa.Connection, trace_ids: sa.Select[Any]) -> bool:
    """Return whether a query finds at most FEW traces, which are then looked up one by one and
    sorted."""
    limited = trace_ids.limit(FEW + 1).subquery()
    count = connection.execute(sa.select(sa.func.count()).select_from(limited)).scalar_one()
    return int(count) <= FEW


def last_calls(connection: sa.Connection, trace_ids: Sequence[str]) -> dict[str, sa.RowMapping]:
    """Return trace id -> the models of its last call, with the number of the version."""
    calls: dict[str, sa.RowMapping] = {}
    for part in batches(trace_ids, MOST):
        query = (
            sa.select(
                steps.c.trace_id,
                steps.c.requested_model,
                steps.c.served_model,
                model_versions.c.number.label("version_number"),
            )
            .outerjoin(model_versions, model_versions.c.id == steps.c.model_version_id)
            .where(steps.c.trace_id.in_(part), steps.c.kind == "llm")
            .order_by(steps.c.trace_id, steps.c.position)
        )
        for row in connection.execute(query).mappings():
            calls[row["trace_id"]] = row
    return calls


@dataclass(frozen=True)
class CallTotals:
    """What the steps of a trace took together; None where nobody knows."""

    seconds: float | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cost: float | None


NOTHING_KNOWN = CallTotals(None, None, None, None)


def call_totals(connection: sa.Connection, trace_ids: Sequence[str]) -> dict[str, CallTotals]:
    """Return trace id -> what its steps took together, of the traces that have steps."""
    totals: dict[str, CallTotals] = {}
    for part in batches(trace_ids, MOST):
        query = (
            sa.select(
                steps.c.trace_id,
                sa.func.min(steps.c.started_at, type_=steps.c.started_at.type).label("started_at"),
                sa.func.max(steps.c.ended_at, type_=steps.c.ended_at.type).label("ended_at"),
                sa.func.sum(steps.c.prompt_tokens).label("prompt_tokens"),
                sa.func.sum(steps.c.completion_tokens).label("completion_tokens"),
                sa.func.sum(steps.c.cost).label("cost"),
            )
            .where(steps.c.trace_id.in_(part))
            .group_by(steps.c.trace_id)
        )
        for row in connection.execute(query):
            seconds = None
            if row.started_at is not None and row.ended_at is not None:
                seconds = (row.ended_at - row.started_at).total_seconds()
            tokens = (row.prompt_tokens, row.completion_tokens)
            totals[row.trace_id] = CallTotals(seconds, *tokens, row.cost)
    return totals


def judgements(
    connection: sa.Connection,
    agent_id: str,
    trace_ids: Sequence[str],
    *,
    replays: bool = True,
    is_brief: bool = False,
) -> dict[str, list[sa.RowMapping]]:
    """Return trace id -> the feedback in force on it or a step of it, oldest first. Without
    `replays`, votes between it and the answer of a replay are left out. A brief one has only the
    columns for `meaning`, without the texts of corrections."""
    columns = OPINION if is_brief else (feedback, raters.c.external_id.label("rater"), SENDER)
    by_trace: dict[str, list[sa.RowMapping]] = {}
    for part in batches(trace_ids, MOST):
        among = sa.select(feedback_targets.c.feedback_id).where(
            feedback_targets.c.target_id.in_(part),
            feedback_targets.c.kind.in_(("trace", "step")),
        )
        if not replays:
            among = among.where(
                feedback_targets.c.feedback_id.not_in(_feedback_of_replays(agent_id))
            )
        query = (
            sa.select(
                *columns,
                feedback_targets.c.target_id,
                feedback_targets.c.position,
                feedback_targets.c.step,
            )
            .select_from(feedback)
            .join(feedback_targets, feedback_targets.c.feedback_id == feedback.c.id)
            .outerjoin(raters, raters.c.id == feedback.c.rater_id)
            .where(
                feedback_targets.c.target_id.in_(part),
                feedback_targets.c.kind.in_(("trace", "step")),
                feedback.c.id.in_(feedback_in_force.newest_words(agent_id, among=among)),
            )
            .order_by(feedback.c.recorded_at, feedback.c.id)
        )
        for row in connection.execute(query).mappings():
            by_trace.setdefault(row["target_id"], []).append(row)
    return by_trace


def named_traces(connection: sa.Connection, agent_id: str, name: str) -> list[sa.RowMapping]:
    """Return at most 6 traces with this id, ours (or its beginning) or their source's."""
    query = (
        sa.select(
            traces,
            sessions.c.external_id.label("session"),
            subjects.c.external_id.label("subject"),
        )
        .outerjoin(sessions, sessions.c.id == traces.c.session_id)
        .outerjoin(subjects, subjects.c.id == traces.c.subject_id)
        .where(_is_named(connection, agent_id, name))
        .order_by(traces.c.id)
        .limit(6)
    )
    return list(connection.execute(query).mappings())


def _is_named(connection: sa.Connection, agent_id: str, name: str) -> sa.ColumnElement[bool]:
    """Return the condition that a trace has this id, ours (or its beginning) or its source's."""
    names = [has_id(traces.c.id, name)]
    if sources := _sources(connection, agent_id):
        by_source = sa.and_(traces.c.source.in_(sources), traces.c.external_id == name)
        names.append(sa.and_(traces.c.agent_id == agent_id, by_source))
    return sa.and_(_is_agent(agent_id, has_better_index=True), sa.or_(*names))


def trace_ids(connection: sa.Connection, agent: Agent, names: Iterable[str]) -> list[str]:
    """Return the ids of the named traces, each once. A name is our id, its beginning, or the id in
    the trace's source. Raises NotFound, InputError for a name of several traces, or too many."""
    named: dict[str, None] = {}
    different = dict.fromkeys(names)
    if len(different) > MOST_NAMES:
        raise InputError(
            f"{len(different):,} traces",
            f"at most {MOST_NAMES:,} are named at once",
            "Name them in several parts",
        )
    for name in different:
        query = (
            sa.select(traces.c.id)
            .where(_is_named(connection, agent.id, name))
            .order_by(traces.c.id)
            .limit(6)
        )
        matches = list(connection.execute(query).scalars())
        if not matches:
            raise NotFound(
                f"trace {name!r}",
                f"agent {agent.slug!r} has none of that id",
                f"See: thumbwheel traces list --agent {agent.slug}",
            )
        ids.require_single(name, matches)
        named[matches[0]] = None
    return list(named)


def without_answer(connection: sa.Connection, trace_ids: Sequence[str]) -> list[str]:
    """Return those of these traces that have no answer."""
    silent: list[str] = []
    for part in batches(trace_ids):
        query = sa.select(traces.c.id).where(traces.c.id.in_(part), traces.c.output.is_(None))
        silent += connection.execute(query).scalars()
    return silent


def trace_row(connection: sa.Connection, agent: Agent, name: str) -> sa.RowMapping:
    """Return the row of a trace. `name` is our id, its beginning, or the id in its source. Raises
    NotFound, and InputError if several traces match."""
    rows = named_traces(connection, agent.id, name)
    if not rows:
        raise NotFound(
            f"trace {name!r}",
            f"agent {agent.slug!r} has no such trace",
            f"See: thumbwheel traces list --agent {agent.slug}",
        )
    ids.require_single(name, [row["id"] for row in rows])
    return rows[0]


def by_metadata(
    connection: sa.Connection, agent_id: str, source: str, key: str, values: Sequence[str]
) -> list[sa.RowMapping]:
    """Return the traces of a source whose metadata has one of these values under the key, the
    newest first."""
    rows: list[sa.RowMapping] = []
    for part in batches(values, MOST):
        query = sa.select(traces).where(
            traces.c.agent_id == agent_id,
            traces.c.source == source,
            traces.c.metadata[key].as_string().in_(part),
        )
        rows += connection.execute(query).mappings()
    rows.sort(key=lambda row: (row["recorded_at"], row["id"]), reverse=True)
    return rows


def with_metadata(
    connection: sa.Connection, agent_id: str, key: str, name: str | None = None
) -> dict[str, sa.RowMapping]:
    """Return the traces whose metadata has this key, or only the one with this `name` in its
    source: id -> external_id, source, recorded_at and subject."""
    query = (
        sa.select(
            traces.c.id,
            traces.c.external_id,
            traces.c.source,
            traces.c.recorded_at,
            subjects.c.external_id.label("subject"),
        )
        .outerjoin(subjects, subjects.c.id == traces.c.subject_id)
        .where(
            traces.c.agent_id == agent_id,
            traces.c.metadata[key].as_string().is_not(None),
            *([] if name is None else [traces.c.external_id == name]),
        )
    )
    return {row["id"]: row for row in connection.execute(query).mappings()}


def having_metadata(connection: sa.Connection, trace_ids: Sequence[str], key: str) -> set[str]:
    """Return the ids of those `trace_ids` whose metadata has this key."""
    having: set[str] = set()
    for part in batches(trace_ids, MOST):
        query = sa.select(traces.c.id).where(
            traces.c.id.in_(part), traces.c.metadata[key].as_string().is_not(None)
        )
        having.update(connection.execute(query).scalars())
    return having


def newest_with_metadata(
    connection: sa.Connection,
    agent_id: str,
    key: str,
    limit: int,
    offset: int,
    inner: tuple[str, str] | None = None,
) -> list[sa.RowMapping]:
    """Return a page of the traces whose metadata has this key, the newest first: the columns of
    `with_metadata`, and `happened_at`. `inner` is a (name, value) that the metadata must have under
    the key."""
    happened_at = sa.func.coalesce(traces.c.occurred_at, traces.c.recorded_at)
    conditions = [
        traces.c.agent_id == agent_id,
        traces.c.metadata[key].as_string().is_not(None),
    ]
    if inner is not None:
        name, value = inner
        conditions.append(traces.c.metadata[(key, name)].as_string() == value)
    query = (
        sa.select(
            traces.c.id,
            traces.c.external_id,
            traces.c.source,
            traces.c.recorded_at,
            happened_at.label("happened_at"),
            subjects.c.external_id.label("subject"),
        )
        .outerjoin(subjects, subjects.c.id == traces.c.subject_id)
        .where(*conditions)
        .order_by(happened_at.desc(), traces.c.id.desc())
        .limit(limit)
        .offset(offset)
    )
    return list(connection.execute(query).mappings())


def judged_traces(
    connection: sa.Connection,
    agent_id: str,
    source: str,
    kind: str,
    names: Sequence[str] | None = None,
) -> list[sa.RowMapping]:
    """Return the feedback of a kind in force on the traces of a source, or on those with these
    names, with the `trace_metadata`; the oldest first."""
    about = [
        traces.c.agent_id == agent_id,
        traces.c.source == source,
        feedback_targets.c.kind == "trace",
    ]
    if names is not None:
        about.append(traces.c.external_id.in_(names))
    joined = feedback_targets.join(traces, traces.c.id == feedback_targets.c.target_id)
    among = sa.select(feedback_targets.c.feedback_id).select_from(joined).where(*about)
    in_force = feedback_in_force.newest_words(agent_id, among=among)
    query = (
        sa.select(
            feedback,
            raters.c.external_id.label("rater"),
            traces.c.metadata.label("trace_metadata"),
        )
        .join(feedback_targets, feedback_targets.c.feedback_id == feedback.c.id)
        .join(traces, traces.c.id == feedback_targets.c.target_id)
        .outerjoin(raters, raters.c.id == feedback.c.rater_id)
        .where(*about, feedback.c.kind == kind, feedback.c.id.in_(in_force))
        .order_by(feedback.c.recorded_at, feedback.c.id)
    )
    return list(connection.execute(query).mappings())


def _sources(connection: sa.Connection, agent_id: str) -> list[str]:
    """Return the sources of the agent's traces, each found by one step in the index instead of
    reading all rows."""
    sources: list[str] = []
    while True:
        query = sa.select(sa.func.min(traces.c.source)).where(traces.c.agent_id == agent_id)
        if sources:
            query = query.where(traces.c.source > sources[-1])
        source = connection.execute(query).scalar()
        if source is None:
            return sources
        sources.append(source)


def children(connection: sa.Connection, agent_id: str, trace_id: str) -> list[str]:
    """Return the ids of the traces of agents that this run called, in order."""
    query = (
        sa.select(traces.c.id)
        .where(_is_agent(agent_id, has_better_index=True), traces.c.parent_id == trace_id)
        .order_by(traces.c.occurred_at.nulls_first(), traces.c.id)
    )
    return list(connection.execute(query).scalars())


def steps_of(connection: sa.Connection, trace_id: str) -> list[sa.RowMapping]:
    """Return the steps of a trace, in order, with the number of the version."""
    query = (
        sa.select(steps, model_versions.c.number.label("version_number"))
        .outerjoin(model_versions, model_versions.c.id == steps.c.model_version_id)
        .where(steps.c.trace_id == trace_id)
        .order_by(steps.c.position)
    )
    return list(connection.execute(query).mappings())


def answered_calls(
    connection: sa.Connection, agent_id: str, since: datetime, most: int
) -> list[sa.RowMapping]:
    """Return the newest answered calls since `since` that the gateway recorded, at most `most`:
    metadata and input_id of the trace, tools, parameters and token counts of the call."""
    query = (
        sa.select(
            traces.c.metadata,
            traces.c.input_id,
            steps.c.input,
            steps.c.sampling,
            steps.c.prompt_tokens,
            steps.c.completion_tokens,
        )
        .join(steps, steps.c.trace_id == traces.c.id)
        .where(
            traces.c.agent_id == agent_id,
            traces.c.recorded_at >= since,
            traces.c.status == "ok",
            traces.c.seal.is_not(None),
            steps.c.kind.in_(("llm", "task")),
        )
        .order_by(traces.c.recorded_at.desc(), traces.c.id.desc())
        .limit(most)
    )
    return list(connection.execute(query).mappings())


def inputs_with(
    connection: sa.Connection,
    input_ids: Collection[str],
    has: Callable[[message_chains.Message], bool],
) -> set[str]:
    """Return the `input_ids` (last messages) whose conversation contains a message for which `has`
    is true."""
    links = message_chains.read_links(connection, sorted(input_ids))
    message_chains.add_ancestors(connection, links)
    matching = {message_id for message_id, (_, message) in links.items() if has(message)}
    conversations: set[str] = set()
    for input_id in input_ids:
        message_id: str | None = input_id
        passed: set[str] = set()
        while message_id is not None and message_id in links and message_id not in passed:
            if message_id in matching:
                conversations.add(input_id)
                break
            passed.add(message_id)
            message_id = links[message_id][0]
    return conversations


answered_at: sa.ColumnElement[datetime] = sa.func.coalesce(
    traces.c.occurred_at, traces.c.recorded_at, type_=traces.c.recorded_at.type
)
"""When a trace was answered: as its source says, else when it was recorded."""


def judged_since(
    connection: sa.Connection, agent_id: str, since: datetime, most: int
) -> list[sa.RowMapping]:
    """Return the newest opinions in force that were recorded since then, at most `most`: each with
    its trace, when that was answered, and the version that answered it last. Opinions about an
    answer of a replay are left out, and votes between two answers: the better one may be bad, and
    the other one good."""
    recent = sa.select(feedback.c.id).where(
        feedback.c.agent_id == agent_id,
        feedback.c.recorded_at >= since,
        feedback.c.id.not_in(_feedback_of_replays(agent_id)),
    )
    version_id = (
        sa.select(steps.c.model_version_id)
        .where(steps.c.trace_id == traces.c.id, steps.c.model_version_id.is_not(None))
        .order_by(steps.c.position.desc())
        .limit(1)
        .scalar_subquery()
    )
    query = (
        sa.select(
            feedback.c.kind,
            feedback.c.value,
            feedback.c.scale,
            feedback_targets.c.position,
            traces.c.id.label("trace_id"),
            answered_at.label("answered_at"),
            version_id.label("version_id"),
        )
        .join(feedback_targets, feedback_targets.c.feedback_id == feedback.c.id)
        .join(traces, traces.c.id == feedback_targets.c.target_id)
        .where(
            feedback.c.id.in_(feedback_in_force.newest_words(agent_id, among=recent)),
            feedback.c.kind.in_(("thumb", "rating", "score", "correction")),
            feedback_targets.c.kind == "trace",
        )
        .order_by(feedback.c.recorded_at.desc(), feedback.c.id)
        .limit(most)
    )
    return list(connection.execute(query).mappings())


def _feedback_of_replays(agent_id: str) -> sa.Select[Any]:
    """Return the ids of the feedback about an answer of a replay, alone or beside another one."""
    return (
        sa.select(feedback_targets.c.feedback_id)
        .join(traces, traces.c.id == feedback_targets.c.target_id)
        .where(traces.c.agent_id == agent_id, traces.c.source == REPLAY_SOURCE)
    )


def counts_between(
    connection: sa.Connection, agent_id: str, since: datetime, until: datetime
) -> tuple[int, int]:
    """Return (number of traces, number of failed ones) answered from `since` to before `until`,
    without those of replays."""
    query = sa.select(sa.func.count(), sa.func.count().filter(traces.c.status != "ok")).where(
        *_answered_between(agent_id, since, until)
    )
    total, failed = connection.execute(query).one()
    return total, failed


def call_figures(
    connection: sa.Connection, agent_id: str, since: datetime, until: datetime, most: int
) -> list[sa.RowMapping]:
    """Return cost and times of the newest calls to models in traces answered from `since` to before
    `until`, at most `most`, without those of replays."""
    query = (
        sa.select(steps.c.cost, steps.c.started_at, steps.c.ended_at)
        .join(traces, traces.c.id == steps.c.trace_id)
        .where(*_answered_between(agent_id, since, until), steps.c.kind.in_(("llm", "task")))
        .order_by(traces.c.recorded_at.desc(), traces.c.id.desc())
        .limit(most)
    )
    return list(connection.execute(query).mappings())


def _answered_between(
    agent_id: str, since: datetime, until: datetime
) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the conditions of a trace that was answered in this time. What is imported today may
    be old; nothing is recorded before it was answered, which lets the index find the rows."""
    return (
        traces.c.agent_id == agent_id,
        traces.c.source != REPLAY_SOURCE,
        traces.c.recorded_at >= since,
        answered_at >= since,
        answered_at < until,
    )
