"""Notes and tags of recorded runs, and the deletion of runs that no version needs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable

import sqlalchemy as sa

from thumbwheel.core.errors import Conflict, InputError
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import of_agent
from thumbwheel.models.types import Agent
from thumbwheel.training import store
from thumbwheel.training.killed_runs import is_elsewhere
from thumbwheel.training.train import run_dir, run_of
from thumbwheel.training.types import Run, RunFiles, RunNote

LONGEST_NOTE = 10_000
LONGEST_TAG = 60
MOST_TAGS = 30
NO_NOTE = RunNote("", ())


def notes(ws: Workspace, agent: Agent) -> dict[str, RunNote]:
    """Return run id -> its note, for the runs of an agent that have one."""
    with ws.db.read() as connection:
        return store.notes(connection, agent.id)


def note_of(ws: Workspace, run: Run) -> RunNote:
    """Return the note of a run, which is empty if nobody wrote one."""
    return notes(ws, Agent.named(run.agent)).get(run.id, NO_NOTE)


def write_note(ws: Workspace, run: Run, text: str, tags: Iterable[str]) -> RunNote:
    """Replace the note and the tags of a run, and return them. Raises InputError."""
    wanted = tuple(dict.fromkeys(tag.strip() for tag in tags if tag.strip()))
    if len(text) > LONGEST_NOTE:
        raise InputError("the note", f"it has more than {LONGEST_NOTE} characters", "Shorten it")
    if len(wanted) > MOST_TAGS:
        raise InputError("the tags", f"there are more than {MOST_TAGS}", "Remove some")
    for tag in wanted:
        if len(tag) > LONGEST_TAG or "," in tag or not tag.isprintable():
            why = f"a tag has up to {LONGEST_TAG} visible characters and no comma"
            raise InputError(f"tag {tag!r}", why, "Choose another one")
    note = RunNote(text.strip(), wanted)
    ws.db.write(lambda connection: store.write_note(connection, run.id, note))
    return note


def files_of(ws: Workspace, run: Run) -> RunFiles:
    """Return what a deletion of the run would remove from the disk."""
    folder = run_dir(ws, run)
    checkpoints = len([*folder.checkpoints.iterdir()]) if folder.checkpoints.is_dir() else 0
    size = 0
    for path in folder.path.rglob("*"):
        if path.is_file() and not path.is_symlink():
            size += path.stat().st_size
    return RunFiles(checkpoints, size)


def needed_by(ws: Workspace, run: Run) -> list[str]:
    """Return the names of the versions and reward models that the run gave, as `v3` or `rm1`."""
    with ws.db.read() as connection:
        return store.needing(connection, run.id)


def delete_run(ws: Workspace, agent: Agent, run_id: str) -> RunFiles:
    """Delete a run: its row, note, curves, log and checkpoints. The dataset stays. Raises Conflict
    if the run trains, gave a version or a reward model, or is another host's."""
    run = run_of(ws, agent, run_id)
    what = f"run {run.id!r}"
    if not run.has_ended:
        raise Conflict(what, "it trains now", "Cancel its job first, or wait for its end")
    if is_elsewhere(ws, run):
        raise Conflict(what, "its files are on another host", "Delete it on that host")
    folder = run_dir(ws, run)
    handle = folder.lock() if folder.path.is_dir() else None
    try:

        def remove(connection: sa.Connection) -> None:
            if names := store.needing(connection, run.id):
                why = f"{' and '.join(names)} came from it, with its settings, rows and curves"
                raise Conflict(what, why, "Keep it, so that the lineage stays whole")
            store.remove(connection, run.id)

        removed = files_of(ws, run)
        ws.db.write(remove, of_agent(agent.id))
        shutil.rmtree(folder.path, ignore_errors=True)
    finally:
        if handle is not None:
            os.close(handle)
    return removed
