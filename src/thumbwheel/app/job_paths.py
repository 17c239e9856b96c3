"""Jobs as those see them who do not own the home: where files lie on the server's machine is for
its owner."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from thumbwheel.db.workspace import Workspace
from thumbwheel.jobs.types import Job, JobEvent

ADDRESS = re.compile(r"(?:/|~/|[A-Za-z]:\\)\S*[^/\s]")
"""A text that is the address of a file and nothing else."""


def shown_job(ws: Workspace, job: Job, owns_home: bool) -> Job:
    """Return the job, with file paths shortened unless the principal owns the home."""
    if owns_home:
        return job
    folder = ws.home.path
    return replace(
        job,
        spec=without_folders(job.spec, folder),
        result=without_folders(job.result, folder),
        error=without_folders(job.error, folder),
        progress=without_folders(job.progress, folder),
        notes=without_folders(job.notes, folder),
    )


def shown_event(ws: Workspace, event: JobEvent, owns_home: bool) -> JobEvent:
    """Return the event, with file paths shortened as in `shown_job`."""
    if owns_home:
        return event
    return replace(event, content=without_folders(event.content, ws.home.path))


def without_folders(value: Any, home: Path) -> Any:
    """Return a JSON value in which paths below the home are relative to it, and a text that is any
    other path is only its name.

    >>> without_folders({"base": "/models/small", "why": "in /srv/home/runs/r1"}, Path("/srv/home"))
    {'base': 'small', 'why': 'in runs/r1'}
    """
    match value:
        case str():
            text = value.replace(f"{home}/", "").replace(str(home), "the home")
            return re.split(r"[/\\]", text)[-1] if ADDRESS.fullmatch(text) else text
        case Mapping():
            return {name: without_folders(part, home) for name, part in value.items()}
        case list() | tuple():
            return [without_folders(part, home) for part in value]
        case _:
            return value
