"""What a worker writes about a job: claim, progress, the end, and the takeover of jobs whose worker
died.

A claim raises the job's fence. Every write of the worker, of whatever stage, first looks whether
the job still has that fence (`guard`), so nothing of a worker that was declared dead, and wakes up
later, reaches the database.

Whether a worker is dead is measured by the clock of the one who looks: its beat has stood still for
a lease. Wall clocks, which jump and differ between hosts, are only shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from thumbwheel.core.errors import ThumbwheelError
from thumbwheel.jobs import part_store, store
from thumbwheel.jobs.host import Host
from thumbwheel.jobs.part_types import JobPart, PartKind
from thumbwheel.jobs.types import (
    CRASH,
    HEAVY,
    WORKER_DIED,
    Job,
    JobsConfig,
    JobState,
    WorkerRow,
)

CLAIMABLE = 200
"""Jobs at the head of the queue among which one is looked for that can run now."""
GONE_SECONDS = 1.0
"""Seconds after which a process of this host that is no more counts as dead: its children get the
time to end."""


def claim(
    connection: sa.Connection,
    worker_id: str,
    needs: Mapping[str, tuple[str, ...]],
    config: JobsConfig,
    now: datetime,
    urgent: Collection[str] = (),
    folder: str | None = None,
    helpers: Sequence[str] = (),
) -> Job | None:
    """Claim the next job whose kind is in `needs`, whose resources are free and whose files are in
    the worker's `folder`; return it, or None if there is none. `helpers` are the workers that
    compute with models for jobs of others."""
    for job in claimable(connection, worker_id, needs, config, urgent, folder, helpers):
        if not store.is_free(connection, job):
            continue
        store.move(
            connection,
            job,
            JobState.RUNNING,
            now,
            worker_id=worker_id,
            fence=job.fence + 1,
            attempts=job.attempts + 1,
            started_at=job.started_at or now,
            progressed_at=now,
        )
        return store.by_id(connection, job.id)[0]
    return None


def claimable(
    connection: sa.Connection,
    worker_id: str,
    needs: Mapping[str, tuple[str, ...]],
    config: JobsConfig,
    urgent: Collection[str] = (),
    folder: str | None = None,
    helpers: Sequence[str] = (),
) -> Iterator[Job]:
    """Yield the queued jobs that this worker could do now, in the order in which they are
    claimed."""
    elsewhere = _workers_elsewhere(connection, worker_id)
    in_use: list[str] = []
    for job in store.held(connection):
        held = resources(job, needs.get(job.kind, ()))
        # every host computes with models by itself
        in_use += [name for name in held if name != HEAVY or job.worker_id not in elsewhere]
    in_use += [HEAVY for helper in helpers if helper not in elsewhere]
    for job in store.in_turn(connection, CLAIMABLE, urgent, needs):
        if job.folder not in (None, folder):
            continue
        wanted = resources(job, needs[job.kind])
        if any(in_use.count(name) >= (config.heavy if name == HEAVY else 1) for name in wanted):
            continue
        yield job


def claim_part(
    connection: sa.Connection,
    worker_id: str,
    part_kinds: Mapping[str, PartKind],
    needs: Mapping[str, tuple[str, ...]],
    config: JobsConfig,
    folder: str,
    job_id: str | None = None,
) -> JobPart | None:
    """Claim the next part of a job of another worker whose kind is in `needs`, if this host has
    room for it; return it, or None. With a `job_id`, a worker that helps with that job goes on."""
    elsewhere = _workers_elsewhere(connection, worker_id)
    in_use = 0
    for job in store.held(connection):
        is_here = job.worker_id not in elsewhere
        in_use += is_here and HEAVY in resources(job, needs.get(job.kind, ()))
    for helper in part_store.helpers(connection):
        in_use += helper not in elsewhere
    has_room = in_use < config.heavy
    kinds = [name for name, kind in part_kinds.items() if has_room or HEAVY not in kind.needs]
    return part_store.claim_of_others(connection, worker_id, folder, kinds, needs, job_id)


def _workers_elsewhere(connection: sa.Connection, worker_id: str) -> set[str]:
    """Return the ids of the workers of other hosts than the one of this worker."""
    workers = store.all_workers(connection)
    hosts = {worker.id: worker.host for worker in workers}
    return {worker.id for worker in workers if worker.host != hosts.get(worker_id, worker.host)}


def resources(job: Job, needs: Iterable[str]) -> list[str]:
    """Return the resources that `job` holds while it runs."""
    return [need.format(agent=job.agent or "") for need in needs]


def guard(job: Job) -> Callable[[sa.Connection], None]:
    """Return a check that raises Fenced in every write once another worker has the job."""

    def require(connection: sa.Connection) -> None:
        store.require_fence(connection, job.id, job.fence)

    return require


def finish(
    connection: sa.Connection,
    job: Job,
    state: JobState,
    now: datetime,
    result: Any = None,
    error: Mapping[str, str] | None = None,
) -> None:
    """Store how the job of this worker ended. Raises Fenced if the worker no longer holds it."""
    store.require_fence(connection, job.id, job.fence, changes=True)
    current = store.by_id(connection, job.id)[0]
    store.move(
        connection, current, state, now, result=result, error=error, worker_id=None, ended_at=now
    )


def give_back(connection: sa.Connection, job: Job, now: datetime) -> JobState:
    """Return the job to the queue because its worker stops, or cancel it if that was requested.
    Returns the new state. Raises Fenced."""
    store.require_fence(connection, job.id, job.fence, changes=True)
    return _release(connection, store.by_id(connection, job.id)[0], now)


def _release(connection: sa.Connection, current: Job, now: datetime, **values: Any) -> JobState:
    # The fence also goes up here: whoever still has the job writes nothing after this.
    values |= {"worker_id": None, "fence": current.fence + 1}
    if current.worker_id is not None:
        part_store.release_of_worker(connection, current.worker_id, died=False)
    if current.state is JobState.CANCELLING:
        store.move(connection, current, JobState.CANCELLED, now, ended_at=now, **values)
        return JobState.CANCELLED
    store.move(connection, current, JobState.QUEUED, now, **values)
    return JobState.QUEUED


def take_over(
    connection: sa.Connection, worker: WorkerRow, config: JobsConfig, now: datetime
) -> list[Job]:
    """Remove a dead worker and return its jobs to the queue.

    A job under which too many workers died fails instead. Returns the jobs as they were; an empty
    list if the worker has given a sign of life since it was last read.
    """
    # it beats without a lock: between a look at its row and the deletion it could give a sign
    if not store.remove_worker(connection, worker.id, worker.beat):
        return []
    part_store.release_of_worker(connection, worker.id, died=True)
    lost = [job for job in store.held(connection) if job.worker_id == worker.id]
    for job in lost:
        crashes = job.crashes + 1
        if crashes < config.crashes or job.state is JobState.CANCELLING:
            _release(connection, job, now, crashes=crashes)
            continue
        error = {
            "kind": WORKER_DIED,
            "what": f"job {job.id!r}",
            "why": f"{crashes} workers died while they did it (out of memory?)",
            "fix": f"Look into the log of the server, then: thumbwheel jobs retry {job.id}",
        }
        store.move(
            connection,
            job,
            JobState.FAILED,
            now,
            error=error,
            worker_id=None,
            fence=job.fence + 1,
            crashes=crashes,
            ended_at=now,
        )
    return lost


def orphaned(connection: sa.Connection) -> list[Job]:
    """Return the jobs held by a worker that no longer exists."""
    living = {worker.id for worker in store.all_workers(connection)}
    return [job for job in store.held(connection) if job.worker_id not in living]


def release_orphan(connection: sa.Connection, job: Job, now: datetime) -> None:
    """Return a job whose worker no longer exists to the queue, unless it was changed since it was
    read."""
    current = store.by_id(connection, job.id)[0]
    if current.fence == job.fence and current.state is job.state:
        _release(connection, current, now)


def error_of(job: Job, error: BaseException) -> dict[str, str]:
    """Return an error in the form in which a job stores it."""
    if isinstance(error, ThumbwheelError):
        return {
            "kind": type(error).__name__,
            "what": error.what,
            "why": error.why,
            "fix": error.fix,
        }
    return {
        "kind": CRASH,
        "what": f"job {job.id!r}",
        "why": f"{type(error).__name__}: {error}",
        "fix": "This is a fault of the program: report it, with the log of the server",
    }


# who is alive


@dataclass
class Observation:
    """What is known of another worker by looking."""

    worker: WorkerRow
    seen_at: float
    """Monotonic time of the first look at this beat."""
    gone_at: float | None = None
    """Since when its process is missing."""


@dataclass
class WorkerWatch:
    """Watches the other workers, by their beats and processes."""

    lease: float
    host: Host
    clock: Callable[[], float] = time.monotonic
    observations: dict[str, Observation] = field(default_factory=dict)

    def update(self, workers: Iterable[WorkerRow]) -> None:
        """Update the observations from the workers' rows."""
        now, current = self.clock(), {}
        for worker in workers:
            observation = self.observations.get(worker.id)
            if observation is None or observation.worker.beat != worker.beat:
                observation = Observation(worker, now)
            current[worker.id] = observation
        self.observations = current

    def dead(self) -> list[WorkerRow]:
        """Return the workers that have been silent for a lease, or whose process is gone."""
        now, dead = self.clock(), []
        for observation in self.observations.values():
            if observation.gone_at is None and self.host.is_gone(observation.worker):
                observation.gone_at = now
            gone = observation.gone_at is not None and now - observation.gone_at >= GONE_SECONDS
            if gone or now - observation.seen_at >= self.lease:
                dead.append(observation.worker)
        return dead
