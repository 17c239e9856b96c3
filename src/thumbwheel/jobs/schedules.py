"""Jobs that the clock asks for: cron expressions with a time zone, and a rule for runs that nobody
was there to start.

Every worker looks at the clock. Who fires a schedule moves its next time on and enqueues the job in
one write, and the job's key names the instant, so that two workers, or a clock that was set back,
start nothing twice.

Days on which the clock is changed are as in Debian's cron: a run in the hour that is left out comes
right after it, one in the hour that comes twice runs once, and expressions for every hour or minute
follow real time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import sqlalchemy as sa
from cronsim import CronSim, CronSimError

from thumbwheel.core import ids, log
from thumbwheel.core.errors import Conflict, InputError, NotFound
from thumbwheel.core.plugins import nearest
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import JOBS
from thumbwheel.jobs import store
from thumbwheel.jobs.queue import enqueued, require_no_password
from thumbwheel.jobs.types import ENDED, Job, Missed, Schedule

PUNCTUAL = timedelta(minutes=1)
"""A run that comes later than this counts as missed."""
MOST_MISSED = 100
"""Runs of a schedule that are made up for at once: the newest of those that were missed."""


def next_time(cron: str, timezone: str, after: datetime) -> datetime | None:
    """Return the first instant of the cron expression after `after`, in UTC, or None if there is
    none."""
    for local in CronSim(cron, after.astimezone(ZoneInfo(timezone))):
        instant = local.astimezone(UTC)
        # within the hour that comes twice, the library begins with the first one
        if instant > after:
            return instant
    return None


def check(cron: str, timezone: str) -> None:
    """Raise InputError for an invalid cron expression or time zone."""
    try:
        ZoneInfo(timezone)
    except (KeyError, ValueError, OSError):
        raise InputError(
            f"time zone {timezone!r}", "there is no such zone", "Write it as Europe/Berlin or UTC"
        ) from None
    try:
        CronSim(cron, datetime.now(UTC))
    except CronSimError as error:
        raise InputError(
            f"cron expression {cron!r}",
            str(error),
            'Write minute, hour, day, month and weekday, such as "30 3 * * 1"',
        ) from None


def add(
    ws: Workspace,
    name: str,
    kind: str,
    spec: Mapping[str, Any],
    cron: str,
    *,
    agent: str | None = None,
    timezone: str = "UTC",
    missed: Missed = Missed.ONCE,
    asked_by: str | None = None,
    now: datetime | None = None,
) -> Schedule:
    """Add a schedule and return it. Raises InputError for an invalid expression, one that never
    fires or an address with a password, and Conflict for a name in use."""
    check(cron, timezone)
    require_no_password(spec)
    now = now or datetime.now(UTC)
    next_at = next_time(cron, timezone, now)
    if next_at is None:
        raise InputError(f"cron expression {cron!r}", "the schedule never fires", "Correct it")
    schedule = Schedule(
        id=ids.new("sch"),
        name=ids.slug_of(name),
        kind=kind,
        spec=dict(spec),
        agent=agent,
        cron=cron,
        timezone=timezone,
        missed=missed,
        paused=False,
        asked_by=asked_by,
        next_at=next_at,
        recorded_at=now,
    )

    def work(connection: sa.Connection) -> None:
        if schedule.name in (other.name for other in store.all_schedules(connection)):
            raise Conflict(
                f"schedule {schedule.name!r}",
                "a schedule with that name exists",
                f"Take another name, or: thumbwheel schedule remove {schedule.name}",
            )
        store.add_schedule(connection, schedule)

    ws.db.write(work, JOBS)
    return schedule


def pause_all(connection: sa.Connection) -> int:
    """Pause all schedules; return how many were running."""
    return store.pause_schedules(connection)


def schedules(ws: Workspace, agent: str | None = None) -> list[Schedule]:
    """Return the schedules, by name; with `agent` only that agent's."""
    with ws.db.read() as connection:
        rows = store.all_schedules(connection)
    return [row for row in rows if agent is None or row.agent == agent]


def named(ws: Workspace, name: str, is_visible: Callable[[Schedule], bool]) -> Schedule:
    """Return the schedule with this name. Raises NotFound, also for one that is not visible to the
    principal."""
    with ws.db.read() as connection:
        return _named(connection, name, is_visible)


