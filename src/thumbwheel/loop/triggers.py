"""Whether a turn of the wheel is due, and why not.

`check` looks at the rules in their order and stores one line: the rule that decided, its numbers,
and when the next look is. The clock comes from outside. A turn releases the events that it heard
only when it went through: after a failure, or where there was too little to train on, they count
again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from thumbwheel.core import ids, log
from thumbwheel.core.clock import Clock, utc_now
from thumbwheel.core.config import build
from thumbwheel.core.locks import try_lock
from thumbwheel.datasets.types import DatasetConfig
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import of_agent
from thumbwheel.loop import turn_store
from thumbwheel.loop.cycle_state import LOCK
from thumbwheel.loop.decidable import missing_for_the_gate
from thumbwheel.loop.informative import new_events
from thumbwheel.loop.quarantine import hold_bursts
from thumbwheel.loop.trigger_types import (
    AgentLoop,
    Check,
    Hours,
    NewEvents,
    Rule,
    TriggerConfig,
    TriggerVerdict,
    Turn,
    TurnState,
    next_time,
)
from thumbwheel.models.types import Agent

FIRST_PAUSE, LONGEST_PAUSE = timedelta(hours=1), timedelta(hours=24)
"""Pause after a turn that failed; twice as long after each further failure."""
LOOKED_AT = 20
"""Newest turns that are looked at."""


@dataclass(frozen=True)
class Situation:
    """What the rules look at."""

    loop: AgentLoop | None
    turns: list[Turn]
    """The newest turns, newest first."""
    is_running: bool
    """Whether a process turns the wheel at this moment."""
    count: Callable[[], NewEvents]
    """Counts the new events; called only where the rules before leave it open."""
    missing: Callable[[], str | None] = lambda: None
    """Says what the gate lacks to decide; called only where a turn would be due."""


def check(ws: Workspace, agent: Agent, clock: Clock = utc_now) -> Check:
    """Check whether a turn is due; store and return the check. Bursts of feedback are held
    first."""
    now = clock()
    config = trigger_config(ws, agent)
    for quarantine in hold_bursts(ws, agent, config, now):
        log.say(
            f"note: a burst of feedback is held ({quarantine}); see: thumbwheel loop quarantines"
        )
    verdict = judge_situation(situation(ws, agent, now), config, now)
    line = Check(
        ids.new("chk"),
        verdict.rule,
        verdict.fired,
        verdict.value,
        verdict.reason,
        verdict.next_at,
        now,
    )
    ws.db.write(
        lambda connection: turn_store.add_check(connection, agent.id, line), of_agent(agent.id)
    )
    return line


def trigger_config(ws: Workspace, agent: Agent) -> TriggerConfig:
    """Return the settings with which the agent's loop was enabled; the defaults before that."""
    with ws.db.read() as connection:
        loop = turn_store.loop_of(connection, agent.id)
    stored = dict(loop.settings) if loop else {}
    settings = {name: stored[name] for name in TriggerConfig.model_fields if name in stored}
    return build(TriggerConfig, settings, "loop")


def situation(ws: Workspace, agent: Agent, now: datetime) -> Situation:
    """Return the facts that the rules look at, at `now`."""
    with ws.db.read() as connection:
        loop = turn_store.loop_of(connection, agent.id)
        newest = turn_store.turns(connection, agent.id, LOOKED_AT)
        success = turn_store.last_success(connection, agent.id)
    # a clock that was set back: what came since is older than what was heard, and counts by now
    since = min(success.heard_until, now) if success else None
    rules = ws.settings(DatasetConfig, "dataset")
    per_rater = trigger_config(ws, agent).per_rater

    def count() -> NewEvents:
        return new_events(ws, agent, rules, since, per_rater)

    def missing() -> str | None:
        return missing_for_the_gate(ws, agent)

    return Situation(loop, newest, is_turning(ws, agent), count, missing)


def is_turning(ws: Workspace, agent: Agent) -> bool:
    """Return whether a process has the agent's cycle open."""
    folder = ws.home.cycles / agent.slug
    if not folder.is_dir():
        return False
    handle = try_lock(folder / LOCK)
    if handle is None:
        return True
    os.close(handle)
    return False


def judge_situation(facts: Situation, config: TriggerConfig, now: datetime) -> TriggerVerdict:
    """Return the verdict of the first rule that decides. With `only_decidable`, a turn on whose
    result the gate could not decide is not due (Rule.UNDECIDED)."""
    verdict = _by_events(facts, config, now)
    if verdict.fired and config.only_decidable:
        lack = facts.missing()
        if lack is not None:
            reason = f"a turn would train for nothing, and its events stay new: {lack}"
            later = now + config.between_checks
            return TriggerVerdict(Rule.UNDECIDED, False, reason, verdict.value, later)
    return verdict


