"""The sign of life of a run, in a home with many hosts.

Nobody sees the lock of a run folder from another host. So whoever trains a run counts up its `beat`
in the database, and a run whose beat stands still for a lease was killed with its host
(killed_runs.py).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from thumbwheel.core import log
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import WriteLock
from thumbwheel.jobs.types import JobsConfig
from thumbwheel.training import store

BEATS = 4
"""Signs of life in a lease."""
BEAT = WriteLock(is_quiet=True)
"""One statement, which no process keeps in memory."""


@contextmanager
def beating(ws: Workspace, run_id: str) -> Iterator[None]:
    """Give signs of life of a run while the block runs."""
    if not ws.is_shared:
        yield
        return
    pause = ws.settings(JobsConfig, "jobs").lease_seconds / BEATS
    ended = threading.Event()

    def beat() -> None:
        while True:
            try:
                ws.db.write(lambda connection: store.beat(connection, run_id), BEAT)
            except Exception as error:  # noqa: BLE001 - the next sign may get through
                log.logger.warning("run %s gives no sign of life: %s", run_id, error)
            if ended.wait(pause):
                return

    thread = threading.Thread(target=beat, name="beat of a run", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
