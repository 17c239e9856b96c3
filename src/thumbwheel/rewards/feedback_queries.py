"""SQL that reads the feedback in force, for this stage and for those that learn from labels."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from itertools import pairwise
from typing import Any

import sqlalchemy as sa

from thumbwheel.core.stored_json import read_json
from thumbwheel.db import feedback_in_force
from thumbwheel.db.batches import batches
from thumbwheel.db.engine import streamed
from thumbwheel.db.schema import (
    feedback,
    feedback_targets,
    raters,
    traces,
)
from thumbwheel.rewards.types import (
    EVERY_PROMPT,
    FeedbackScope,
    Preference,
    PromptRange,
    Statement,
)

JUDGING = ("thumb", "rating", "score", "label", "outcome", "correction")
AUTOMATIC = ("checker", "model")
"""Kinds of raters whose word alone fills no gate. A grade against a known right answer
(`reference`) may."""
AT = feedback_in_force.STATED_AT


def in_force(agent_id: str, as_of: datetime | None) -> sa.ColumnElement[bool]:
    """Return the condition: feedback of the agent recorded by `as_of` that nothing recorded by then
    supersedes or retracts."""
    return sa.and_(feedback.c.agent_id == agent_id, feedback_in_force.in_force(agent_id, as_of))


OPINIONS = ("thumb", "rating", "score", "preference")
"""Kinds that say how good an answer is."""


def statements(
    connection: sa.Connection,
    agent_id: str,
    as_of: datetime | None,
    trace_id: str | None = None,
    scope: FeedbackScope | None = None,
    arrived_by: datetime | None = None,
    among: Collection[str] | None = None,
) -> Iterator[tuple[str, Statement]]:
    """Yield (trace id, statement) of all feedback in force about traces that have arrived (or one
    of them, or those `among` these ids, at most as many as a statement takes variables), by prompt
    and then by trace.

    `arrived_by`: only about traces that were recorded by then. Feedback may be older than its
    trace.
    """
    conditions = [feedback_targets.c.kind == "trace"]
    if trace_id is not None:
        conditions.append(traces.c.id == trace_id)
    if among is not None:
        conditions.append(traces.c.id.in_(among))
    if arrived_by is not None:
        conditions.append(traces.c.recorded_at <= arrived_by)
    if scope is not None:
        conditions += within(agent_id, as_of, scope)
    columns = _spoken(feedback_in_force.speaker(traces.c.external_id))
    query = (
        sa.select(*columns, traces.c.id.label("trace_id"))
        .select_from(_ABOUT_TRACES)
        .where(
            traces.c.agent_id == agent_id,
            feedback_in_force.in_force(agent_id, as_of),
            feedback.c.kind.in_(JUDGING),
            *conditions,
        )
        .order_by(traces.c.input_id, traces.c.id, feedback_targets.c.feedback_id)
    )
    for *fields, about in streamed(connection, query):
        yield about, Statement(*fields)


def within(
    agent_id: str, as_of: datetime | None, scope: FeedbackScope
) -> list[sa.ColumnElement[bool]]:
    """Return conditions on feedback and traces: given in the window, among a rater's first
    `per_rater` statements by id, about prompts of the range, and opinions as `_wanted_opinions`."""
    conditions: list[sa.ColumnElement[bool]] = []
    if scope.since:
        conditions.append(scope.since <= AT)
    if scope.until:
        conditions.append(scope.until > AT)
    if scope.per_rater:
        number = (
            sa.func.row_number()
            .over(partition_by=feedback.c.rater_id, order_by=feedback.c.id)
            .label("number")
        )
        numbered = (
            sa.select(feedback.c.id, feedback.c.rater_id, number)
            .where(in_force(agent_id, as_of), *conditions)
            .subquery()
        )
        first_ones = sa.or_(numbered.c.number <= scope.per_rater, numbered.c.rater_id.is_(None))
        conditions.append(feedback.c.id.in_(sa.select(numbered.c.id).where(first_ones)))
    conditions += in_range(PromptRange(scope.first, scope.last))
    wanted = _wanted_opinions(scope)
    if wanted:
        conditions.append(sa.or_(feedback.c.kind.not_in(OPINIONS), sa.and_(*wanted)))
    return conditions


def in_range(prompts: PromptRange) -> list[sa.ColumnElement[bool]]:
    """Return conditions: traces of the prompts of a range."""
    conditions: list[sa.ColumnElement[bool]] = []
    if prompts.first:
        conditions.append(traces.c.input_id >= prompts.first)
    if prompts.last:
        conditions.append(traces.c.input_id < prompts.last)
    return conditions


def prompt_ranges(
    connection: sa.Connection, agent_id: str, n_ranges: int, within: PromptRange = EVERY_PROMPT
) -> list[PromptRange]:
    """Return ranges that together hold the prompts of a range, each with about as many traces of
    the agent; fewer if there are too few prompts."""
    if n_ranges < 2:
        return [within]
    conditions = [traces.c.agent_id == agent_id, *in_range(within)]
    query = sa.select(traces.c.input_id).where(*conditions).order_by(traces.c.input_id)
    counted = sa.select(sa.func.count()).where(*conditions)
    n_traces = connection.execute(counted).scalar_one()
    cuts = set()
    for number in range(1, n_ranges):
        at_cut = query.offset(n_traces * number // n_ranges).limit(1)
        cuts.add(connection.execute(at_cut).scalar())
    bounds = [within.first, *sorted(prompt_id for prompt_id in cuts if prompt_id), within.last]
    return [PromptRange(first, last) for first, last in pairwise(bounds)]


def _wanted_opinions(scope: FeedbackScope) -> list[sa.ColumnElement[bool]]:
    """Return conditions on opinions by their tags, and by the app's confidence in the answers that
    they are about."""
    conditions: list[sa.ColumnElement[bool]] = []
    listed = sa.func.coalesce(feedback.c.metadata["tags"].as_string(), "")

    def has(tag: str) -> sa.ColumnElement[bool]:
        return listed.contains(json.dumps(tag, ensure_ascii=False), autoescape=True)

    if scope.tags:
        conditions.append(sa.or_(*map(has, scope.tags)))
    conditions += [sa.not_(has(tag)) for tag in scope.without_tags]
    if scope.min_confidence is not None:
        confidence = traces.c.metadata["confidence"].as_float()
        conditions.append(sa.or_(confidence.is_(None), confidence >= scope.min_confidence))
    return conditions


def by_rater(
    connection: sa.Connection,
    agent_id: str,
    as_of: datetime | None,
    scope: FeedbackScope | None = None,
) -> list[tuple[str | None, int]]:
    """Return (id of a rater, None for the unnamed; count of their feedback in force about traces)
    of each person who gave any."""
    about = [] if scope is None else within(agent_id, as_of, scope)
    person = sa.func.coalesce(raters.c.kind, "person").not_in(AUTOMATIC)
    query = (
        sa.select(feedback.c.rater_id, sa.func.count(feedback.c.id.distinct()))
        .select_from(_ABOUT_TRACES)
        .where(in_force(agent_id, as_of), feedback_targets.c.kind == "trace", person, *about)
        .group_by(feedback.c.rater_id)
    )
    return [(rater_id, count) for rater_id, count in connection.execute(query)]


def preferences(
    connection: sa.Connection,
    agent_id: str,
    as_of: datetime | None,
    scope: FeedbackScope | None = None,
) -> Iterator[Preference]:
    """Yield every preference in force with the traces that have arrived. The database repeats its
    value for each of them, as text that is parsed once: parsing long rankings takes most of the
    time."""
    about = [] if scope is None else within(agent_id, as_of, scope)
    query = (
        sa.select(
            *_spoken(feedback_in_force.speaker(traces.c.external_id), sa.null()),
            sa.cast(feedback.c.value, sa.Text).label("ranking"),
            feedback_targets.c.position,
            traces.c.id.label("trace_id"),
        )
        .select_from(_ABOUT_TRACES)
        .where(
            in_force(agent_id, as_of),
            feedback.c.kind == "preference",
            feedback_targets.c.kind == "trace",
            *about,
        )
        .order_by(feedback.c.id, feedback_targets.c.position)
    )
    group: list[Any] = []
    for row in streamed(connection, query):
        if group and group[0].id != row.id:
            yield _preference(group)
            group = []
        group.append(row)
    if group:
        yield _preference(group)


def newest_words(
    connection: sa.Connection, agent_id: str, as_of: datetime | None
) -> Iterator[Statement]:
    """Yield the newest statements in force, of any kind, whether or not their targets have
    arrived."""
    standing_ids = feedback_in_force.newest_words(agent_id, as_of)
    query = (
        sa.select(*_spoken(feedback_in_force.speaker()))
        .select_from(feedback.outerjoin(raters))
        .where(feedback.c.id.in_(standing_ids))
    )
    for row in streamed(connection, query):
        yield Statement(*row)


def targets(
    connection: sa.Connection, agent_id: str, as_of: datetime | None
) -> list[tuple[str, bool, int]]:
    """Return (trace, step or session; whether it has arrived; count) of the targets of feedback in
    force."""
    arrived = feedback_targets.c.target_id.is_not(None)
    query = sa.select(feedback_targets.c.kind, arrived, sa.func.count()).select_from(
        feedback.join(feedback_targets)
    )
    grouped = (
        query.where(in_force(agent_id, as_of))
        .group_by(feedback_targets.c.kind, arrived)
        .order_by(feedback_targets.c.kind, arrived)
    )
    return [(kind, bool(there), count) for kind, there, count in connection.execute(grouped)]


_ABOUT_TRACES = (  # what feedback is about belongs to its agent (capture)
    traces.join(feedback_targets, traces.c.id == feedback_targets.c.target_id)
    .join(feedback, feedback.c.id == feedback_targets.c.feedback_id)
    .outerjoin(raters, raters.c.id == feedback.c.rater_id)
)


def _spoken(
    speaker: sa.ColumnElement[str], value: sa.ColumnElement[Any] = feedback.c.value
) -> tuple[sa.ColumnElement[Any], ...]:
    """Return the columns of a statement, in the order of its fields."""
    return (
        feedback.c.id,
        feedback.c.kind,
        feedback.c.name,
        value.label("value"),
        feedback.c.scale,
        speaker.label("rater"),
        sa.func.coalesce(raters.c.weight, 1.0).label("weight"),
        AT.label("at"),
        sa.func.coalesce(raters.c.kind.in_(AUTOMATIC), sa.false()).label("automatic"),
        feedback.c.occurred_at.is_not(None).label("timed"),
        feedback.c.rater_id.is_not(None).label("named"),
        feedback.c.recorded_at.label("recorded_at"),
        feedback.c.rater_id,
        feedback_in_force.is_imported().label("imported"),
    )


def _preference(rows: list[Any]) -> Preference:
    first = rows[0]
    trace_at = {row.position: row.trace_id for row in rows}
    ranking: list[tuple[str, ...]] = []
    for positions in read_json(first.ranking)["ranking"]:
        tied = tuple(trace_at[position] for position in positions if position in trace_at)
        if tied:
            ranking.append(tied)
    # one speaker for all of them, or that of the statement where a compared text has none
    speaker = max(row.rater for row in rows)
    return Preference(
        first.id,
        tuple(ranking),
        speaker,
        first.weight,
        first.at,
        first.automatic,
        not (first.timed or first.named),
        first.recorded_at,
        first.rater_id,
        first.imported,
    )


def trace_count(connection: sa.Connection, agent_id: str, as_of: datetime | None) -> int:
    """Return the number of traces that `stored` yields."""
    return connection.execute(
        sa.select(sa.func.count()).where(*recorded_traces(agent_id, as_of, None))
    ).scalar_one()


def recorded_traces(
    agent_id: str, as_of: datetime | None, trace_id: str | None
) -> list[sa.ColumnElement[bool]]:
    """Return conditions: traces of the agent, recorded by `as_of`, or one of them."""
    conditions = [traces.c.agent_id == agent_id]
    if as_of is not None:
        conditions.append(traces.c.recorded_at <= as_of)
    if trace_id is not None:
        conditions.append(traces.c.id == trace_id)
    return conditions


def machine_raters(connection: sa.Connection, agent_id: str) -> set[str]:
    """Return the raters that are no persons."""
    return set(
        connection.execute(
            sa.select(raters.c.id).where(raters.c.agent_id == agent_id, raters.c.kind != "person")
        ).scalars()
    )


def raters_of(connection: sa.Connection, feedback_ids: Collection[str]) -> dict[str, str]:
    """Return feedback -> the rater who gave it; feedback without a named rater is left out."""
    query = sa.select(feedback.c.id, feedback.c.rater_id).where(feedback.c.rater_id.is_not(None))
    rater_of: dict[str, str] = {}
    for batch in batches(sorted(feedback_ids)):
        rows = connection.execute(query.where(feedback.c.id.in_(batch)))
        rater_of |= {row.id: row.rater_id for row in rows}
    return rater_of


def rater_names(connection: sa.Connection, agent_id: str) -> dict[str, tuple[str, str]]:
    """Return rater -> (name in its source, kind)."""
    rows = connection.execute(
        sa.select(raters.c.id, raters.c.external_id, raters.c.kind).where(
            raters.c.agent_id == agent_id
        )
    )
    return {row.id: (row.external_id, row.kind) for row in rows}


def groups(
    connection: sa.Connection, agent_id: str, trace_ids: Iterable[str]
) -> list[tuple[str, str, str | None]]:
    """Return (trace, prompt, session) of these traces."""
    wanted = set(trace_ids)
    rows = connection.execute(
        sa.select(traces.c.id, traces.c.input_id, traces.c.session_id).where(
            traces.c.agent_id == agent_id
        )
    )
    return [(row.id, row.input_id, row.session_id) for row in rows if row.id in wanted]
