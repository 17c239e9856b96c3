"""The verbs over jobs: enqueue, cancel, resume, retry, list, show, follow. Read types.py first.

A job is a row. Whoever has the home open may enqueue and cancel; workers claim (claims.py). An
enqueue is one write, and `enqueued` is its part of a larger one, so that a row and the job that
works on it come together or not at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from thumbwheel.core import ids
from thumbwheel.core.address_secrets import addresses_with_secrets
from thumbwheel.core.errors import Busy, Conflict, InputError, NotFound
from thumbwheel.core.home_paths import located, portable
from thumbwheel.db.hosts import folder_id, name_of
from thumbwheel.db.page_cursor import PageCursor
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import JOBS
from thumbwheel.jobs import store
from thumbwheel.jobs.types import (
    CRASH,
    WORKER_DIED,
    EventKind,
    Job,
    JobEvent,
    JobsConfig,
    JobState,
    WorkerRow,
)

PAGE = 50
"""Jobs of one page."""
LIVE_SECONDS = 60.0
"""A worker that gave no sign of life for so long is not counted on."""
CRASHES_IN_A_ROW = 3
"""Crashes after which something is wrong with more than one job."""
LOOKED_AT = 50
"""Jobs among which those that ended last are looked for."""
LOOK_EVERY = 0.1
"""Seconds between two looks at a job that is followed."""
OWNER = "local"
"""Who asks as the owner of the home."""
ERASED = "(erased)"
"""What is left of texts that mentioned an erased subject."""


def enqueue(
    ws: Workspace,
    kind: str,
    spec: Mapping[str, Any],
    *,
    agent: str | None = None,
    key: str | None = None,
    priority: int = 0,
    parent: str | None = None,
    asked_by: str | None = None,
    folder: str | None = None,
) -> Job:
    """Enqueue a job and return it. `key` makes the request repeatable: the job with the same key is
    returned. With a `folder` of the home only workers of that folder do it.

    Raises Conflict if that job has another kind or spec, Busy if too many jobs of `asked_by` are
    queued, and InputError for an address with a password.
    """
    require_no_password(spec)
    spec = portable(spec, ws.home.path)

    def work(connection: sa.Connection) -> Job:
        if key is None or store.by_key(connection, key) is None:
            _require_room(connection, ws, asked_by)
        return enqueued(
            connection,
            kind,
            spec,
            agent=agent,
            key=key,
            priority=priority,
            parent=parent,
            asked_by=asked_by,
            folder=folder,
        )

    return _located(ws, ws.db.write(work, JOBS))


def require_no_password(spec: Mapping[str, Any]) -> None:
    """Raise InputError for an address with a password, because specs are stored, listed and
    logged."""
    for shown in addresses_with_secrets(spec):
        raise InputError(
            f"address {shown!r}",
            "it has a password, and the options of a job or schedule are stored in the database",
            "Store the password (thumbwheel secrets set NAME) and name it: key=NAME, beside the "
            "address without it. Or leave the address out where an environment variable has it",
        )


def _require_room(connection: sa.Connection, ws: Workspace, asked_by: str | None) -> None:
    """Raise Busy if a key or user already has the allowed number of queued jobs."""
    if asked_by is None or asked_by == OWNER:
        return
    most = ws.settings(JobsConfig, "jobs").queued_per_key
    if store.waiting_of(connection, asked_by) >= most:
        raise Busy(
            "the job",
            f"{most} of your jobs are already waiting",
            "Wait for some, or cancel some: thumbwheel jobs list, thumbwheel jobs cancel",
        )


def enqueued(
    connection: sa.Connection,
    kind: str,
    spec: Mapping[str, Any],
    *,
    agent: str | None = None,
    key: str | None = None,
    priority: int = 0,
    parent: str | None = None,
    schedule: str | None = None,
    asked_by: str | None = None,
    folder: str | None = None,
    now: datetime | None = None,
) -> Job:
    """Enqueue a job as part of a write; see `enqueue`."""
    if key is not None:
        existing = store.by_key(connection, key)
        if existing is not None:
            if (existing.kind, existing.spec) != (kind, dict(spec)):
                raise Conflict(
                    f"idempotency key {key!r}",
                    f"job {existing.id} has it, with a different request",
                    "Use a new key for a new request",
                )
            return existing
    job = Job(
        id=ids.new("job"),
        kind=kind,
        spec=dict(spec),
        agent=agent,
        state=JobState.QUEUED,
        key=key,
        priority=priority,
        parent_id=parent,
        schedule_id=schedule,
        asked_by=asked_by,
        folder=folder,
        attempts=0,
        crashes=0,
        fence=0,
        worker_id=None,
        notes={},
        progress=None,
        result=None,
        error=None,
        last_event=0,
        recorded_at=now or datetime.now(UTC),
        started_at=None,
        progressed_at=None,
        ended_at=None,
    )
    store.add(connection, job)
    return replace(job, last_event=1)


def job(ws: Workspace, job_id: str, is_visible: Callable[[Job], bool] | None = None) -> Job:
    """Return the job whose id is, or begins with, `job_id`. Raises NotFound, also for a job that is
    not visible to the principal."""
    with ws.db.read() as connection:
        return _located(ws, _job(connection, job_id, is_visible))


def _job(
    connection: sa.Connection, job_id: str, is_visible: Callable[[Job], bool] | None = None
) -> Job:
    matches = store.by_id(connection, job_id)
    if is_visible is not None:
        matches = [row for row in matches if is_visible(row)]
    ids.require_single(job_id, [match.id for match in matches])
    if not matches:
        raise NotFound(f"job {job_id!r}", "there is no such job", "List them: thumbwheel jobs list")
    return matches[0]


def job_of_key(ws: Workspace, key: str) -> Job | None:
    """Return the job with this idempotency key, or None."""
    with ws.db.read() as connection:
        row = store.by_key(connection, key)
    return None if row is None else _located(ws, row)


def _located(ws: Workspace, row: Job) -> Job:
    """Return a job with the paths of the home as they are on this host."""
    return replace(
        row,
        spec=located(row.spec, ws.home.path),
        notes=located(row.notes, ws.home.path),
        progress=located(row.progress, ws.home.path),
        result=located(row.result, ws.home.path),
        error=located(row.error, ws.home.path),
    )


def jobs(
    ws: Workspace,
    *,
    states: Collection[JobState] = (),
    kind: str | None = None,
    agents: Collection[str] | None = None,
    after: str | None = None,
    limit: int = PAGE,
) -> tuple[list[Job], str | None]:
    """Return (the jobs, newest first, and the cursor of the next page); None as cursor means no
    next page.

    Raises InputError for an invalid cursor.
    """
    before = PageCursor.read(after) if after is not None else None
    with ws.db.read() as connection:
        rows = store.listed(
            connection, states=states, kind=kind, agents=agents, before=before, limit=limit + 1
        )
    page = [_located(ws, row) for row in rows[:limit]]
    if len(rows) <= limit:
        return page, None
    return page, PageCursor(page[-1].recorded_at, page[-1].id).to_text()


def events(
    ws: Workspace,
    job_id: str,
    after: int = 0,
    limit: int = 1000,
    kinds: Collection[EventKind] = (),
) -> list[JobEvent]:
    """Return a job's events after the event number `after`, in order."""
    with ws.db.read() as connection:
        rows = store.events(connection, _job(connection, job_id).id, after, limit, kinds)
    return [replace(row, content=located(row.content, ws.home.path)) for row in rows]


