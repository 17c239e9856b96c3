"""Exposures: which unit saw which arm first, read off the recorded calls.

The gateway records with each call the arm, the probabilities of all arms, and the salted hash of
the unit, on the same road as the call itself. So an answer waits for no database, and what is here
is only as old as the drain. A call that another arm answered than the one that was drawn, or whose
client asked for an arm, is kept and never counted. A unit whose share was moved to another arm is
counted by its first arm, with the calls that this arm answered.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from thumbwheel.core.seal import Seal, make_seal
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import of_agent
from thumbwheel.experiments import store
from thumbwheel.experiments.row_seals import sealed_call, sealed_exposure
from thumbwheel.experiments.store import CountedCall, Exposure, RecordedCall
from thumbwheel.experiments.types import Collected, Experiment
from thumbwheel.models.types import Agent

OVERLAP = timedelta(hours=1)
"""Calls that were recorded so long before the newest one are looked at again: drainers of several
processes are not in step, and a clock may be set back."""
BATCH = 2000
"""Calls in one transaction."""
OVERRIDE = "override"
"""What the routing of a call says whose client asked for an arm."""


def collect(ws: Workspace, experiment: Experiment, now: datetime) -> Collected:
    """Read the calls that were recorded since the last time; return the counts so far. Each call
    counts once, however often and by however many processes this is called."""
    agent_id = Agent.named(experiment.agent).id
    seal = make_seal(ws.home.signing)
    while True:
        read, collected = ws.db.write(
            lambda connection: _batch(connection, agent_id, experiment, now, seal),
            of_agent(agent_id),
        )
        if read < BATCH:
            return collected


def _batch(
    connection: sa.Connection, agent_id: str, experiment: Experiment, now: datetime, seal: Seal
) -> tuple[int, Collected]:
    (current,) = store.find(connection, store.by_id(experiment.id))
    collected = current.collected
    newest = collected.until or experiment.recorded_at
    since = min(newest, now) - OVERLAP
    recorded = store.uncollected(connection, agent_id, experiment.id, since, BATCH)
    units = {call.routing["unit"] for call in recorded if call.routing.get("unit")}
    first_arms = store.arms_of_units(connection, experiment.id, units)

    calls: dict[str, CountedCall] = {}
    exposures: list[Exposure] = []
    recorded.sort(key=lambda call: (call.occurred_at or call.recorded_at, call.trace_id))
    for call in recorded:
        if call.trace_id in calls:
            continue  # a trace of several steps is one call
        routing = call.routing
        unit, arm = routing.get("unit"), routing.get("arm")
        if unit and arm and unit not in first_arms:
            first_arms[unit] = arm
            exposures.append(sealed_exposure(seal, experiment.id, _exposure(call, routing)))
        moved = bool(unit and arm and first_arms[unit] != arm)
        collected = _counted(collected, routing, moved)
        counted_arm = None if moved else arm
        calls[call.trace_id] = sealed_call(seal, experiment.id, _call(call, routing, counted_arm))
    store.add_calls(connection, experiment.id, calls.values())
    store.add_exposures(connection, experiment.id, exposures)
    if recorded:
        latest = max(call.recorded_at for call in recorded)
        collected = replace(collected, until=max(newest, latest))
        store.set_collected(connection, experiment.id, collected)
    return len(recorded), collected


def _exposure(call: RecordedCall, routing: Any) -> Exposure:
    return Exposure(
        routing["unit"],
        routing["arm"],
        int(routing.get("stratum") or 0),
        routing.get("probabilities") or {},
        call.trace_id,
        call.occurred_at or call.recorded_at,
    )


def _call(call: RecordedCall, routing: Any, arm: str | None) -> CountedCall:
    assigned = routing.get("assigned") or routing.get("arm")
    # A call that the drawn arm did not answer failed there, whatever answered in its stead. One
    # that nobody answered says nothing about the arm.
    fell_back = routing.get("arm") is None and routing.get("assigned") is not None
    return CountedCall(
        trace_id=call.trace_id,
        unit=routing.get("unit"),
        arm=arm,
        assigned=assigned,
        stratum=int(routing.get("stratum") or 0),
        failed=(fell_back or call.status == "error") and not routing.get("fails_everywhere"),
        seconds=call.seconds,
        cost=call.cost,
        occurred_at=call.occurred_at or call.recorded_at,
    )


def _counted(collected: Collected, routing: Any, moved: bool) -> Collected:
    """Count one more call."""
    reason = str(routing.get("reason") or "")
    collected = replace(collected, calls=collected.calls + 1)
    if moved:
        return replace(collected, moved=collected.moved + 1)
    if routing.get("arm") is not None:
        return collected
    if OVERRIDE in reason:
        return replace(collected, overridden=collected.overridden + 1)
    if routing.get("assigned"):
        return replace(collected, fallbacks=collected.fallbacks + 1)
    if routing.get("unit") is None:
        return replace(collected, without_unit=collected.without_unit + 1)
    return replace(collected, held_out=collected.held_out + 1)
