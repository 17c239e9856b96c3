"""SQL of the parts of jobs. Whoever changes which worker has a part holds the lock `JOBS`; a worker
locks the row of its part, by its fence (`require_fence`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from thumbwheel.core import ids
from thumbwheel.core.errors import Fenced
from thumbwheel.db.batches import batches
from thumbwheel.db.schema import job_parts, jobs, workers
from thumbwheel.jobs.part_types import JobPart, PartState
from thumbwheel.jobs.types import JobState

MOST_CRASHES = 3
"""Workers that may die or fail under a part before it is left to the worker of its job."""


def lay_out(
    connection: sa.Connection,
    job_id: str,
    kind: str,
    specs: Sequence[Mapping[str, Any]],
    now: datetime,
) -> list[int]:
    """Store the parts of a job and return their numbers, in the order of `specs`. What an earlier
    attempt at the job had done of them stays done; all else of it goes."""
    keys = [ids.fingerprint([kind, spec]) for spec in specs]
    key, number = job_parts.c.key, job_parts.c.number
    of_job = job_parts.c.job_id == job_id
    rows = connection.execute(sa.select(key, number).where(of_job)).all()
    number_of_key = {row.key: row.number for row in rows}
    unneeded = [row.number for row in rows if row.key not in set(keys)]
    for batch in batches(unneeded):
        connection.execute(job_parts.delete().where(of_job, number.in_(batch)))
    living = sa.select(workers.c.id)
    is_orphan = sa.and_(of_job, job_parts.c.worker_id.not_in(living))
    connection.execute(job_parts.update().where(is_orphan).values(**_RELEASED))
    following = max(number_of_key.values(), default=0) + 1
    new_rows: list[dict[str, Any]] = []
    for part_key, spec in zip(keys, specs, strict=True):
        if part_key in number_of_key:
            continue
        number_of_key[part_key] = following
        new_rows.append(
            {
                "job_id": job_id,
                "number": following,
                "key": part_key,
                "kind": kind,
                "spec": dict(spec),
                "state": PartState.WAITING,
                "worker_id": None,
                "fence": 0,
                "crashes": 0,
                "unfit": [],
                "result": None,
                "recorded_at": now,
            }
        )
        following += 1
    if new_rows:
        connection.execute(job_parts.insert(), new_rows)
    return [number_of_key[part_key] for part_key in keys]


def claim_own(connection: sa.Connection, job_id: str, worker_id: str) -> JobPart | None:
    """Claim the next part of a job for the worker of that job; None if none waits."""
    return _claimed(connection, _waiting().where(job_parts.c.job_id == job_id), worker_id)


def claim_of_others(
    connection: sa.Connection,
    worker_id: str,
    folder: str,
    part_kinds: Collection[str],
    job_kinds: Collection[str],
    job_id: str | None = None,
) -> JobPart | None:
    """Claim the next part of a job of another worker; None if none waits for this host. With a
    `job_id`, only of that job."""
    waiting = (
        sa.select(job_parts.c.job_id, sa.func.min(job_parts.c.number).label("number"))
        .join(jobs, jobs.c.id == job_parts.c.job_id)
        .where(
            job_parts.c.state == PartState.WAITING,
            job_parts.c.crashes < MOST_CRASHES,
            job_parts.c.kind.in_(part_kinds),
            jobs.c.state == JobState.RUNNING,
            jobs.c.worker_id != worker_id,
            jobs.c.kind.in_(job_kinds),
        )
        .group_by(job_parts.c.job_id, jobs.c.started_at)
        .order_by(jobs.c.started_at, job_parts.c.job_id)
    )
    if job_id is not None:
        waiting = waiting.where(job_parts.c.job_id == job_id)
    for row in connection.execute(waiting).all():
        query = _waiting().where(
            job_parts.c.job_id == row.job_id, job_parts.c.crashes < MOST_CRASHES
        )
        part = _claimed(connection, query, worker_id, folder)
        if part is not None:
            return part
    return None


def _waiting() -> sa.Select[Any]:
    # SQLite, which has one writer, leaves the lock out
    query = sa.select(job_parts).where(job_parts.c.state == PartState.WAITING)
    return query.order_by(job_parts.c.number).limit(1).with_for_update(skip_locked=True)


def _claimed(
    connection: sa.Connection, query: sa.Select[Any], worker_id: str, folder: str | None = None
) -> JobPart | None:
    """Claim the part of `query` for a worker; None if there is none, or if the host with this
    folder is unfit for it."""
    row = connection.execute(query).mappings().first()
    if row is None or folder in row["unfit"]:
        return None
    part = JobPart(row["job_id"], row["number"], row["kind"], row["spec"], row["fence"] + 1)
    update = job_parts.update().where(_is(part.job_id, part.number))
    values = {"state": PartState.RUNNING, "worker_id": worker_id, "fence": part.fence}
    connection.execute(update.values(**values))
    return part


def require_fence(connection: sa.Connection, part: JobPart, *, changes: bool = False) -> None:
    """Lock the row of a part that this worker still has. Raises Fenced if it has it no longer: its
    worker was taken for dead, or the job has ended."""
    query = sa.select(job_parts.c.state, job_parts.c.fence)
    locked = query.where(_is(part.job_id, part.number)).with_for_update(
        read=not changes, key_share=changes
    )
    row = connection.execute(locked).first()
    if row is None or row.fence != part.fence or row.state != PartState.RUNNING:
        raise Fenced(
            f"part {part.number} of job {part.job_id!r}",
            "another worker has it now, or the job has ended",
            "Nothing to do: the job goes on without it",
        )


def finish(connection: sa.Connection, part: JobPart, result: Any) -> None:
    """Store that a part is done, and its result. Raises Fenced."""
    require_fence(connection, part, changes=True)
    update = job_parts.update().where(_is(part.job_id, part.number))
    connection.execute(update.values(state=PartState.DONE, worker_id=None, result=result))


def release(connection: sa.Connection, part: JobPart) -> None:
    """Let others have a part that this worker has not done, if it still has it."""
    is_held = sa.and_(_is(part.job_id, part.number), _has(part))
    connection.execute(job_parts.update().where(is_held).values(**_RELEASED))


def refuse(connection: sa.Connection, part: JobPart, folder: str) -> None:
    """Release a part that failed on a host, and give that host no other part of the job."""
    row = connection.execute(
        sa.select(job_parts.c.unfit, job_parts.c.crashes).where(
            _is(part.job_id, part.number), _has(part)
        )
    ).first()
    if row is None:
        return
    crashes = row.crashes + 1
    update = job_parts.update().where(_is(part.job_id, part.number))
    connection.execute(update.values(**_RELEASED, crashes=crashes))
    waiting = job_parts.update().where(
        job_parts.c.job_id == part.job_id, job_parts.c.state == PartState.WAITING
    )
    connection.execute(waiting.values(unfit=[*row.unfit, folder]))


def release_of_worker(connection: sa.Connection, worker_id: str, *, died: bool) -> None:
    """Release the parts that a worker has which ended, or `died` under them."""
    values: dict[str, Any] = dict(_RELEASED)
    if died:
        values["crashes"] = job_parts.c.crashes + 1
    update = job_parts.update().where(
        job_parts.c.worker_id == worker_id, job_parts.c.state == PartState.RUNNING
    )
    connection.execute(update.values(**values))


def release_orphans(connection: sa.Connection) -> None:
    """Release the parts that workers have which no longer exist."""
    is_orphan = job_parts.c.worker_id.not_in(sa.select(workers.c.id))
    connection.execute(job_parts.update().where(is_orphan).values(**_RELEASED))


def has_orphans(connection: sa.Connection) -> bool:
    """Return whether a worker that no longer exists has a part."""
    query = sa.select(job_parts.c.number).where(
        job_parts.c.worker_id.not_in(sa.select(workers.c.id))
    )
    return connection.execute(query.limit(1)).first() is not None


def helpers(connection: sa.Connection) -> list[str]:
    """Return the ids of the workers that do parts of other workers' jobs, with one entry each."""
    query = (
        sa.select(job_parts.c.worker_id)
        .join(jobs, jobs.c.id == job_parts.c.job_id)
        .where(
            job_parts.c.state == PartState.RUNNING,
            job_parts.c.worker_id.is_distinct_from(jobs.c.worker_id),
        )
    )
    return [*connection.execute(query).scalars()]


