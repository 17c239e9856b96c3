"""Runs whose process was killed: nobody was left to write that down.

A run that is going on holds the lock of its folder; one that is recorded as running and whose lock
is free was killed, and whoever opens the home next records that. Nobody sees the locks of another
host. Its runs are watched by the servers of the home: one without a sign of life for a lease was
killed with its host, or cannot be reached. If it goes on after all, its next sign says so.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from thumbwheel.core.errors import Conflict
from thumbwheel.db.hosts import folder_id, name_of
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import of_agent
from thumbwheel.models.types import Agent
from thumbwheel.training import store
from thumbwheel.training.rundir import RunDir
from thumbwheel.training.types import Run, RunState

REASON = "its process was killed"


def settle_killed(ws: Workspace) -> list[str]:
    """Record the end of killed runs of this host; return a line for a person about each."""
    with ws.db.read() as connection:
        running = store.by_state(connection, RunState.RUNNING)
    lines = []
    for run in running:
        line = None if is_elsewhere(ws, run) else _settle(ws, run)
        if line is not None:
            lines.append(line)
    return lines


def is_elsewhere(ws: Workspace, run: Run) -> bool:
    """Return whether the run was begun on another host of the home, which alone can go on with
    it."""
    return ws.is_shared and run.folder not in (None, folder_id(ws.home))


@dataclass
class RunWatch:
    """Watches the runs of the other hosts of the home."""

    ws: Workspace
    lease: float
    clock: Callable[[], float] = time.monotonic
    _beats: dict[str, tuple[int | None, float]] = field(default_factory=dict)
    """Run -> its beat, and when that was seen first."""

    def look(self) -> list[str]:
        """Record the end of runs that were silent for a lease; return a line about each."""
        now, elsewhere = self.clock(), running_elsewhere(self.ws)
        beats = {}
        for run in elsewhere:
            beat, seen_at = self._beats.get(run.id, (run.beat, now))
            beats[run.id] = (beat, seen_at) if beat == run.beat else (run.beat, now)
        self._beats = beats
        silent = [run for run in elsewhere if now - beats[run.id][1] >= self.lease]
        return [
            f"run {run.id} of another host gave no sign of life for a lease"
            for run in silent
            if self._end(run)
        ]

    def _end(self, run: Run) -> bool:
        """Record that a run is stopped, unless it has given a sign of life since."""
        return self.ws.db.write(
            lambda connection: store.end_silent(connection, run),
            of_agent(Agent.named(run.agent).id),
        )


def running_elsewhere(ws: Workspace) -> list[Run]:
    """Return the runs that other hosts of the home train."""
    with ws.db.read() as connection:
        running = store.by_state(connection, RunState.RUNNING)
    return [run for run in running if is_elsewhere(ws, run)]


def host_of(ws: Workspace, run: Run) -> str:
    """Return how people are told about the host that has the folder of a run."""
    with ws.db.read() as connection:
        return name_of(connection, run.folder)


def _settle(ws: Workspace, run: Run) -> str | None:
    """Record the end of a run that was killed and return a message about it, or None if the run is
    still going."""
    folder = RunDir(ws.home.runs / run.id)
    if not folder.path.is_dir():
        ws.db.write(
            lambda connection: store.end(
                connection, run.id, RunState.FAILED, "its folder is gone", {}
            )
        )
        return f"run {run.id} was killed, and its folder is gone"
    try:
        handle = folder.lock()
    except Conflict:
        return None
    try:
        ws.db.write(lambda connection: store.end(connection, run.id, RunState.STOPPED, REASON, {}))
    finally:
        os.close(handle)
    return (
        f"run {run.id} was killed; go on with: thumbwheel train {run.algorithm} --agent "
        f"{run.agent} --resume {run.id}"
    )
