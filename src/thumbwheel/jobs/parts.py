"""Shares the work of a job between workers of several hosts.

The handler of a job cuts its work into parts and calls `share`. In a cluster with workers on other
hosts, each part gets a row. The worker of the job does one after the other, and so do workers of
other hosts that have no job (worker.py). Elsewhere the parts are done in turn, without any row.

A claim of a part raises its fence. The effect of a part, and the note that it is done, are one
write, which locks the row of the part by its fence. So nothing lands twice, and nothing lands of a
worker that was taken for dead, or whose job has ended. Parts that are done stay done for the next
attempt at the job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

import sqlalchemy as sa

from thumbwheel.core import log
from thumbwheel.core.errors import Fenced
from thumbwheel.db.hosts import folder_id
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import JOBS
from thumbwheel.jobs import current, part_store
from thumbwheel.jobs.part_types import JobPart, PartOutcome, PartState
from thumbwheel.jobs.queue import live_workers
from thumbwheel.jobs.types import Job

LOOK_EVERY = 0.1
"""Seconds between two looks at parts that other workers do."""


def share(
    ws: Workspace,
    kind: str,
    n_parts: int,
    spec_of: Callable[[int], dict[str, Any]],
    do: Callable[[int], PartOutcome],
    advance: Callable[[int], None],
) -> list[Any]:
    """Do the parts, with the help of other hosts if there is any; return their results in order.

    `spec_of` returns what another host has to know about the part with an index, `do` does it here,
    and `advance` is called once it is done. Raises what `do` raises.
    """
    job = current.job()
    if job is None or not _is_shared(ws, job, n_parts):
        results = []
        for index in range(n_parts):
            outcome = do(index)
            ws.db.write(outcome.effect, outcome.lock)
            results.append(outcome.result)
            advance(index)
        return results
    return _shared(ws, job, kind, [spec_of(index) for index in range(n_parts)], do, advance)


def has_helpers(ws: Workspace) -> bool:
    """Return whether parts of the job of this process would be shared: it is a job of a cluster,
    and a worker of another host is alive (those of this host have its processors already)."""
    if not ws.is_shared or not current.is_job():
        return False
    here = folder_id(ws.home)
    return any(worker.folder != here for worker in live_workers(ws))


def _is_shared(ws: Workspace, job: Job, n_parts: int) -> bool:
    """Return whether the parts get rows: there are helpers, or an earlier attempt at the job has
    left some done."""
    if not ws.is_shared:
        return False
    with ws.db.read() as connection:
        if part_store.states(connection, job.id):
            return True
    return n_parts > 1 and has_helpers(ws)


def _shared(
    ws: Workspace,
    job: Job,
    kind: str,
    specs: Sequence[dict[str, Any]],
    do: Callable[[int], PartOutcome],
    advance: Callable[[int], None],
) -> list[Any]:
    assert job.worker_id is not None  # noqa: S101 - it was claimed
    claim = partial(part_store.claim_own, job_id=job.id, worker_id=job.worker_id)
    now = datetime.now(UTC)
    numbers = ws.db.write(
        lambda connection: part_store.lay_out(connection, job.id, kind, specs, now), JOBS
    )
    log.say(f"{len(specs)} parts: workers of other hosts help")
    done: set[int] = set()
    done_here = 0
    changes = ws.db.changes()
    try:
        while len(done) < len(specs):
            marker = changes.marker()
            part = ws.db.write(claim, JOBS)
            if part is not None:
                outcome = do(numbers.index(part.number))
                finish(ws, part, outcome)
                done_here += 1
            with ws.db.read() as connection:
                states = part_store.states(connection, job.id)
            for index, number in enumerate(numbers):
                if index not in done and states.get(number) is PartState.DONE:
                    done.add(index)
                    advance(index)
            while part is None and len(done) < len(specs) and changes.marker() == marker:
                time.sleep(LOOK_EVERY)
    finally:
        changes.close()
    with ws.db.read() as connection:
        results = part_store.results(connection, job.id)
    ws.db.write(lambda connection: part_store.remove(connection, job.id), JOBS)
    log.say(f"{done_here} of {len(specs)} parts were done by this host")
    return [results[number] for number in numbers]


def abandon(ws: Workspace, job: Job) -> None:
    """Remove the parts of a job, so that a worker that still does one can write nothing more. Do
    nothing if this worker has lost the job, whose parts are then those of another attempt."""
    with suppress(Fenced):
        ws.db.write(lambda connection: part_store.remove(connection, job.id), JOBS)


def finish(ws: Workspace, part: JobPart, outcome: PartOutcome) -> None:
    """Write the effect of a part and that it is done. Raises Fenced, and writes nothing, if another
    worker has it now."""

    def work(connection: sa.Connection) -> None:
        part_store.finish(connection, part, outcome.result)
        outcome.effect(connection)

    ws.db.write(work, outcome.lock)


def guard(current_part: Callable[[], JobPart]) -> Callable[[sa.Connection], None]:
    """Return a check that raises Fenced in every write of a worker that no longer has its part."""

    def require(connection: sa.Connection) -> None:
        part_store.require_fence(connection, current_part())

    return require
