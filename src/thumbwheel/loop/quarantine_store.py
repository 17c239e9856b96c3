"""SQL of held feedback."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from thumbwheel.db import feedback_in_force
from thumbwheel.db.batches import batches
from thumbwheel.db.columns import has_id
from thumbwheel.db.schema import feedback, quarantined_feedback, raters
from thumbwheel.db.schema import quarantines as table
from thumbwheel.db.workspace import OWNER_OF_HOME
from thumbwheel.loop.quarantine_types import Quarantine, QuarantineState, TimedThumb

HELD = QuarantineState.HELD


def timed_statements(connection: sa.Connection, agent_id: str, since: datetime) -> list[TimedThumb]:
    """Return the thumbs of persons recorded after `since` whose time is known, in order of that
    time. The home owner's own thumbs are left out."""
    sent_by_owner = sa.func.coalesce(feedback.c.sender, OWNER_OF_HOME) == OWNER_OF_HOME
    is_owner = (feedback.c.source == feedback_in_force.OWNER) & sent_by_owner
    query = (
        sa.select(
            feedback.c.id,
            feedback.c.rater_id,
            feedback.c.source,
            feedback.c.value,
            feedback.c.occurred_at,
            quarantined_feedback.c.feedback_id,
            feedback.c.sender,
        )
        .outerjoin(raters, raters.c.id == feedback.c.rater_id)
        .outerjoin(quarantined_feedback, quarantined_feedback.c.feedback_id == feedback.c.id)
        .where(
            feedback.c.agent_id == agent_id,
            feedback.c.recorded_at > since,
            feedback.c.kind == "thumb",
            feedback.c.occurred_at.is_not(None),
            ~is_owner,
            sa.func.coalesce(raters.c.kind, "person") == "person",
        )
        .order_by(feedback.c.occurred_at, feedback.c.id)
    )
    return [
        TimedThumb(
            row.id,
            row.rater_id,
            row.source,
            row.value is True,
            row.occurred_at,
            bool(row[5]),
            row.sender,
        )
        for row in connection.execute(query)
    ]


def held_of(
    connection: sa.Connection, agent_id: str, rater_id: str | None, source: str
) -> str | None:
    """Return the id of the quarantine that holds this speaker's feedback, or None."""
    return connection.execute(
        sa.select(table.c.id).where(
            table.c.agent_id == agent_id,
            table.c.rater_id.is_not_distinct_from(rater_id),
            table.c.source == source,
            table.c.state == HELD,
        )
    ).scalar()


def add(
    connection: sa.Connection,
    quarantine_id: str,
    agent_id: str,
    rater_id: str | None,
    source: str,
    rule: str,
    evidence: Mapping[str, Any],
    now: datetime,
) -> None:
    """Add a quarantine, still without feedback."""
    connection.execute(
        table.insert().values(
            id=quarantine_id,
            agent_id=agent_id,
            rater_id=rater_id,
            source=source,
            rule=rule,
            evidence=dict(evidence),
            state=HELD,
            recorded_at=now,
        )
    )


def hold(
    connection: sa.Connection,
    quarantine_id: str,
    feedback_ids: Iterable[str],
    evidence: Mapping[str, Any],
) -> None:
    """Add feedback that is not held yet to a quarantine, and replace its evidence."""
    rows = [
        {"feedback_id": feedback_id, "quarantine_id": quarantine_id}
        for feedback_id in sorted(feedback_ids)
    ]
    for batch in batches(rows):
        connection.execute(quarantined_feedback.insert(), batch)
    connection.execute(
        table.update().where(table.c.id == quarantine_id).values(evidence=dict(evidence))
    )


def decide(
    connection: sa.Connection, quarantine_id: str, state: str, by: str, now: datetime
) -> None:
    """Set the state of a held quarantine to released or discarded."""
    connection.execute(
        table.update()
        .where(table.c.id == quarantine_id, table.c.state == HELD)
        .values(state=state, decided_by=by, decided_at=now)
    )


def quarantines(
    connection: sa.Connection, agent_id: str, *, every: bool, name: str | None = None
) -> list[Quarantine]:
    """Return the held quarantines of an agent, oldest first; with `every` all of them."""
    count = (
        sa.select(sa.func.count())
        .where(quarantined_feedback.c.quarantine_id == table.c.id)
        .scalar_subquery()
    )
    query = (
        sa.select(table, raters.c.external_id, count.label("held_count"))
        .outerjoin(raters, raters.c.id == table.c.rater_id)
        .where(table.c.agent_id == agent_id)
        .order_by(table.c.recorded_at, table.c.id)
    )
    if not every:
        query = query.where(table.c.state == HELD)
    if name is not None:
        query = query.where(has_id(table.c.id, name))
    return [
        Quarantine(
            row.id,
            row.external_id,
            row.source,
            row.held_count,
            row.evidence,
            QuarantineState(row.state),
            row.decided_by,
            row.recorded_at,
            row.decided_at,
        )
        for row in connection.execute(query)
    ]
