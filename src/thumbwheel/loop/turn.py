"""A turn of the wheel with its record: what began it, what it heard, and how it ended.

The record decides which events are new at the next check. One turn of an agent runs at a time, on
every host that shares the database. A turn that was stopped or killed goes on under its own record,
so that events which came meanwhile stay new.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from thumbwheel.core import ids
from thumbwheel.core.clock import Clock, utc_now
from thumbwheel.core.errors import Conflict, ThumbwheelError
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import ROWS, of_agent
from thumbwheel.loop import turn_store
from thumbwheel.loop.cycle import run_cycle
from thumbwheel.loop.cycle_types import CycleConfig, CycleReport
from thumbwheel.loop.trigger_types import Rule, Turn, TurnState
from thumbwheel.loop.triggers import is_turning, situation
from thumbwheel.models.types import Agent

KILLED = "its process ended without a word"


def run_turn(
    ws: Workspace,
    agent: Agent,
    config: CycleConfig,
    trigger: Rule = Rule.HAND,
    *,
    anew: bool = False,
    clock: Clock = utc_now,
    informative: int | None = None,
) -> CycleReport:
    """Run one cycle and record it as a turn; returns and raises as `run_cycle`. `informative`: the
    number of new informative events, if already counted."""
    if is_turning(ws, agent):
        raise Conflict(
            f"the cycle of agent {agent.slug!r}",
            "another process is running it at the moment",
            "Wait for it, or stop it with Ctrl-C there",
        )
    now = clock()
    if informative is None:
        informative = situation(ws, agent, now).count().informative
    turn = _begin(ws, agent, trigger, informative, now, anew)
    try:
        cycle = run_cycle(ws, agent, config, anew)
    except KeyboardInterrupt:
        _end(ws, turn, TurnState.STOPPED, "it was stopped, and can go on", None, clock())
        raise
    except ThumbwheelError as error:
        _end(ws, turn, TurnState.FAILED, f"{error.what}: {error.why}", None, clock())
        raise
    except Exception as error:
        _end(ws, turn, TurnState.FAILED, f"{type(error).__name__}: {error}", None, clock())
        raise
    state, reason = outcome(cycle)
    _end(ws, turn, state, reason, cycle, clock())
    return cycle


def outcome(cycle: CycleReport) -> tuple[TurnState, str | None]:
    """Return (state, reason) of a completed turn."""
    if cycle.version is not None:
        return TurnState.FINISHED, cycle.reasons[0] if cycle.reasons else None
    reason = cycle.reasons[0] if cycle.reasons else None
    if not cycle.candidates:
        return TurnState.NOTHING, reason
    if all(candidate.run_id is None for candidate in cycle.candidates):
        return TurnState.FAILED, reason
    return TurnState.FINISHED, reason


def turns(ws: Workspace, agent: Agent, most: int = 20) -> list[Turn]:
    """Return the newest turns of the agent, newest first."""
    with ws.db.read() as connection:
        return turn_store.turns(connection, agent.id, most)


def _begin(
    ws: Workspace, agent: Agent, trigger: Rule, informative: int, now: datetime, anew: bool
) -> Turn:
    """Store and return the record of a new turn, or of the interrupted one that continues."""
    turn = Turn(
        ids.new("cyc"), trigger, TurnState.RUNNING, None, now, informative, None, None, now, None
    )

    def record(connection: Any) -> Turn:
        newest = turn_store.turns(connection, agent.id, 1)
        last = newest[0] if newest else None
        if last is not None and last.state is TurnState.RUNNING:
            # nobody holds the lock of the cycle, so its process is dead
            turn_store.move_turn(
                connection, last.id, TurnState.STOPPED, reason=KILLED, ended_at=now
            )
            last = replace(last, state=TurnState.STOPPED)
        goes_on = last is not None and last.state in (TurnState.STOPPED, TurnState.FAILED)
        unfinished = (ws.home.cycles / agent.slug / "cycle.json").exists()
        if last is not None and goes_on and unfinished and not anew:
            turn_store.move_turn(connection, last.id, TurnState.RUNNING)
            return last
        turn_store.add_turn(connection, agent.id, turn)
        return turn

    return ws.db.write(record, of_agent(agent.id))


def _end(
    ws: Workspace,
    turn: Turn,
    state: TurnState,
    reason: str | None,
    cycle: CycleReport | None,
    now: datetime,
) -> None:
    report = _summary(cycle) if cycle else None
    version_id = cycle.evaluation.candidate_id if cycle and cycle.evaluation else None

    def record(connection: Any) -> None:
        turn_store.move_turn(
            connection,
            turn.id,
            state,
            reason=reason,
            version_id=version_id,
            report=report,
            ended_at=now,
        )

    ws.db.write(record, ROWS)


def _summary(cycle: CycleReport) -> dict[str, Any]:
    """Return the stored part of a report; files, evaluation and decision have their own records."""
    return {
        "base": cycle.base,
        "candidates": [asdict(candidate) for candidate in cycle.candidates],
        "version": cycle.version,
        "evaluation": cycle.evaluation.id if cycle.evaluation else None,
        "verdict": cycle.verdict,
        "deployed": cycle.deployment.name if cycle.deployment else None,
        "experiment": cycle.experiment,
        "waiting": cycle.waiting,
        "changed_answers": cycle.changed_answers,
        "reasons": cycle.reasons,
    }
