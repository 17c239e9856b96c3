"""SQL of the loop that turns by itself: loops, turns, checks, and what waits for a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from thumbwheel.core.errors import Conflict
from thumbwheel.db.columns import has_id
from thumbwheel.db.schema import (
    agents,
    cycles,
    loop_checks,
    loop_decisions,
    loops,
    model_versions,
    steps,
    traces,
)
from thumbwheel.loop.trigger_types import (
    TURN_MOVES,
    AgentLoop,
    Check,
    Pending,
    Rule,
    Turn,
    TurnState,
    Wish,
    WishState,
)

MOST_CHECKS = 2_000
"""Checks of an agent that are kept."""


def loop_of(connection: sa.Connection, agent_id: str) -> AgentLoop | None:
    """Return the agent's loop; None if it was never enabled."""
    row = connection.execute(sa.select(loops).where(loops.c.agent_id == agent_id)).one_or_none()
    return None if row is None else AgentLoop(row.enabled, row.settings, row.recorded_at)


def set_loop(
    connection: sa.Connection,
    agent_id: str,
    enabled: bool,
    settings: Mapping[str, Any] | None,
    now: datetime,
) -> None:
    """Enable or disable the agent's loop; with `settings` None its settings stay unchanged."""
    values: dict[str, Any] = {"enabled": enabled, "recorded_at": now}
    if settings is not None:
        values["settings"] = dict(settings)
    update = loops.update().where(loops.c.agent_id == agent_id).values(**values)
    if not connection.execute(update).rowcount:
        row = {"agent_id": agent_id, "settings": {}, **values}
        connection.execute(loops.insert().values(**row))


def disable_all(connection: sa.Connection) -> int:
    """Disable all loops; return how many were enabled."""
    is_enabled = loops.c.enabled == sa.true()
    return connection.execute(loops.update().where(is_enabled).values(enabled=False)).rowcount


def turns(connection: sa.Connection, agent_id: str, most: int) -> list[Turn]:
    """Return up to `most` turns, newest first."""
    query = sa.select(cycles).where(cycles.c.agent_id == agent_id)
    newest = query.order_by(cycles.c.recorded_at.desc(), cycles.c.id.desc()).limit(most)
    return [_turn(row) for row in connection.execute(newest)]


def last_success(connection: sa.Connection, agent_id: str) -> Turn | None:
    """Return the finished turn that heard the latest feedback, which is no longer new; None without
    one."""
    query = sa.select(cycles).where(
        cycles.c.agent_id == agent_id, cycles.c.state == TurnState.FINISHED
    )
    newest = query.order_by(cycles.c.heard_until.desc()).limit(1)
    row = connection.execute(newest).one_or_none()
    return None if row is None else _turn(row)


def add_turn(connection: sa.Connection, agent_id: str, turn: Turn) -> None:
    """Store a turn that begins. Raises Conflict while another one of the agent runs."""
    running = sa.select(cycles.c.id).where(
        cycles.c.agent_id == agent_id, cycles.c.state == TurnState.RUNNING
    )
    other = connection.execute(running).scalar()
    if other is not None:
        raise Conflict(
            f"a turn of the wheel for agent {agent_id!r}",
            f"turn {other} is running",
            "Wait for it: thumbwheel loop status --agent AGENT",
        )
    connection.execute(
        cycles.insert().values(
            id=turn.id,
            agent_id=agent_id,
            trigger=turn.trigger,
            state=turn.state,
            heard_until=turn.heard_until,
            informative=turn.informative,
            recorded_at=turn.recorded_at,
        )
    )


def move_turn(
    connection: sa.Connection,
    turn_id: str,
    state: TurnState,
    *,
    reason: str | None = None,
    version_id: str | None = None,
    report: Mapping[str, Any] | None = None,
    ended_at: datetime | None = None,
) -> bool:
    """Move a turn to another state; return False if its present state does not allow that."""
    before = [name for name, after in TURN_MOVES.items() if state in after]
    values: dict[str, Any] = {"state": state, "reason": reason, "ended_at": ended_at}
    if version_id is not None:
        values["version_id"] = version_id
    if report is not None:
        values["report"] = dict(report)
    moved = cycles.update().where(cycles.c.id == turn_id, cycles.c.state.in_(before))
    return bool(connection.execute(moved.values(**values)).rowcount)


