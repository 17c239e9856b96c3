"""SQL of jobs, their events, workers and schedules. Every change of a job also writes its event.

Whoever changes the state of a job, a worker or a schedule holds the lock `JOBS` (db/write_locks),
so what is read in such a write stays true until its end. Two kinds of writes do without: those of
the job that a worker does, which lock the row of their job (`require_fence`), and signs of life,
which touch nothing that a claim reads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, fields
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from thumbwheel.core.errors import Conflict, Fenced
from thumbwheel.db.columns import has_id
from thumbwheel.db.page_cursor import PageCursor
from thumbwheel.db.schema import job_events, job_parts, jobs, schedules, workers
from thumbwheel.jobs import part_store
from thumbwheel.jobs.types import (
    ENDED,
    HELD,
    MOVES,
    EventKind,
    Job,
    JobEvent,
    JobState,
    Missed,
    Schedule,
    WorkerRow,
)

MOST_LOG_LINES = 5_000
"""Lines of a job's log that are stored; the worker's own log has all."""

OF_AGENT = 20
"""Jobs of one agent among those of which one is claimed."""
BEGUN = 1_000
"""Jobs, the newest that have begun, by which agents take turns."""


# jobs


def add(connection: sa.Connection, job: Job) -> None:
    """Store a new job."""
    connection.execute(jobs.insert().values(**asdict(job)))
    add_event(connection, job.id, EventKind.STATE, {"state": job.state}, job.recorded_at)


def by_id(connection: sa.Connection, job_id: str) -> list[Job]:
    """Return the jobs whose id is `job_id` or begins with it."""
    return _jobs(connection, sa.select(jobs).where(has_id(jobs.c.id, job_id)))


def by_key(connection: sa.Connection, key: str) -> Job | None:
    """Return the job with this idempotency key, or None."""
    for job in _jobs(connection, sa.select(jobs).where(jobs.c.key == key)):
        return job
    return None


def listed(
    connection: sa.Connection,
    *,
    states: Collection[JobState] = (),
    kind: str | None = None,
    agents: Collection[str] | None = None,
    schedule_id: str | None = None,
    before: PageCursor | None = None,
    limit: int,
) -> list[Job]:
    """Return up to `limit` jobs, newest first. `before`: the (time, id) of the last job of the
    previous page."""
    query = sa.select(jobs).order_by(jobs.c.recorded_at.desc(), jobs.c.id.desc()).limit(limit)
    if states:
        query = query.where(jobs.c.state.in_(states))
    if kind is not None:
        query = query.where(jobs.c.kind == kind)
    if agents is not None:
        query = query.where(jobs.c.agent.in_(agents))
    if schedule_id is not None:
        query = query.where(jobs.c.schedule_id == schedule_id)
    if before is not None:
        query = query.where(
            sa.tuple_(jobs.c.recorded_at, jobs.c.id) < sa.tuple_(before.recorded_at, before.id)
        )
    return _jobs(connection, query)


def queued(
    connection: sa.Connection, limit: int, kinds: Collection[str] | None = None
) -> list[Job]:
    """Return the queued jobs, of these kinds only if they are named, by priority and age."""
    query = sa.select(jobs).where(jobs.c.state == JobState.QUEUED)
    if kinds is not None:
        query = query.where(jobs.c.kind.in_(kinds))
    order = (jobs.c.priority.desc(), jobs.c.recorded_at, jobs.c.id)
    return _jobs(connection, query.order_by(*order).limit(limit))


def in_turn(
    connection: sa.Connection, limit: int, urgent: Collection[str], kinds: Collection[str]
) -> list[Job]:
    """Return the queued jobs of these kinds, in the order in which they are claimed: urgent kinds
    first, then by agent. The agent whose last job began longest ago comes first, with its oldest
    job."""
    # an agent with thousands of jobs that wait takes no more of the list than one with a few
    turn = sa.func.row_number().over(
        partition_by=jobs.c.agent, order_by=(jobs.c.priority.desc(), jobs.c.recorded_at, jobs.c.id)
    )
    waiting = (
        sa.select(jobs.c.id, turn.label("turn"))
        .where(jobs.c.state == JobState.QUEUED, jobs.c.kind.in_(kinds))
        .subquery()
    )
    begun = (
        sa.select(jobs.c.agent, jobs.c.started_at)
        .where(jobs.c.started_at.is_not(None))
        .order_by(jobs.c.recorded_at.desc(), jobs.c.id.desc())
        .limit(BEGUN)
        .subquery()
    )
    turns = (
        sa.select(begun.c.agent, sa.func.max(begun.c.started_at).label("last"))
        .group_by(begun.c.agent)
        .subquery()
    )
    # jobs of no agent take turns as one more
    is_same = sa.func.coalesce(turns.c.agent, "") == sa.func.coalesce(jobs.c.agent, "")
    query = (
        sa.select(jobs)
        .join(waiting, waiting.c.id == jobs.c.id)
        .outerjoin(turns, is_same)
        .where(sa.or_(waiting.c.turn <= OF_AGENT, jobs.c.kind.in_(urgent)))
        .order_by(
            jobs.c.kind.in_(urgent).desc(),
            jobs.c.priority.desc(),
            sa.nulls_first(turns.c.last),
            jobs.c.recorded_at,
            jobs.c.id,
        )
        .limit(limit)
    )
    return _jobs(connection, query)


def waiting_of(connection: sa.Connection, asked_by: str) -> int:
    """Return the number of queued jobs that a principal requested."""
    query = sa.select(sa.func.count()).where(
        jobs.c.state == JobState.QUEUED, jobs.c.asked_by == asked_by
    )
    return connection.execute(query).scalar_one()


def held(connection: sa.Connection) -> list[Job]:
    """Return the jobs that workers hold."""
    return in_states(connection, HELD)


def in_states(connection: sa.Connection, states: Collection[JobState]) -> list[Job]:
    """Return the jobs in one of these states."""
    return _jobs(connection, sa.select(jobs).where(jobs.c.state.in_(states)))


def count(connection: sa.Connection) -> dict[str, int]:
    """Return state -> number of jobs."""
    rows = connection.execute(sa.select(jobs.c.state, sa.func.count()).group_by(jobs.c.state))
    return {row[0]: row[1] for row in rows}


def move(
    connection: sa.Connection, job: Job, state: JobState, now: datetime, **values: Any
) -> None:
    """Set the state of `job`, which was read in this write. Raises Conflict for a transition that
    is not allowed."""
    if state not in MOVES[job.state]:
        raise Conflict(
            f"job {job.id!r}",
            f"it is {job.state}, and cannot become {state}",
            "See: thumbwheel jobs show JOB",
        )
    connection.execute(jobs.update().where(jobs.c.id == job.id).values(state=state, **values))
    if state in ENDED:
        part_store.remove(connection, job.id)
    content = {"state": state}
    for name in ("worker_id", "error"):
        if values.get(name) is not None:
            content[name] = values[name]
    add_event(connection, job.id, EventKind.STATE, content, now)


def require_fence(
    connection: sa.Connection, job_id: str, fence: int, *, changes: bool = False
) -> JobState:
    """Return the state of a job that this worker still holds, and lock its row: nobody takes the
    job over before the end of this write. `changes`: the write changes the row itself. Raises
    Fenced if the worker does not hold the job.
    """
    query = sa.select(jobs.c.state, jobs.c.fence).where(jobs.c.id == job_id)
    # SQLite, which has one writer, compiles it to nothing
    locked = query.with_for_update(read=not changes, key_share=changes)
    row = connection.execute(locked).first()
    if row is None or row.fence != fence or row.state not in HELD:
        raise Fenced(
            f"job {job_id!r}", "another worker has it now", "Nothing to do: the job continues there"
        )
    return JobState(row.state)


def is_free(connection: sa.Connection, job: Job) -> bool:
    """Lock the row of a queued job for a claim. Return False if another transaction holds it, or
    has claimed the job."""
    query = sa.select(jobs.c.id).where(
        jobs.c.id == job.id, jobs.c.state == JobState.QUEUED, jobs.c.fence == job.fence
    )
    locked = query.with_for_update(skip_locked=True)
    return connection.execute(locked).first() is not None


def set_values(connection: sa.Connection, job_id: str, **values: Any) -> None:
    """Change columns other than the state."""
    connection.execute(jobs.update().where(jobs.c.id == job_id).values(**values))


def add_event(
    connection: sa.Connection,
    job_id: str,
    kind: EventKind,
    content: Mapping[str, Any],
    now: datetime,
) -> None:
    """Store an event of the job, under its next number."""
    update = jobs.update().where(jobs.c.id == job_id).values(last_event=jobs.c.last_event + 1)
    number = connection.execute(update.returning(jobs.c.last_event)).scalar_one()
    connection.execute(
        job_events.insert().values(
            job_id=job_id, number=number, kind=kind, content=dict(content), recorded_at=now
        )
    )


def events(
    connection: sa.Connection,
    job_id: str,
    after: int,
    limit: int,
    kinds: Collection[EventKind] = (),
) -> list[JobEvent]:
    """Return the events with a higher number than `after`, in order."""
    query = sa.select(job_events).where(job_events.c.job_id == job_id, job_events.c.number > after)
    if kinds:
        query = query.where(job_events.c.kind.in_(kinds))
    rows = connection.execute(query.order_by(job_events.c.number).limit(limit)).mappings()
    return [
        JobEvent(row["number"], EventKind(row["kind"]), row["content"], row["recorded_at"])
        for row in rows
    ]


def _jobs(connection: sa.Connection, query: sa.Select[Any]) -> list[Job]:
    names = [field.name for field in fields(Job)]
    rows = connection.execute(query).mappings()
    return [
        Job(**{name: row[name] for name in names} | {"state": JobState(row["state"])})
        for row in rows
    ]


# erasure


def forget(connection: sa.Connection, mentions: Callable[[str], bool], erased: str) -> int:
    """Replace each text that `mentions` somebody by `erased`, in jobs, their events and schedules.
    Returns the number of changed rows."""
    changed = 0
    for table, columns in (
        (jobs, ("spec", "notes", "progress", "result", "error")),
        (job_parts, ("spec", "result")),
        (job_events, ("content",)),
        (schedules, ("spec",)),
    ):
        keys = list(table.primary_key.columns)
        selected = sa.select(*keys, *(table.c[name] for name in columns))
        for row in connection.execute(selected).mappings().all():
            values = {}
            for name in columns:
                cleaned = _without(row[name], mentions, erased)
                if cleaned != row[name]:
                    values[name] = cleaned
            if values:
                where = sa.and_(*(key == row[key.name] for key in keys))
                connection.execute(table.update().where(where).values(**values))
                changed += 1
    return changed


def _without(value: Any, mentions: Callable[[str], bool], erased: str) -> Any:
    """Return a JSON value in which each text and key that mentions somebody is replaced by
    `erased`."""
    if isinstance(value, str):
        return erased if mentions(value) else value
    if isinstance(value, list):
        return [_without(item, mentions, erased) for item in value]
    if isinstance(value, dict):
        cleaned = {}
        for key, item in value.items():
            cleaned[_without(key, mentions, erased)] = _without(item, mentions, erased)
        return cleaned
    return value


# workers


def add_worker(connection: sa.Connection, worker: WorkerRow) -> None:
    """Store a new worker."""
    connection.execute(workers.insert().values(**asdict(worker)))


def beat(connection: sa.Connection, worker_id: str, now: datetime) -> None:
    """Record a sign of life of the worker. Raises Fenced if the worker was declared dead."""
    update = workers.update().where(workers.c.id == worker_id)
    result = connection.execute(update.values(beat=workers.c.beat + 1, beaten_at=now))
    if result.rowcount == 0:
        raise Fenced(
            f"worker {worker_id!r}",
            "it sent no heartbeat for so long that others took over its work",
            "Start another: thumbwheel worker",
        )


def remove_worker(connection: sa.Connection, worker_id: str, beat: int | None = None) -> bool:
    """Delete a worker that has ended or counts as dead, and return whether it was there. With
    `beat` it stays if it has given a sign of life since."""
    is_same = [workers.c.id == worker_id]
    if beat is not None:
        is_same.append(workers.c.beat == beat)
    return connection.execute(workers.delete().where(*is_same)).rowcount > 0


def all_workers(connection: sa.Connection) -> list[WorkerRow]:
    """Return the workers, oldest first."""
    query = sa.select(workers).order_by(workers.c.recorded_at, workers.c.id)
    return [WorkerRow(**row) for row in connection.execute(query).mappings()]


# schedules


def add_schedule(connection: sa.Connection, schedule: Schedule) -> None:
    """Store a new schedule."""
    connection.execute(schedules.insert().values(**asdict(schedule)))


def database_time(connection: sa.Connection) -> datetime:
    """Return the time of the database's clock, in UTC; all workers share it."""
    instant = connection.execute(sa.select(sa.func.now())).scalar_one()
    return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant.astimezone(UTC)


