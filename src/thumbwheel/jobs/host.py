"""The host that a process runs on, as one home sees it, and which workers of it have ended.

A host is a folder of the home on one running kernel. Workers of the same host are judged by their
lock files. Two hosts can share a kernel (containers with a folder each) or a folder (a network
file system), so neither alone tells them apart; workers of another host are judged by their beats.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from thumbwheel.core.child import stat_fields
from thumbwheel.core.config import Home
from thumbwheel.core.locks import try_lock
from thumbwheel.db.hosts import folder_id
from thumbwheel.jobs.types import WorkerRow

KILL_SECONDS = 5.0
"""Seconds for a process to end that was killed."""


@dataclass(frozen=True)
class Host:
    """The host of this process."""

    id: str
    locks: Path
    """The folder with one lock file for each of its workers."""

    @classmethod
    def of(cls, home: Home) -> Host:
        """Return the host of a home's folder; give the folder an id if it has none. Raises
        StorageError."""
        return cls(f"{folder_id(home)}@{boot_id()}", home.workers)

    @property
    def folder(self) -> str:
        """The id of the folder."""
        return self.id.partition("@")[0]

    def is_gone(self, worker: WorkerRow) -> bool:
        """Return whether a worker has certainly ended: it is of this host, and its lock is free.
        (In a copy of a home the folder is empty: its workers never ran there.)"""
        if worker.host != self.id:
            return False
        try:
            handle = try_lock(self.locks / worker.id, create=False)
        except OSError:
            return True
        if handle is None:
            return False
        os.close(handle)
        return True

    def kill(self, worker: WorkerRow) -> None:
        """Kill the rest of a dead worker of this host and its children, and wait until it is gone:
        it may be stuck and hold locks."""
        if worker.host != self.id:
            return
        if not self.is_gone(worker):
            if process_started(worker.pid) == worker.process_started:
                with suppress(ProcessLookupError, PermissionError):
                    # Its group has its children too, unless it shares one with who started it.
                    if os.getpgid(worker.pid) == worker.pid:
                        os.killpg(worker.pid, signal.SIGKILL)
                    else:
                        os.kill(worker.pid, signal.SIGKILL)
            deadline = time.monotonic() + KILL_SECONDS
            while not self.is_gone(worker) and time.monotonic() < deadline:
                time.sleep(0.02)
        (self.locks / worker.id).unlink(missing_ok=True)


def boot_id() -> str:
    """Return an id of this machine since its last start: after a restart the process ids belong to
    other processes."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return socket.gethostname()


def process_started(pid: int) -> int:
    """Return when the kernel started the process, in its ticks; 0 if there is no such process or
    the time is unknown."""
    fields = stat_fields(pid)
    return int(fields[19]) if fields is not None else 0