def is_waiting(connection: sa.Connection) -> bool:
    """Return whether a part waits for a worker."""
    query = sa.select(job_parts.c.number).where(job_parts.c.state == PartState.WAITING)
    return connection.execute(query.limit(1)).first() is not None


def states(connection: sa.Connection, job_id: str) -> dict[int, PartState]:
    """Return the number of each part of a job -> its state."""
    query = sa.select(job_parts.c.number, job_parts.c.state).where(job_parts.c.job_id == job_id)
    return {row.number: PartState(row.state) for row in connection.execute(query)}


def results(connection: sa.Connection, job_id: str) -> dict[int, Any]:
    """Return the number of each part of a job -> its result."""
    query = sa.select(job_parts.c.number, job_parts.c.result).where(job_parts.c.job_id == job_id)
    return {row.number: row.result for row in connection.execute(query)}


def remove(connection: sa.Connection, job_id: str) -> None:
    """Remove the parts of a job: who still does one of them can write nothing more."""
    connection.execute(job_parts.delete().where(job_parts.c.job_id == job_id))


def _is(job_id: str, number: int) -> sa.ColumnElement[bool]:
    return sa.and_(job_parts.c.job_id == job_id, job_parts.c.number == number)


def _has(part: JobPart) -> sa.ColumnElement[bool]:
    return sa.and_(job_parts.c.fence == part.fence, job_parts.c.state == PartState.RUNNING)


_RELEASED = {
    "state": PartState.WAITING,
    "worker_id": None,
    # whoever still does it writes nothing after this
    "fence": job_parts.c.fence + 1,
}
