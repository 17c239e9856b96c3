"""The object that a command gets on the server, in place of the command line's opener: the home
that is open already, and long verbs as jobs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import Request, Response
from fastapi.concurrency import run_in_threadpool

from thumbwheel.access.gate import AccessGate
from thumbwheel.access.types import LOCAL_TOKEN
from thumbwheel.app.job_kinds import job_kind
from thumbwheel.app.run_or_submit import checked_spec, folder_of_files, result_of, spec_json
from thumbwheel.capture.uploads import Upload
from thumbwheel.core import ids, present
from thumbwheel.core.config import Config, Sources
from thumbwheel.core.errors import Busy, Conflict
from thumbwheel.db.workspace import Workspace
from thumbwheel.jobs.queue import enqueue, job, job_of_key, live_workers
from thumbwheel.jobs.types import Job

LOOK_EVERY = 0.2
"""Seconds between two looks at a job that a request waits for."""


def accepted_response(accepted: Job) -> Response:
    """Return the 202 response to a request that became a job; its Location is the job."""
    headers = {"location": f"/api/jobs/{accepted.id}"}
    return Response(present.json_text(accepted, indent=None), 202, headers, "application/json")


@dataclass(frozen=True)
class Asking:
    """A request for a job: who asks, and by which key."""

    name: str = LOCAL_TOKEN.id
    key: str | None = None
    owns_home: bool = False
    """Whether they own everything here, and not only some agents."""
    has_workers: bool = False
    """Whether the server starts workers: between two jobs none may be alive for a moment."""


@dataclass(frozen=True)
class ServedHome:
    """`ws` is what the command writes into, `home` the same without the guard of the request."""

    ws: Workspace
    home: Workspace
    asking: Asking
    upload: Upload | None = None
    """The file that came with the request."""

    @contextmanager
    def _shared(self) -> Iterator[Workspace]:
        yield self.ws  # the server closes it

    def __call__(self) -> Any:
        """Return the open home."""
        return self._shared()

    def job_for(self, kind: str, spec: Config, *, here: bool = False) -> Job | None:
        """Return the job for a long operation; None if the request itself must do it, because no
        worker is alive or `here` is set."""
        if here or not (self.asking.has_workers or live_workers(self.home)):
            return None
        return self._job_of_empty_upload(kind) or self._enqueued(kind, spec)

    def _enqueued(self, kind: str, spec: Config) -> Job:
        content = spec_json(spec)
        folder = None
        if self.upload is not None:
            content = self._handed_over(self.upload, content)
            folder = folder_of_files(self.home)
        accepted = enqueue(
            self.home,
            kind,
            content,
            agent=content.get("agent"),
            key=self.asking.key,
            asked_by=self.asking.name,
            folder=folder,
        )
        if self.upload is not None:
            self.upload.is_of_job = self.upload.is_of_job or not accepted.has_ended
        return accepted

    def _handed_over(self, upload: Upload, spec: dict[str, Any]) -> dict[str, Any]:
        """Hand the uploaded file over to a job, and return the job's spec. A request with the same
        idempotency key, values and file gets the same job."""
        named = {**spec, "path": upload.path.name}
        upload_id = ids.new("upl")
        if self.asking.key:
            text = present.json_text(named, indent=None)
            upload_id = ids.derived("upl", self.asking.key, upload.sha256, text)
        upload.hand_over(upload_id)
        return {**named, "upload": upload_id}

    def _job_of_empty_upload(self, kind: str) -> Job | None:
        """Return the earlier job of a request that is repeated without the file, because only the
        result is wanted; else None."""
        if self.upload is None or self.upload.size or self.asking.key is None:
            return None
        earlier = job_of_key(self.home, self.asking.key)
        return earlier if earlier is not None and earlier.kind == kind else None

    @property
    def folder(self) -> Path:
        """Where the home is."""
        return self.home.home.path

    def settings(self) -> Sources:
        """Return the settings of file and environment."""
        return self.home.sources

    @property
    def actor(self) -> str:
        """Who asks, as the audit log names it."""
        return self.asking.name

    @property
    def owns_home(self) -> bool:
        """Whether whoever asks is an owner of everything here."""
        return self.asking.owns_home

    @property
    def attended(self) -> bool:
        """Whether somebody is there to be asked."""
        return False


async def ended_job(request: Request, accepted: Job, seconds: float) -> Job | None:
    """Return the job once it has ended; None if it has not after `seconds` (which may be infinite),
    if the client or the server leaves before, or at once if too many requests of the same key or
    user already wait."""
    gate: AccessGate = request.app.state.gate
    with ExitStack() as stack:
        try:
            stack.enter_context(gate.limits.waiting(request.state.principal))
        except Busy:
            return None
        return await _ended(request, accepted, seconds)


async def _ended(request: Request, accepted: Job, seconds: float) -> Job | None:
    ws: Workspace = request.app.state.workspace
    leaving: threading.Event | None = getattr(request.app.state, "leaving", None)
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        is_over = leaving is not None and leaving.is_set()
        if is_over or await request.is_disconnected():
            return None
        current = await run_in_threadpool(job, ws, accepted.id)
        if current.has_ended:
            return current
        await asyncio.sleep(min(LOOK_EVERY, left))
    return None


async def awaited_result(
    request: Request, kind: str, spec: Mapping[str, Any], seconds: float, key: str | None = None
) -> Any:
    """Return the result of a long operation, or its job if that has not ended after `seconds`
    (which may be infinite). A repeated request with the same `key` gets the same job. Raises
    Conflict for a `key` while no worker is alive."""
    state = request.app.state
    ws: Workspace = state.workspace
    has_workers = getattr(state, "has_workers", False)
    asking = Asking(request.state.principal.id, key, has_workers=has_workers)

    def start() -> Any:
        if key is not None and not (has_workers or live_workers(ws)):
            raise Conflict(
                "header idempotency-key",
                "no worker is alive, so the request itself does the work and cannot be repeated",
                "Send it without the key, or start a worker (thumbwheel worker)",
            )
        checked = checked_spec(kind, spec)
        accepted = ServedHome(ws, ws, asking).job_for(kind, checked)
        return job_kind(kind).handler(ws, checked) if accepted is None else accepted

    outcome = await run_in_threadpool(start)
    if not isinstance(outcome, Job):
        return outcome
    if not outcome.has_ended:
        ended = await ended_job(request, outcome, seconds)
        if ended is None:
            return outcome
        outcome = ended
    return result_of(outcome)