def _named(
    connection: sa.Connection, name: str, is_visible: Callable[[Schedule], bool] | None = None
) -> Schedule:
    by_name = {
        schedule.name: schedule
        for schedule in store.all_schedules(connection)
        if is_visible is None or is_visible(schedule)
    }
    if name not in by_name:
        names = ", ".join(by_name) or "none"
        raise NotFound(
            f"schedule {name!r}", "there is none", f"Known: {names}.{nearest(name, by_name)}"
        )
    return by_name[name]


def overdue(ws: Workspace, seconds: float = 60.0, now: datetime | None = None) -> str | None:
    """Return a message if a schedule is due for more than `seconds` and its job was not enqueued,
    else None. Health needs no key, so the message does not name the schedule."""
    now = now or datetime.now(UTC)
    with ws.db.read() as connection:
        late = [row for row in store.all_schedules(connection) if is_due(row, now)]
    for schedule in late:
        assert schedule.next_at is not None  # noqa: S101 - it is due
        waited = (now - schedule.next_at).total_seconds()
        if waited > seconds:
            return f"a schedule is {waited:.0f} s late: no worker looks at schedules"
    return None


def pause(ws: Workspace, name: str, paused: bool = True, now: datetime | None = None) -> Schedule:
    """Pause a schedule, or resume it with its next time from now; runs missed during the pause are
    not made up for. Raises NotFound."""
    now = now or datetime.now(UTC)

    def work(connection: sa.Connection) -> Schedule:
        schedule = _named(connection, name)
        next_at = schedule.next_at
        if schedule.paused and not paused:
            next_at = next_time(schedule.cron, schedule.timezone, now)
        store.set_schedule(connection, schedule.id, paused=paused, next_at=next_at)
        return replace(schedule, paused=paused, next_at=next_at)

    return ws.db.write(work, JOBS)


def remove(ws: Workspace, name: str) -> Schedule:
    """Delete a schedule; the jobs that it enqueued stay. Raises NotFound."""

    def work(connection: sa.Connection) -> Schedule:
        schedule = _named(connection, name)
        store.remove_schedule(connection, schedule.id)
        return schedule

    return ws.db.write(work, JOBS)


# by workers


def is_due(schedule: Schedule, now: datetime) -> bool:
    """Return whether the schedule's time has come and it is not paused."""
    return not schedule.paused and schedule.next_at is not None and schedule.next_at <= now


def is_ahead(schedule: Schedule, now: datetime) -> bool:
    """Return whether the stored next time is later than it should be, because the clock was set
    back or because the clock that set it is ahead."""
    if schedule.paused or schedule.next_at is None:
        return False
    expected = next_time(schedule.cron, schedule.timezone, now)
    return expected is not None and expected < schedule.next_at


def fire(connection: sa.Connection, now: datetime) -> list[Job]:
    """Enqueue the jobs of all due schedules and set their next times, as part of a write; return
    the jobs."""
    fired = []
    for schedule in store.locked_schedules(connection):
        if not is_due(schedule, now) and not is_ahead(schedule, now):
            continue
        for instant in _runs(schedule, now):
            key = f"{schedule.id} {instant.isoformat()}"
            if store.by_key(connection, key) is not None:
                continue  # before the clock was set back
            if _is_busy(connection, schedule):
                log.say(f"schedule {schedule.name}: its last job goes on, so this time is left out")
                break
            job = enqueued(
                connection,
                schedule.kind,
                schedule.spec,
                agent=schedule.agent,
                key=key,
                schedule=schedule.id,
                asked_by=schedule.asked_by,
                now=now,
            )
            fired.append(job)
        next_at = next_time(schedule.cron, schedule.timezone, now)
        store.set_schedule(connection, schedule.id, next_at=next_at)
    return fired


def _runs(schedule: Schedule, now: datetime) -> list[datetime]:
    """Return the instants for which a job is enqueued now."""
    due: deque[datetime] = deque(maxlen=MOST_MISSED)
    instant = schedule.next_at
    while instant is not None and instant <= now:
        due.append(instant)
        instant = next_time(schedule.cron, schedule.timezone, instant)
    if schedule.missed is Missed.ALL or not due:
        return list(due)
    last = due[-1]
    if schedule.missed is Missed.SKIP and now - last > PUNCTUAL:
        return []
    return [last]


def _is_busy(connection: sa.Connection, schedule: Schedule) -> bool:
    """Return whether the schedule's last job has not ended. With Missed.ALL return False: those
    runs queue up."""
    if schedule.missed is Missed.ALL:
        return False
    last = store.listed(connection, schedule_id=schedule.id, limit=1)
    return bool(last) and last[0].state not in ENDED