def _by_events(facts: Situation, config: TriggerConfig, now: datetime) -> TriggerVerdict:
    """Return the verdict of the first rule that decides, without regard to the gate."""
    later = now + config.between_checks
    for rule in (_disabled, _running, _hours, _back_off):
        verdict = rule(facts, config, now)
        if verdict is not None:
            return verdict

    # What has come, and whether it is enough.
    events = facts.count()
    last = facts.turns[0] if facts.turns else None
    value = {"least": config.least, **events.to_json()}
    if last is not None and last.state is TurnState.NOTHING:
        informative_then = last.informative or 0
        if events.informative <= informative_then:
            reason = (
                f"the last turn found too little to train on ({last.reason}), and no informative "
                "event came since"
            )
            return TriggerVerdict(
                Rule.NOT_YET, False, reason, value | {"last": informative_then}, later
            )
    if events.informative >= config.least:
        reason = f"{events.informative} new informative events; {config.least} are asked for"
        return TriggerVerdict(Rule.NUMBER, True, reason, value, None)
    if config.every_hours is not None and events.informative:
        elapsed = _hours_since(last, now)
        value |= {"every_hours": config.every_hours, "hours": elapsed}
        if elapsed is None or elapsed >= config.every_hours:
            since = "there was no turn yet"
            if elapsed is not None:
                since = f"the last turn was {elapsed:.1f} hours ago"
            reason = f"{since}, and {events.informative} informative events are new"
            return TriggerVerdict(Rule.INTERVAL, True, reason, value, None)
    reason = (
        f"{events.informative} of {config.least} new informative events, of {events.events} in all"
    )
    return TriggerVerdict(Rule.NUMBER, False, reason, value, later)


def _disabled(facts: Situation, config: TriggerConfig, now: datetime) -> TriggerVerdict | None:
    if facts.loop is not None and facts.loop.enabled:
        return None
    reason = "the loop is disabled, so nothing happens by itself"
    return TriggerVerdict(Rule.DISABLED, False, reason, {}, None)


def _running(facts: Situation, config: TriggerConfig, now: datetime) -> TriggerVerdict | None:
    if not facts.is_running:
        return None
    turn = facts.turns[0].id if facts.turns else None
    reason = "a turn is on its way, and there is one at a time"
    return TriggerVerdict(Rule.RUNNING, False, reason, {"turn": turn}, now + config.between_checks)


def _hours(facts: Situation, config: TriggerConfig, now: datetime) -> TriggerVerdict | None:
    """Return a negative verdict during quiet hours or outside the window, by the clock of the
    loop's zone, else None."""
    local = now.astimezone(ZoneInfo(config.timezone))
    for text in config.quiet:
        hours = Hours.of(text)
        if hours.holds(local.time()):
            reason = f"it is {local:%H:%M} ({config.timezone}), and {hours} is quiet"
            value = {"quiet": text, "time": f"{local:%H:%M}"}
            begin = next_time(local, hours.end).astimezone(UTC)
            return TriggerVerdict(Rule.QUIET, False, reason, value, begin)
    if config.window is not None:
        hours = Hours.of(config.window)
        if not hours.holds(local.time()):
            reason = f"it is {local:%H:%M} ({config.timezone}), and turns begin in {hours}"
            value = {"window": config.window, "time": f"{local:%H:%M}"}
            begin = next_time(local, hours.begin).astimezone(UTC)
            return TriggerVerdict(Rule.WINDOW, False, reason, value, begin)
    return None


def _back_off(facts: Situation, config: TriggerConfig, now: datetime) -> TriggerVerdict | None:
    """Return a negative verdict during the pause after failures, else None: the same error would
    come back at once."""
    failures = 0
    for turn in facts.turns:
        if turn.state is not TurnState.FAILED:
            break
        failures += 1
    if not failures:
        return None
    last = facts.turns[0]
    pause = min(FIRST_PAUSE * 2 ** (failures - 1), LONGEST_PAUSE)
    failed_at = min(last.ended_at or last.recorded_at, now)  # the clock may have been set back
    if now >= failed_at + pause:
        return None
    reason = f"the last turn failed ({last.reason}); turns failed in a row: {failures}"
    return TriggerVerdict(Rule.BACK_OFF, False, reason, {"failures": failures}, failed_at + pause)


def _hours_since(turn: Turn | None, now: datetime) -> float | None:
    """Return the hours since a turn began; 0 if the clock was set back before it, None without a
    turn."""
    if turn is None:
        return None
    return max(0.0, (now - turn.recorded_at).total_seconds() / 3600)