def all_schedules(connection: sa.Connection) -> list[Schedule]:
    """Return the schedules, by name."""
    return _schedules(connection, sa.select(schedules).order_by(schedules.c.name))


def _schedules(connection: sa.Connection, query: sa.Select[Any]) -> list[Schedule]:
    return [
        Schedule(**{**row, "missed": Missed(row["missed"])})
        for row in connection.execute(query).mappings()
    ]


def locked_schedules(connection: sa.Connection) -> list[Schedule]:
    """Return the schedules, which no other write changes until the end of this one."""
    query = sa.select(schedules).order_by(schedules.c.name).with_for_update()
    return _schedules(connection, query)


def set_schedule(connection: sa.Connection, schedule_id: str, **values: Any) -> None:
    """Change columns of a schedule."""
    connection.execute(schedules.update().where(schedules.c.id == schedule_id).values(**values))


def pause_schedules(connection: sa.Connection) -> int:
    """Pause all schedules; return how many were running."""
    runs = schedules.c.paused == sa.false()
    return connection.execute(schedules.update().where(runs).values(paused=True)).rowcount


def remove_schedule(connection: sa.Connection, schedule_id: str) -> None:
    """Delete a schedule; the jobs that it enqueued stay."""
    connection.execute(schedules.delete().where(schedules.c.id == schedule_id))
