"""SQL of this stage: it reads stored cases, and keeps the ledger of rewards. Feedback in force is
read in feedback_queries.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from thumbwheel.db import feedback_in_force
from thumbwheel.db.columns import has_id
from thumbwheel.db.dialects import json_text
from thumbwheel.db.engine import streamed
from thumbwheel.db.schema import (
    cases,
    feedback,
    feedback_targets,
    messages,
    rewards,
    steps,
    suggestions,
    traces,
)
from thumbwheel.rewards.feedback_queries import JUDGING, in_force, in_range, recorded_traces
from thumbwheel.rewards.types import EVERY_PROMPT, PromptRange


def stored(
    connection: sa.Connection,
    agent_id: str,
    as_of: datetime | None,
    trace_id: str | None,
    among: Collection[str] | None = None,
    prompts: PromptRange = EVERY_PROMPT,
) -> Iterator[sa.RowMapping]:
    """Yield traces recorded by `as_of` (or one of them, or those `among` these ids, or those of
    some `prompts`), in the order of `statements`, each with its case's reference, checker and
    checker_config."""
    columns = (
        traces.c.id,
        traces.c.input_id,
        traces.c.session_id,
        traces.c.output,
        traces.c.status,
        traces.c.metadata,
        traces.c.occurred_at,
    )
    query = (
        sa.select(
            *columns,
            cases.c.id.label("asked"),
            cases.c.reference,
            cases.c.checker,
            cases.c.checker_config,
        )
        .select_from(
            traces.outerjoin(
                cases,
                sa.and_(cases.c.id == traces.c.case_id, cases.c.agent_id == traces.c.agent_id),
            )
        )
        .where(*recorded_traces(agent_id, as_of, trace_id), *in_range(prompts))
        .where(sa.true() if among is None else traces.c.id.in_(among))
        .order_by(traces.c.input_id, traces.c.id)
    )
    yield from (row._mapping for row in streamed(connection, query))


def continuations(
    connection: sa.Connection, agent_id: str, input_ids: Collection[str], as_of: datetime | None
) -> list[sa.Row[Any]]:
    """Return where a later prompt continues one of these prompts: (asked, the prompt; answer, the
    content of the assistant's message after it; following, the content of the user's message after
    that; session_id of the later trace)."""
    answer, following = messages.alias(), messages.alias()
    query = (
        sa.select(
            answer.c.parent_id.label("asked"),
            answer.c.content.label("answer"),
            following.c.content.label("following"),
            traces.c.session_id,
        )
        .select_from(
            answer.join(following, following.c.parent_id == answer.c.id).join(
                traces, traces.c.input_id == following.c.id
            )
        )
        .where(
            *recorded_traces(agent_id, as_of, None),
            answer.c.parent_id.in_(input_ids),
            answer.c.role == "assistant",
            following.c.role == "user",
        )
    )
    return list(connection.execute(query))


def session_turns(
    connection: sa.Connection, agent_id: str, session_ids: Collection[str], as_of: datetime | None
) -> list[sa.Row[Any]]:
    """Return the runs of these sessions that have a time and are no part of another run, in order:
    id, session_id, input_id, occurred_at, and the last message of the prompt (role, content) with
    the one before it (role_before, content_before)."""
    last, before = messages.alias(), messages.alias()
    query = (
        sa.select(
            traces.c.id,
            traces.c.session_id,
            traces.c.input_id,
            traces.c.occurred_at,
            last.c.role,
            last.c.content,
            before.c.role.label("role_before"),
            before.c.content.label("content_before"),
        )
        .select_from(
            traces.join(last, last.c.id == traces.c.input_id).outerjoin(
                before, before.c.id == last.c.parent_id
            )
        )
        .where(
            *recorded_traces(agent_id, as_of, None),
            traces.c.session_id.in_(session_ids),
            traces.c.parent_id.is_(None),
            traces.c.occurred_at.is_not(None),
        )
        .order_by(traces.c.session_id, traces.c.occurred_at, traces.c.id)
    )
    return list(connection.execute(query))


def named_traces(connection: sa.Connection, agent_id: str, name: str) -> list[tuple[str, str]]:
    """Return (id, source) of the traces that have this id, here or in their source."""
    query = sa.select(traces.c.id, traces.c.source).where(traces.c.agent_id == agent_id)
    return list(
        connection.execute(
            query.where(sa.or_(has_id(traces.c.id, name), traces.c.external_id == name))
        ).tuples()
    )


def trace_names(
    connection: sa.Connection, trace_ids: Collection[str]
) -> dict[str, tuple[str, str]]:
    """Return trace -> (its source, its id there)."""
    query = sa.select(traces.c.id, traces.c.source, traces.c.external_id)
    rows = connection.execute(query.where(traces.c.id.in_(trace_ids)))
    return {row.id: (row.source, row.external_id) for row in rows}


def own_names(connection: sa.Connection, trace_ids: Sequence[str]) -> dict[str, str]:
    """Return trace -> its id in its source, for the traces that have one there."""
    query = sa.select(traces.c.id, traces.c.external_id).where(traces.c.id.in_(trace_ids))
    return {
        row.id: row.external_id
        for row in connection.execute(query)
        if not row.external_id.startswith(feedback_in_force.BY_CONTENT)
    }


def steps_of(connection: sa.Connection, trace_ids: Sequence[str]) -> dict[str, list[sa.RowMapping]]:
    """Return the steps of each trace, in order."""
    steps_by_trace: dict[str, list[sa.RowMapping]] = {}
    columns = [
        steps.c[name]
        for name in ("trace_id", "kind", "name", "input", "output", "status", "finish_reason")
    ]
    times = [
        steps.c[name] for name in ("started_at", "ended_at", "prompt_tokens", "completion_tokens")
    ]
    query = (
        sa.select(*columns, *times)
        .where(steps.c.trace_id.in_(trace_ids))
        .order_by(steps.c.trace_id, steps.c.position)
    )
    for row in connection.execute(query).mappings():
        steps_by_trace.setdefault(row["trace_id"], []).append(row)
    return steps_by_trace


def mates(
    connection: sa.Connection,
    agent_id: str,
    input_ids: Iterable[str],
    most: int,
    as_of: datetime | None,
) -> dict[str, list[Any]]:
    """Return prompt -> (trace id, output) of the first `most` answers to it, by trace id."""
    number = (
        sa.func.row_number()
        .over(partition_by=traces.c.input_id, order_by=traces.c.id)
        .label("number")
    )
    answered = [
        *recorded_traces(agent_id, as_of, None),
        traces.c.output.is_not(None),
        traces.c.input_id.in_(set(input_ids)),
    ]
    numbered = (
        sa.select(traces.c.id, traces.c.input_id, traces.c.output, number)
        .where(*answered)
        .subquery()
    )
    query = sa.select(numbered.c.input_id, numbered.c.id, numbered.c.output).where(
        numbered.c.number <= most
    )
    answers: dict[str, list[Any]] = {}
    for row in connection.execute(query.order_by(numbered.c.input_id, numbered.c.id)):
        answers.setdefault(row.input_id, []).append((row.id, row.output))
    return answers


class LedgerEntry(NamedTuple):
    """A ledger row without its evidence and its times."""

    target_id: str
    component: str
    component_version: str
    inputs: str
    id: str
    value: float | None
    status: str
    current: bool

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What names it."""
        return self[:4]


