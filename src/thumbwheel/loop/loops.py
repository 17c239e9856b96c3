"""Verbs of the loop that turns by itself: enable, disable, and how it stands."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import sqlalchemy as sa

from thumbwheel.core import ids
from thumbwheel.core.clock import Clock, utc_now
from thumbwheel.core.config import build
from thumbwheel.core.errors import Conflict, NotFound
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import of_agent
from thumbwheel.experiments import controller
from thumbwheel.jobs import schedules
from thumbwheel.jobs.queue import enqueue, live_workers
from thumbwheel.loop import turn_store
from thumbwheel.loop.cycle_checks import check_ready
from thumbwheel.loop.cycle_types import CycleConfig
from thumbwheel.loop.gold import gold_request
from thumbwheel.loop.trigger_types import (
    LoopStatus,
    TrafficDecision,
    TriggerConfig,
    WishState,
)
from thumbwheel.loop.triggers import (
    judge_situation,
    situation,
    trigger_config,
)
from thumbwheel.models.types import Agent

CAREFUL = {"auto_deploy": "ask", "auto_promote": "ask"}
"""What an enabled loop asks a person for, unless its owner sets something else."""
SHOWN_TURNS, SHOWN_CHECKS = 5, 10


def enable(
    ws: Workspace, agent: Agent, options: Mapping[str, Any], clock: Clock = utc_now
) -> LoopStatus:
    """Enable the loop of `agent` with these settings of `TriggerConfig` and `CycleConfig`; other
    settings stay unchanged. Return the status. Raises ConfigError, and any error that would stop
    every turn."""
    with ws.db.read() as connection:
        loop = turn_store.loop_of(connection, agent.id)
    settings = {**CAREFUL, **(loop.settings if loop else {}), **_plain(options)}
    build(TriggerConfig, _part(settings, TriggerConfig), "loop")
    check_ready(ws, _cycle_config(ws, settings))
    now = clock()
    ws.db.write(lambda c: turn_store.set_loop(c, agent.id, True, settings, now), of_agent(agent.id))
    _schedule(ws, agent)
    if live_workers(ws):
        # what waits is looked at now, and not at the schedule's next time
        enqueue(ws, "loop check", {"agent": agent.slug}, agent=agent.slug)
    return status(ws, agent, clock)


def disable_all(connection: sa.Connection) -> int:
    """Disable all loops of a home that was restored; return how many were enabled."""
    return turn_store.disable_all(connection)


def disable(ws: Workspace, agent: Agent, clock: Clock = utc_now) -> LoopStatus:
    """Disable the loop of `agent`; its settings are kept for the next time."""
    now = clock()
    ws.db.write(lambda c: turn_store.set_loop(c, agent.id, False, None, now), of_agent(agent.id))
    _unschedule(ws, agent)
    return status(ws, agent, clock)


def schedule_name(agent: Agent) -> str:
    """Return the name of the schedule for the agent's checks, which the server's workers run."""
    return ids.slug_of(f"loop-{agent.slug}")


def _schedule(ws: Workspace, agent: Agent) -> None:
    """Schedule the agent's checks by the stored settings. If another server enables the same loop
    at the same time, one schedule remains."""
    spec = {"agent": agent.slug}
    while True:
        _unschedule(ws, agent)
        cron = trigger_config(ws, agent).cron
        try:
            schedules.add(ws, schedule_name(agent), "loop check", spec, cron, agent=agent.slug)
        except Conflict:
            continue
        return


def _unschedule(ws: Workspace, agent: Agent) -> None:
    with suppress(NotFound):
        schedules.remove(ws, schedule_name(agent))


def status(ws: Workspace, agent: Agent, clock: Clock = utc_now) -> LoopStatus:
    """Return the current status of the agent's loop. Nothing is stored."""
    now = clock()
    config = trigger_config(ws, agent)
    facts = situation(ws, agent, now)
    with ws.db.read() as connection:
        checks = turn_store.checks(connection, agent.id, SHOWN_CHECKS)
        waiting = turn_store.pendings(connection, agent.id, state=WishState.WAITING)
    cycle = {
        name: value
        for name, value in (facts.loop.settings if facts.loop else {}).items()
        if name in CycleConfig.model_fields
    }
    return LoopStatus(
        agent.slug,
        facts.loop is not None and facts.loop.enabled,
        config.model_dump(mode="json") | cycle,
        facts.count(),
        judge_situation(facts, config, now),
        facts.turns[:SHOWN_TURNS],
        checks,
        waiting,
        _traffic_decisions(ws, agent),
        gold_request(ws, agent, config),
        facts.missing() if config.only_decidable else None,
    )


def _traffic_decisions(ws: Workspace, agent: Agent) -> list[TrafficDecision]:
    newest = controller.experiments_of(ws, agent)[: -SHOWN_TURNS - 1 : -1]
    return [
        TrafficDecision(
            experiment.id,
            tuple(arm.name for arm in experiment.plan.arms),
            str(experiment.state),
            experiment.reason,
        )
        for experiment in newest
    ]


def cycle_config(ws: Workspace, agent: Agent) -> CycleConfig:
    """Return the settings of a turn that starts by itself: the section `loop`, overridden by the
    settings with which the loop was enabled."""
    with ws.db.read() as connection:
        loop = turn_store.loop_of(connection, agent.id)
    return _cycle_config(ws, loop.settings if loop else {})


def _cycle_config(ws: Workspace, settings: Mapping[str, Any]) -> CycleConfig:
    return ws.settings(CycleConfig, "loop", _part(settings, CycleConfig))


def _part(
    settings: Mapping[str, Any], kind: type[TriggerConfig] | type[CycleConfig]
) -> dict[str, Any]:
    return {name: settings[name] for name in kind.model_fields if name in settings}


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options as they are stored: paths as text, tuples as lists."""
    plain = {}
    for name, value in options.items():
        is_list = isinstance(value, list | tuple)
        plain[name] = list(value) if is_list else value
        if name.endswith("_to"):
            plain[name] = str(value)
    return plain
