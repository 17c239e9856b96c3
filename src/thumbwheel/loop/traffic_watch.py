"""Training gives way to people who are served on the same machine.

A training that meets traffic stops at a checkpoint, which takes as long as one step, and frees its
memory. It goes on, on the same curve, once nobody was served for a while. Traffic is what the
gateway has recorded, so it is seen as late as calls become rows: about a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from thumbwheel.core import log
from thumbwheel.db.workspace import Workspace
from thumbwheel.loop import turn_store
from thumbwheel.training.launch import stop_when
from thumbwheel.training.train import find_run, resume
from thumbwheel.training.types import RunResult, RunState

RECENT = timedelta(seconds=5)
"""A call that is no older than this is traffic of this moment."""
CALM = timedelta(minutes=1)
"""So long nobody has to be served before a training goes on."""
BETWEEN_LOOKS = 1.0
"""Seconds between two looks while a training waits."""


@dataclass(frozen=True)
class TrafficWatch:
    """Looks for served calls of all agents of a home."""

    ws: Workspace
    calm: timedelta = CALM
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)

    def is_busy(self) -> bool:
        """Return whether a call was served within the last seconds."""
        return self._served_since(self.clock() - RECENT)

    def wait_until_calm(self) -> None:
        """Wait until no call has been served for `calm`."""
        with log.progress("people are served; the training waits", None):
            while self._served_since(self.clock() - self.calm):
                time.sleep(BETWEEN_LOOKS)

    def _served_since(self, moment: datetime) -> bool:
        with self.ws.db.read() as connection:
            return turn_store.has_served_calls(connection, moment)


def train_beside_traffic(
    ws: Workspace, begin: Callable[[], RunResult], watch: TrafficWatch | None
) -> RunResult:
    """Return the result of the training that `begin` starts, paused while `watch` sees served
    calls. A run that somebody else stopped is returned as stopped."""
    if watch is None:
        return begin()
    with stop_when(watch.is_busy) as request:
        result = begin()
    while result.state is RunState.STOPPED and request.sent:
        log.say("stopped at a checkpoint, since people are served")
        watch.wait_until_calm()
        stopped = find_run(ws, result.run_id)
        with stop_when(watch.is_busy) as request:
            result = resume(ws, stopped)
    return result