def cancel(ws: Workspace, job_id: str) -> Job:
    """Cancel a job and return it. A queued one is cancelled at once; a running one stops at a
    checkpoint. Cancelling twice changes nothing. Raises Conflict for a job that has succeeded or
    failed."""

    def work(connection: sa.Connection) -> Job:
        current, now = _job(connection, job_id), datetime.now(UTC)
        if current.state is JobState.QUEUED:
            store.move(connection, current, JobState.CANCELLED, now, ended_at=now)
        elif current.state is JobState.RUNNING:
            store.move(connection, current, JobState.CANCELLING, now)
        elif current.state is JobState.SUCCEEDED or current.state is JobState.FAILED:
            raise Conflict(
                f"job {current.id!r}", f"it has {current.state} already", "There is nothing to stop"
            )
        return _job(connection, current.id)

    return ws.db.write(work, JOBS)


def cancel_all(connection: sa.Connection) -> int:
    """Cancel every job that has not ended, in a database whose workers do not belong to this home;
    return how many."""
    now = datetime.now(UTC)
    states = (JobState.QUEUED, JobState.RUNNING, JobState.CANCELLING)
    unfinished = store.in_states(connection, states)
    for row in unfinished:
        if row.state is JobState.RUNNING:
            store.move(connection, row, JobState.CANCELLING, now)
            row = replace(row, state=JobState.CANCELLING)
        store.move(connection, row, JobState.CANCELLED, now, ended_at=now)
    return len(unfinished)


def resume(ws: Workspace, job_id: str) -> Job:
    """Queue a cancelled job again, so that it continues where it stopped. Raises Conflict for any
    other."""
    return _again(ws, job_id, JobState.CANCELLED, "Only a cancelled job is resumed")


def retry(ws: Workspace, job_id: str) -> Job:
    """Queue a failed job again; its earlier progress is used. Raises Conflict unless it has
    failed."""
    return _again(ws, job_id, JobState.FAILED, "Only a failed job is tried again")


def _again(ws: Workspace, job_id: str, required: JobState, rule: str) -> Job:
    def work(connection: sa.Connection) -> Job:
        current, now = _job(connection, job_id), datetime.now(UTC)
        if current.state is not required:
            fixes = {
                JobState.CANCELLED: f"Give: thumbwheel jobs resume {current.id}",
                JobState.FAILED: f"Give: thumbwheel jobs retry {current.id}",
                JobState.SUCCEEDED: "Ask for a new job",
            }
            fix = fixes.get(current.state, "Wait for it, or cancel it first")
            raise Conflict(f"job {current.id!r}", f"it is {current.state}. {rule}", fix)
        _require_room(connection, ws, current.asked_by)
        store.move(connection, current, JobState.QUEUED, now, error=None, ended_at=None, crashes=0)
        return _job(connection, current.id)

    return ws.db.write(work, JOBS)