def ledger(connection: sa.Connection, target_ids: Sequence[str]) -> list[LedgerEntry]:
    """Return every ledger row of these targets."""
    query = sa.select(*(rewards.c[name] for name in LedgerEntry._fields)).where(
        rewards.c.target_id.in_(target_ids)
    )
    return list(map(LedgerEntry._make, connection.execute(query)))


def evidence(connection: sa.Connection, target_id: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return ledger row -> (fingerprint of the inputs, evidence)."""
    query = sa.select(rewards.c.id, rewards.c.inputs, rewards.c.evidence).where(
        rewards.c.target_id == target_id
    )
    return {row.id: (row.inputs, row.evidence) for row in connection.execute(query)}


def current(
    connection: sa.Connection, agent_id: str, versions: Collection[str], trace_id: str | None = None
) -> Iterator[tuple[str, str, str, float | None, str, str]]:
    """Yield (target, component, version, value, status, row) of the rows of these versions that are
    current by the last run of each.

    They come target by target.
    """
    names = ("target_id", "component", "component_version", "value", "status", "id")
    query = sa.select(*(rewards.c[name] for name in names)).where(
        rewards.c.agent_id == agent_id, rewards.c.current, rewards.c.component_version.in_(versions)
    )
    if trace_id is not None:
        query = query.where(rewards.c.target_id == trace_id)
    yield from streamed(connection, query.order_by(rewards.c.target_id))


def has_rows(
    connection: sa.Connection, agent_id: str, component: str, version: str, *, current: bool
) -> bool:
    """Return whether the ledger has any row of this version of the component; `current`: any row
    that is current today."""
    query = sa.select(rewards.c.id).where(
        rewards.c.agent_id == agent_id,
        rewards.c.component == component,
        rewards.c.component_version == version,
    )
    if current:
        query = query.where(rewards.c.current)
    return connection.execute(query.limit(1)).first() is not None


def reasons(connection: sa.Connection, agent_id: str) -> list[sa.RowMapping]:
    """Count the current rows of each component by status and reason, the most frequent first."""
    reason = json_text(rewards.c.evidence, "reason").label("reason")
    columns = (rewards.c.component, rewards.c.component_version, rewards.c.status, reason)
    query = sa.select(*columns, sa.func.count().label("count")).where(
        rewards.c.agent_id == agent_id, rewards.c.current
    )
    grouped = query.group_by(*columns)
    in_order = grouped.order_by(sa.desc("count"), *columns[:-1], reason.nulls_first())
    return list(connection.execute(in_order).mappings())


def keep(
    connection: sa.Connection,
    fresh: Sequence[dict[str, Any]],
    again: Sequence[dict[str, Any]],
    standing: Mapping[str, bool],
) -> None:
    """Add `fresh` rows, write each of `again` over its `row`, and note which known rows are current
    from now on, and since when (`as_of`)."""
    if fresh:
        connection.execute(rewards.insert(), fresh)
    noted = [{"row": row_id, "current": is_current} for row_id, is_current in standing.items()]
    back = [
        {"row": row_id, "as_of": datetime.now(UTC)}
        for row_id, is_current in standing.items()
        if is_current
    ]
    for changes in (again, noted, back):
        if changes:
            connection.execute(rewards.update().where(rewards.c.id == sa.bindparam("row")), changes)


def traces_with_new_rewards(
    connection: sa.Connection, agent_id: str, since: datetime, versions: Collection[str]
) -> set[str]:
    """Return the targets that one of these versions of components has valued since, for which an
    older value is current again, or that lost theirs."""
    old = rewards.alias("old")
    same = (
        old.c.target_id == rewards.c.target_id,
        old.c.component == rewards.c.component,
        old.c.recorded_at <= since,
    )
    current_rows = (
        rewards.c.agent_id == agent_id,
        rewards.c.current,
        rewards.c.component_version.in_(versions),
    )
    newer = sa.or_(rewards.c.recorded_at > since, rewards.c.as_of > since)
    had_value = sa.or_(
        rewards.c.value.is_not(None), sa.exists().where(*same, old.c.id != rewards.c.id)
    )
    return set(
        connection.execute(
            sa.select(rewards.c.target_id).where(*current_rows, newer, had_value)
        ).scalars()
    )


def traces_with_new_feedback(connection: sa.Connection, agent_id: str, since: datetime) -> set[str]:
    """Return the traces that feedback recorded after `since` is about, or feedback that it replaced
    or withdrew."""
    later = feedback.alias("later")
    new = (feedback.c.agent_id == agent_id, feedback.c.recorded_at > since)
    recent = (later.c.agent_id == agent_id, later.c.recorded_at > since)
    earlier = [
        sa.select(column).where(*recent, column.is_not(None))
        for column in (later.c.supersedes, later.c.retracts)
    ]
    about = sa.select(feedback_targets.c.target_id).join(
        feedback, feedback.c.id == feedback_targets.c.feedback_id
    )
    about_traces = (feedback_targets.c.kind == "trace", feedback_targets.c.target_id.is_not(None))
    queries = (
        about.where(*about_traces, *new),
        about.where(*about_traces, feedback.c.id.in_(sa.union_all(*earlier))),
    )
    return {name for query in queries for name in connection.execute(query).scalars()}


def new_feedback(
    connection: sa.Connection, agent_id: str, since: datetime
) -> list[tuple[str, str, str]]:
    """Return (id, kind, speaker) of the feedback recorded after `since` and in force: the speaker
    is the rater, else the source."""
    query = sa.select(
        feedback.c.id, feedback.c.kind, feedback_in_force.speaker().label("speaker")
    ).where(
        in_force(agent_id, None),
        feedback.c.recorded_at > since,
        feedback.c.kind.in_((*JUDGING, "preference")),
    )
    return [(row.id, row.kind, row.speaker) for row in connection.execute(query)]


def outputs(
    connection: sa.Connection, agent_id: str, trace_ids: Collection[str]
) -> dict[str, tuple[str, str | None]]:
    """Return trace -> (its prompt, its output) of these traces."""
    query = sa.select(traces.c.id, traces.c.input_id, traces.c.output)
    of_agent = query.where(traces.c.agent_id == agent_id, traces.c.id.in_(trace_ids))
    return {row.id: (row.input_id, row.output) for row in connection.execute(of_agent)}


def learned(connection: sa.Connection, agent_id: str) -> int:
    """Count the ledger rows and undecided suggestions of the agent that classifiers made."""
    return sum(
        connection.execute(sa.select(sa.func.count()).select_from(table).where(*which)).scalar_one()
        for table, which in _learned(agent_id)
    )


def judged_by_classifier(connection: sa.Connection, agent_id: str) -> bool:
    """Return whether any reward of the agent comes from a classifier."""
    table, which = _learned(agent_id)[0]
    return bool(
        connection.execute(sa.select(sa.exists(sa.select(table.c.id).where(*which)))).scalar()
    )


def _by_model(agent_id: str) -> sa.ColumnElement[bool]:
    # a component may have any name; the scores of the function `reward_model` name their loss
    return sa.and_(
        rewards.c.agent_id == agent_id, json_text(rewards.c.evidence, "loss_type").is_not(None)
    )


def judged_by_model(connection: sa.Connection, agent_id: str) -> bool:
    """Return whether any reward of the agent comes from a reward model."""
    return bool(
        connection.execute(
            sa.select(sa.exists(sa.select(rewards.c.id).where(_by_model(agent_id))))
        ).scalar()
    )


def forget_modelled(connection: sa.Connection, agent_id: str) -> None:
    """Delete the ledger rows that come from reward models."""
    connection.execute(rewards.delete().where(_by_model(agent_id)))


def forget_learned(connection: sa.Connection, agent_id: str) -> None:
    """Delete everything that `learned` counts."""
    for table, which in _learned(agent_id):
        connection.execute(table.delete().where(*which))


def _learned(agent_id: str) -> list[tuple[sa.Table, list[sa.ColumnElement[bool]]]]:
    # a component may have any name; the scores of the function `learned` name their classifier
    by_classifier = sa.or_(
        rewards.c.component == "learned", json_text(rewards.c.evidence, "classifier").is_not(None)
    )
    undecided = suggestions.c.state.in_(("open", "replaced"))
    return [
        (rewards, [rewards.c.agent_id == agent_id, by_classifier]),
        (suggestions, [suggestions.c.agent_id == agent_id, undecided]),
    ]
