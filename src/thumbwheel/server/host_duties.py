"""What each server of a home with many hosts does for the others: it sees that a run was killed
with its host, and removes the files of this host that an erasure on another one left to it."""

from __future__ import annotations

from thumbwheel.core import log
from thumbwheel.core.repeated import Repeated
from thumbwheel.db.workspace import Workspace
from thumbwheel.erasure.pending_erasures import purge_here
from thumbwheel.jobs.types import JobsConfig
from thumbwheel.training.killed_runs import RunWatch

LOOKS = 4
"""Looks in a lease."""


class HostDuties(Repeated):
    """Looks several times in a lease. Use as a context manager."""

    def __init__(self, ws: Workspace) -> None:
        self._ws = ws
        lease = ws.settings(JobsConfig, "jobs").lease_seconds
        self._runs = RunWatch(ws, lease)
        super().__init__(
            "host duties",
            every=lease / LOOKS,
            failing="this host cannot do its work for the other hosts",
        )

    def _once(self) -> None:
        for line in (*self._runs.look(), *purge_here(self._ws)):
            log.say(line)
