"""Runs whose process was killed: nobody was left to write that down, so whoever opens the home next
does.

A run that is going on holds the lock of its folder; one that is recorded as running and whose lock
is free was killed. Runs of another host are left to that host, whose locks nobody sees here.
"""

from __future__ import annotations

import os

from thumbwheel.core.errors import Conflict
from thumbwheel.db.workspace import Workspace
from thumbwheel.jobs.host import folder_id
from thumbwheel.training import store
from thumbwheel.training.rundir import RunDir
from thumbwheel.training.types import Run, RunState

REASON = "its process was killed"


def settle_killed(ws: Workspace) -> list[str]:
    """Record the end of killed runs; return a line for a person about each."""
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
