"""A long operation of the command line: done in its process, or by a worker where the home is
served.

Either way the same handler does it (job_kinds.py), and its result has the same type.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from pydantic import TypeAdapter

from thumbwheel.access.types import LOCAL_TOKEN
from thumbwheel.app.job_kinds import job_kind
from thumbwheel.app.job_progress import show_progress
from thumbwheel.core import errors, log
from thumbwheel.core.config import Config, build
from thumbwheel.core.errors import Conflict, ThumbwheelError
from thumbwheel.db.hosts import folder_id
from thumbwheel.db.workspace import Workspace
from thumbwheel.jobs.queue import enqueue, follow, job, live_workers
from thumbwheel.jobs.types import Job, JobState


class HomeOpener(Protocol):
    """Opens the home; `app/open.py` has it."""

    def __call__(self) -> Workspace:
        """Return the open home."""

    def settings_fingerprint(self) -> str:
        """Return a hash that is equal for two processes with the same settings."""


def run_or_submit(opener: HomeOpener, kind: str, spec: Config, *, here: bool = False) -> Any:
    """Run a job of this kind and return its result. If workers with the same settings are alive on
    the home, one of them runs it and its progress is shown; else, or with `here`, this process runs
    it.

    Raises any error of the handler.
    """
    with opener() as ws:
        if not here and _is_served(ws, opener, kind):
            return submitted(ws, kind, spec)
        return job_kind(kind).handler(ws, spec)


def spec_json(spec: Config) -> dict[str, Any]:
    """Return the fields that were set, as a job's row stores them."""
    return spec.model_dump(mode="json", by_alias=True, exclude_unset=True)


def checked_spec(kind: str, spec: Mapping[str, Any]) -> Config:
    """Return the spec of a job, validated. Raises ConfigError."""
    spec_class = job_kind(kind).spec
    assert issubclass(spec_class, Config)  # noqa: S101 - of our own table
    return build(spec_class, spec, kind)


def _is_served(ws: Workspace, opener: HomeOpener, kind: str) -> bool:
    """Return whether a worker is alive that does jobs of this kind with these settings."""
    workers = [worker for worker in live_workers(ws) if kind not in (worker.lacks or {})]
    if not workers:
        return False
    if opener.settings_fingerprint() in (worker.settings for worker in workers):
        return True
    log.say("note: the workers of this home have other settings, so this command computes itself")
    return False


def submitted(ws: Workspace, kind: str, spec: Config) -> Any:
    """Enqueue a job for a worker of this home, and return its result."""
    content = spec_json(spec)
    requested = enqueue(
        ws,
        kind,
        content,
        agent=content.get("agent"),
        asked_by=LOCAL_TOKEN.id,
        folder=folder_of_files(ws) if _names_a_file(content) else None,
    )
    log.say(f"job {requested.id}: a worker of this home does it (--here: this command)")
    try:
        return followed(ws, requested.id)
    except KeyboardInterrupt:
        log.say(
            f"job {requested.id} goes on; watch it: thumbwheel jobs logs {requested.id} --follow; "
            f"stop it: thumbwheel jobs cancel {requested.id}"
        )
        raise


def folder_of_files(ws: Workspace) -> str | None:
    """Return the folder whose workers can read files of this host; None where all workers can."""
    return folder_id(ws.home) if ws.is_shared else None


def _names_a_file(value: Any) -> bool:
    """Return whether a JSON value has the path of a file that is on this host."""
    match value:
        case str():
            return Path(value).is_absolute() and Path(value).exists()
        case Mapping():
            return any(map(_names_a_file, value.values()))
        case list():
            return any(map(_names_a_file, value))
    return False


def followed(ws: Workspace, job_id: str) -> Any:
    """Show the progress of a job until it ends, and return its result."""
    show_progress((event.kind, event.content) for event in follow(ws, job_id))
    return result_of(job(ws, job_id))


def result_of(ended: Job) -> Any:
    """Return the result of a job, as its handler returned it. Raises the error of a failed job, and
    Conflict for a cancelled one."""
    if ended.state is JobState.CANCELLED:
        raise Conflict(
            f"job {ended.id!r}",
            "it was cancelled",
            f"To go on where it stopped: thumbwheel jobs resume {ended.id}",
        )
    if ended.error is not None:
        kind = getattr(errors, ended.error["kind"], ThumbwheelError)
        raise kind(ended.error["what"], ended.error["why"], ended.error["fix"])
    return TypeAdapter(job_kind(ended.kind).result).validate_python(ended.result)