def counts(ws: Workspace) -> dict[str, int]:
    """Return state -> number of jobs."""
    with ws.db.read() as connection:
        return store.count(connection)


def live_workers(ws: Workspace) -> list[WorkerRow]:
    """Return the workers that gave a sign of life within the last minute."""
    now = datetime.now(UTC)
    with ws.db.read() as connection:
        rows = store.all_workers(connection)
    return [row for row in rows if abs((now - row.beaten_at).total_seconds()) < LIVE_SECONDS]


def standstill(ws: Workspace, seconds: float = LIVE_SECONDS) -> str | None:
    """Return a message if a job has been queued for `seconds` and no worker is alive that can do
    it, else None."""
    now = datetime.now(UTC)
    with ws.db.read() as connection:
        waiting = store.queued(connection, LOOKED_AT)
    workers = live_workers(ws)
    for row in waiting:
        waited = (now - row.recorded_at).total_seconds()
        if waited <= seconds:
            continue
        if not workers:
            return f"a job waits for {waited:.0f} s, and no worker is alive"
        why = _obstacle(ws, row, workers)
        if why is not None:
            return f"job {row.id} waits for {waited:.0f} s {why}"
    return None


def obstacle(ws: Workspace, row: Job) -> str | None:
    """Return why no worker that is alive can do a queued job, else None."""
    workers = live_workers(ws) if row.state is JobState.QUEUED else []
    return _obstacle(ws, row, workers) if workers else None


def _obstacle(ws: Workspace, row: Job, workers: Collection[WorkerRow]) -> str | None:
    """Return for what a queued job waits if none of these workers can do it, else None."""
    near = [worker for worker in workers if row.folder in (None, worker.folder)]
    if not near:
        with ws.db.read() as connection:
            return f"for a file of {name_of(connection, row.folder)}: no worker lives there"
    missing: list[str] = []
    for worker in near:
        lack = (worker.lacks or {}).get(row.kind)
        if lack is None:
            return None
        if worker.folder == folder_id(ws.home):
            host = "this host"
        else:
            with ws.db.read() as connection:
                host = name_of(connection, worker.folder)
        missing.append(f"{host} lacks {lack}")
    hosts = "; ".join(dict.fromkeys(missing))
    return f"for a host that meets the needs of {row.kind!r} (jobs.needs): {hosts}"


def crashing(ws: Workspace) -> str | None:
    """Return a message if jobs crash again and again, else None: the newest ended jobs crashed, or
    workers die under a job that is retried. Health needs no key, so the message names the kind of
    the exception and omits its text, which may quote somebody."""
    with ws.db.read() as connection:
        held_or_queued = [*store.queued(connection, LOOKED_AT), *store.held(connection)]
        newest = store.listed(
            connection, states=[JobState.SUCCEEDED, JobState.FAILED], limit=LOOKED_AT
        )
    for job in held_or_queued:
        if job.crashes >= CRASHES_IN_A_ROW:
            return (
                f"{job.crashes} workers died under job {job.id} ({job.kind}), which is tried "
                "again; the log of the server says how"
            )
    newest.sort(key=lambda job: job.ended_at or job.recorded_at, reverse=True)
    in_a_row = newest[:CRASHES_IN_A_ROW]
    crashed = [job for job in in_a_row if (job.error or {}).get("kind") in (CRASH, WORKER_DIED)]
    if len(crashed) < CRASHES_IN_A_ROW:
        return None
    last = crashed[0]
    assert last.error is not None  # noqa: S101 - narrows the type: it has the kind of a crash
    exception = last.error["why"].partition(":")[0]
    return (
        f"the last {CRASHES_IN_A_ROW} jobs crashed, at last {last.id} ({last.kind}): {exception}; "
        "the log of the server has the traceback"
    )


def follow(
    ws: Workspace, job_id: str, after: int = 0, sleep: Callable[[float], None] = time.sleep
) -> Iterator[JobEvent]:
    """Yield the events of a job as they occur, until it has ended."""
    changes = ws.db.changes()
    try:
        while True:
            marker = changes.marker()
            current = job(ws, job_id)
            for event in events(ws, job_id, after):
                after = event.number
                yield event
            if current.has_ended and after >= current.last_event:
                return
            while changes.marker() == marker:
                sleep(LOOK_EVERY)
    finally:
        changes.close()


def forget(connection: sa.Connection, mentions: Callable[[str], bool]) -> int:
    """Erase every text that `mentions` a subject from jobs, events and schedules, as part of a
    write; return the number of changed rows."""
    return store.forget(connection, mentions, ERASED)
