"""All SQL of this stage: it reads the feedback in force and writes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from thumbwheel.db.schema import feedback, feedback_targets, raters, traces
from thumbwheel.rewards.types import Comparing, Statement

JUDGING = ("thumb", "rating", "score", "label", "outcome", "correction")
STREAM = {"yield_per": 1000}


def in_force(agent_id: str, as_of: datetime | None) -> sa.ColumnElement[bool]:
    """Condition: feedback of the agent recorded by `as_of` that nothing recorded by then supersedes or retracts.

    What was superseded stays out even when its successor is withdrawn: who takes back their last word has no word.
    """
    later = feedback.alias("later")
    known = [] if as_of is None else [later.c.recorded_at <= as_of]
    replaced = sa.select(later.c.supersedes).where(later.c.agent_id == agent_id, later.c.supersedes.is_not(None), *known)
    withdrawn = sa.select(later.c.retracts).where(later.c.agent_id == agent_id, later.c.retracts.is_not(None), *known)
    own = [feedback.c.agent_id == agent_id, feedback.c.retracts.is_(None), feedback.c.id.not_in(replaced), feedback.c.id.not_in(withdrawn)]
    return sa.and_(*own, *([] if as_of is None else [feedback.c.recorded_at <= as_of]))


def statements(connection: sa.Connection, agent_id: str, as_of: datetime | None) -> Iterator[tuple[str, Statement]]:
    """(trace id, statement) of everything in force about traces that have arrived, by prompt and then by trace."""
    query = (
        sa.select(*_FEEDBACK, traces.c.id.label("trace_id"))
        .select_from(_ABOUT_TRACES)
        .where(in_force(agent_id, as_of), feedback.c.kind.in_(JUDGING), feedback_targets.c.kind == "trace")
        .order_by(traces.c.input_id, traces.c.id, feedback.c.id)
    )
    for row in connection.execute(query, execution_options=STREAM).mappings():
        yield row["trace_id"], _statement(row)


def preferences(connection: sa.Connection, agent_id: str, as_of: datetime | None) -> Iterator[Comparing]:
    """Every preference in force with the traces that have arrived."""
    query = (
        sa.select(*_FEEDBACK, feedback_targets.c.position, traces.c.id.label("trace_id"))
        .select_from(_ABOUT_TRACES)
        .where(in_force(agent_id, as_of), feedback.c.kind == "preference", feedback_targets.c.kind == "trace")
        .order_by(feedback.c.id, feedback_targets.c.position)
    )
    group: list[sa.RowMapping] = []
    for row in connection.execute(query, execution_options=STREAM).mappings():
        if group and group[0]["id"] != row["id"]:
            yield _comparing(group)
            group = []
        group.append(row)
    if group:
        yield _comparing(group)


def all_in_force(connection: sa.Connection, agent_id: str, as_of: datetime | None) -> Iterator[Statement]:
    """Every piece of feedback in force, of any kind, whether or not its targets have arrived."""
    query = sa.select(*_FEEDBACK).select_from(feedback.outerjoin(raters)).where(in_force(agent_id, as_of))
    for row in connection.execute(query, execution_options=STREAM).mappings():
        yield _statement(row)


def targets(connection: sa.Connection, agent_id: str, as_of: datetime | None) -> list[tuple[str, bool, int]]:
    """(trace, step or session; whether it has arrived; how many) of the targets of feedback in force."""
    arrived = feedback_targets.c.target_id.is_not(None)
    query = sa.select(feedback_targets.c.kind, arrived, sa.func.count()).select_from(feedback.join(feedback_targets))
    grouped = query.where(in_force(agent_id, as_of)).group_by(feedback_targets.c.kind, arrived).order_by(feedback_targets.c.kind, arrived)
    return [(kind, bool(there), count) for kind, there, count in connection.execute(grouped)]


_ABOUT_TRACES = (
    feedback.join(feedback_targets)
    .join(traces, sa.and_(traces.c.id == feedback_targets.c.target_id, traces.c.agent_id == feedback.c.agent_id))
    .outerjoin(raters, raters.c.id == feedback.c.rater_id)
)
_FEEDBACK = (
    feedback.c.id,
    feedback.c.kind,
    feedback.c.name,
    feedback.c.value,
    feedback.c.scale,
    feedback.c.source,
    feedback.c.rater_id,
    feedback.c.occurred_at,
    feedback.c.recorded_at,
    raters.c.weight,
)


def _statement(row: sa.RowMapping) -> Statement:
    return Statement(row["id"], row["kind"], row["name"], row["value"], row["scale"], _rater(row), _weight(row), _at(row))


def _comparing(rows: list[sa.RowMapping]) -> Comparing:
    arrived = {row["position"]: row["trace_id"] for row in rows}
    places = rows[0]["value"]["ranking"]
    ranking = (tuple(arrived[position] for position in place if position in arrived) for place in places)
    return Comparing(rows[0]["id"], tuple(place for place in ranking if place), _rater(rows[0]), _weight(rows[0]), _at(rows[0]))


def _rater(row: sa.RowMapping) -> str:
    return row["rater_id"] or f"unnamed:{row['source']}"


def _weight(row: sa.RowMapping) -> float:
    return 1.0 if row["weight"] is None else float(row["weight"])


def _at(row: sa.RowMapping) -> Any:
    return row["occurred_at"] or row["recorded_at"]
