"""What each server of a home with many hosts does for the others: it sees that a run was killed
with its host, and removes the files of this host that an erasure on another one left to it."""

from __future__ import annotations

import threading

from thumbwheel.core import log
from thumbwheel.db.workspace import Workspace
from thumbwheel.erasure.pending_erasures import purge_here
from thumbwheel.jobs.types import JobsConfig
from thumbwheel.training.killed_runs import RunWatch

LOOKS = 4
"""Looks in a lease."""


class HostDuties:
    """Use as a context manager."""

    def __init__(self, ws: Workspace) -> None:
        self._ws = ws
        lease = ws.settings(JobsConfig, "jobs").lease_seconds
        self._every = lease / LOOKS
        self._runs = RunWatch(ws, lease)
        self._failure: str | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="host duties", daemon=True)

    def __enter__(self) -> HostDuties:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def problem(self) -> str | None:
        """Return why the last look failed; None if it did not."""
        return self._failure

    def _run(self) -> None:
        while True:
            try:
                self._look()
                self._failure = None
            except Exception as error:  # noqa: BLE001 - the next look may succeed
                if self._failure is None:
                    log.logger.exception("the duties of this host wait")
                self._failure = f"what this host owes the others waits: {error!r}"
            if self._ended.wait(self._every):
                return

    def _look(self) -> None:
        for line in (*self._runs.look(), *purge_here(self._ws)):
            log.say(line)
