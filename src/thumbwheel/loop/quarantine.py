"""Bursts of feedback that nobody learns from before a person has looked.

Somebody who wants to poison a model, or an app with a broken button, gives one verdict again and
again in a short time. Such feedback is held: it is stored and shown, and is not in force, so that
no dataset, no reward and no evaluation hears it. A person releases it or discards it; either way it
is not held a second time. Only feedback that says when it was given can be a burst, so a file of
ratings without times never is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from thumbwheel.core import ids
from thumbwheel.core.errors import Conflict, InputError, NotFound
from thumbwheel.core.plugins import nearest
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import of_agent
from thumbwheel.loop import quarantine_store
from thumbwheel.loop.quarantine_types import Quarantine, QuarantineState, TimedThumb
from thumbwheel.loop.trigger_types import TriggerConfig
from thumbwheel.models.types import Agent

if TYPE_CHECKING:
    import sqlalchemy as sa

LOOKED_BACK = timedelta(days=1)
"""How far back a check looks for bursts."""
ONE_SIDED = 0.95
"""Share of one verdict from which a fast speaker is a burst: people who rate fast press both
thumbs."""
RULE = "burst"


def hold_bursts(ws: Workspace, agent: Agent, config: TriggerConfig, now: datetime) -> list[str]:
    """Hold the bursts of the last day that are not held or decided yet; return the ids of the
    quarantines that are new or grew."""
    if config.burst is None:
        return []
    with ws.db.read() as connection:
        statements = quarantine_store.timed_statements(connection, agent.id, now - LOOKED_BACK)
    by_speaker: dict[tuple[str | None, str, str | None], list[TimedThumb]] = defaultdict(list)
    for statement in statements:
        # a name is free: what one sender says in it holds no word of another
        speaker = (statement.rater_id, statement.source, statement.sender)
        by_speaker[speaker].append(statement)

    touched = []
    for (rater_id, source, _), thumbs in by_speaker.items():
        burst = burst_of(thumbs, config.burst, timedelta(minutes=config.burst_minutes))
        fresh = [statement.id for statement in burst if not statement.was_held]
        if fresh:
            touched.append(_hold(ws, agent, rater_id, source, burst, fresh, now))
    return touched


def burst_of(statements: Sequence[TimedThumb], least: int, within: timedelta) -> list[TimedThumb]:
    """Return the statements of one speaker that lie in a window of the length `within` with `least`
    or more of them, nearly all with one verdict. `statements` must be in order of time, as is the
    result."""
    burst: dict[str, TimedThumb] = {}
    start = 0
    for end, last in enumerate(statements):
        while last.said_at - statements[start].said_at > within:
            start += 1
        window = statements[start : end + 1]
        if len(window) < least:
            continue
        good = sum(statement.good for statement in window)
        if max(good, len(window) - good) >= ONE_SIDED * len(window):
            for statement in window:
                burst[statement.id] = statement
    return list(burst.values())


def quarantines(ws: Workspace, agent: Agent, every: bool = False) -> list[Quarantine]:
    """Return the held quarantines, oldest first; with `every` also the decided ones."""
    with ws.db.read() as connection:
        return quarantine_store.quarantines(connection, agent.id, every=every)


def decide(
    ws: Workspace, agent: Agent, name: str, state: QuarantineState, by: str, now: datetime
) -> Quarantine:
    """Release or discard held feedback, and return its quarantine. Raises NotFound, InputError if
    several match, and Conflict if it was decided already."""
    with ws.db.read() as connection:
        matches = quarantine_store.quarantines(connection, agent.id, every=True, name=name)
        held = quarantine_store.quarantines(connection, agent.id, every=False)
    if not matches:
        names = [quarantine.id for quarantine in held]
        fix = f"Held: {', '.join(names) or 'nothing'}.{nearest(name, names)}"
        raise NotFound(f"quarantine {name!r} of agent {agent.slug!r}", "there is none", fix)
    if len(matches) > 1:
        raise InputError(
            f"quarantine {name!r}", "it matches several", "Give more characters of the id"
        )
    (quarantine,) = matches
    if quarantine.state is not QuarantineState.HELD:
        raise Conflict(
            f"quarantine {quarantine.id!r}",
            f"it is {quarantine.state} by {quarantine.decided_by}",
            f"See: thumbwheel loop quarantines --agent {agent.slug} --all",
        )

    def record(connection: sa.Connection) -> None:
        quarantine_store.decide(connection, quarantine.id, state, by, now)

    ws.db.write(record, of_agent(agent.id))
    with ws.db.read() as connection:
        (decided,) = quarantine_store.quarantines(
            connection, agent.id, every=True, name=quarantine.id
        )
    return decided


def _hold(
    ws: Workspace,
    agent: Agent,
    rater_id: str | None,
    source: str,
    burst: Sequence[TimedThumb],
    fresh: Sequence[str],
    now: datetime,
) -> str:
    good = sum(statement.good for statement in burst)
    evidence = {
        "statements": len(burst),
        "good": good,
        "bad": len(burst) - good,
        "first": burst[0].said_at.isoformat(),
        "last": burst[-1].said_at.isoformat(),
    }

    def record(connection: sa.Connection) -> str:
        quarantine_id = quarantine_store.held_of(connection, agent.id, rater_id, source)
        if quarantine_id is None:
            quarantine_id = ids.new("qrt")
            quarantine_store.add(
                connection, quarantine_id, agent.id, rater_id, source, RULE, evidence, now
            )
        quarantine_store.hold(connection, quarantine_id, fresh, evidence)
        return quarantine_id

    return ws.db.write(record, of_agent(agent.id))