def has_served_calls(connection: sa.Connection, since: datetime) -> bool:
    """Return whether a deployment of any agent answered a call that was recorded after `since`."""
    for agent_id in connection.execute(sa.select(agents.c.id)).scalars():
        recent = (
            sa.select(traces.c.id)
            .join(steps, steps.c.trace_id == traces.c.id)
            .where(
                traces.c.agent_id == agent_id,
                traces.c.recorded_at > since,
                steps.c.deployment.is_not(None),
            )
            .limit(1)
        )
        if connection.execute(recent).scalar() is not None:
            return True
    return False


def add_check(connection: sa.Connection, agent_id: str, check: Check) -> None:
    """Store a check, and delete those beyond MOST_CHECKS."""
    connection.execute(
        loop_checks.insert().values(
            id=check.id,
            agent_id=agent_id,
            rule=check.rule,
            fired=check.fired,
            value=dict(check.value),
            reason=check.reason,
            next_at=check.next_at,
            cycle_id=check.cycle_id,
            recorded_at=check.recorded_at,
        )
    )
    of_agent = loop_checks.c.agent_id == agent_id
    newest = sa.select(loop_checks.c.recorded_at).where(of_agent)
    newest = newest.order_by(loop_checks.c.recorded_at.desc()).offset(MOST_CHECKS).limit(1)
    oldest = connection.execute(newest).scalar()
    if oldest is not None:
        connection.execute(
            loop_checks.delete().where(of_agent, loop_checks.c.recorded_at <= oldest)
        )


def checks(connection: sa.Connection, agent_id: str, most: int) -> list[Check]:
    """Return up to `most` checks, newest first."""
    query = sa.select(loop_checks).where(loop_checks.c.agent_id == agent_id)
    newest = query.order_by(loop_checks.c.recorded_at.desc(), loop_checks.c.id.desc()).limit(most)
    return [
        Check(
            row.id,
            Rule(row.rule),
            row.fired,
            row.value,
            row.reason,
            row.next_at,
            row.recorded_at,
            row.cycle_id,
        )
        for row in connection.execute(newest)
    ]


def add_pending(connection: sa.Connection, agent_id: str, pending: Pending) -> None:
    """Store a decision that waits for a person."""
    connection.execute(
        loop_decisions.insert().values(
            id=pending.id,
            agent_id=agent_id,
            cycle_id=pending.cycle_id,
            kind=pending.kind,
            version_id=pending.version_id,
            question=pending.question,
            evidence=dict(pending.evidence),
            state=pending.state,
            recorded_at=pending.recorded_at,
        )
    )


def pendings(
    connection: sa.Connection,
    agent_id: str,
    *,
    state: WishState | None = None,
    name: str | None = None,
) -> list[Pending]:
    """Return the decisions for a person, oldest first, in `state` if given; `name` is an id or its
    beginning."""
    query = (
        sa.select(loop_decisions, model_versions.c.number)
        .join(model_versions, model_versions.c.id == loop_decisions.c.version_id)
        .where(loop_decisions.c.agent_id == agent_id)
    )
    if state is not None:
        query = query.where(loop_decisions.c.state == state)
    if name is not None:
        query = query.where(has_id(loop_decisions.c.id, name))
    ordered = query.order_by(loop_decisions.c.recorded_at, loop_decisions.c.id)
    return [_pending(row) for row in connection.execute(ordered)]


def answer_pending(
    connection: sa.Connection,
    pending_ids: Sequence[str],
    state: WishState,
    answered_by: str | None,
    reason: str | None,
    now: datetime,
) -> int:
    """Answer those decisions that still wait; return how many."""
    waiting = loop_decisions.update().where(
        loop_decisions.c.id.in_(pending_ids), loop_decisions.c.state == WishState.WAITING
    )
    values = {
        "state": state,
        "answered_by": answered_by,
        "reason": reason,
        "answered_at": now,
    }
    return connection.execute(waiting.values(**values)).rowcount


def _turn(row: sa.Row[Any]) -> Turn:
    return Turn(
        row.id,
        row.trigger,
        TurnState(row.state),
        row.reason,
        row.heard_until,
        row.informative,
        row.version_id,
        row.report,
        row.recorded_at,
        row.ended_at,
    )


def _pending(row: sa.Row[Any]) -> Pending:
    return Pending(
        row.id,
        row.cycle_id,
        Wish(row.kind),
        row.version_id,
        f"v{row.number}",
        row.question,
        row.evidence,
        WishState(row.state),
        row.answered_by,
        row.reason,
        row.recorded_at,
        row.answered_at,
    )
