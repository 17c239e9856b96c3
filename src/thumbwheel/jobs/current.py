"""The job that this process does at the moment, for handlers that leave notes for a next attempt.

Outside of a worker there is none: what is noted then is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from thumbwheel.core.home_paths import portable
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import ROWS
from thumbwheel.jobs import store
from thumbwheel.jobs.types import Job

_job: Job | None = None
_notes: dict[str, Any] = {}


@contextmanager
def doing(job: Job) -> Iterator[None]:
    """Make `job` the current job of this process while the context is open."""
    global _job, _notes
    _job, _notes = job, dict(job.notes)
    try:
        yield
    finally:
        _job, _notes = None, {}


def is_job() -> bool:
    """Return whether this process is doing a job."""
    return _job is not None


def job() -> Job | None:
    """Return the job that this process is doing, as it was claimed; None outside a worker."""
    return _job


def notes() -> Mapping[str, Any]:
    """Return the notes of this attempt and of earlier ones."""
    return _notes


def note(ws: Workspace, **values: Any) -> None:
    """Store notes of the job; they are on disk when this returns. Does nothing outside a job."""
    if _job is None:
        return
    job_id = _job.id
    _notes.update(values)
    every_note = dict(_notes)

    def work(connection: sa.Connection) -> None:
        store.set_values(connection, job_id, notes=portable(every_note, ws.home.path))

    ws.db.write(work, ROWS)
