"""All SQL of training runs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from thumbwheel.core.errors import Fenced
from thumbwheel.db.columns import has_id
from thumbwheel.db.schema import (
    agents,
    model_versions,
    reward_models,
    run_checkpoints,
    run_notes,
    runs,
)
from thumbwheel.training.types import Run, RunNote, RunState, StoredCheckpoint

SILENT = "its host gave no sign of life"
"""Why a run counts as stopped that was trained on another host."""
_JOINED = sa.select(runs, agents.c.slug.label("agent")).join(agents, agents.c.id == runs.c.agent_id)


def add(connection: sa.Connection, values: Mapping[str, Any]) -> None:
    connection.execute(
        runs.insert().values(state=RunState.RUNNING, recorded_at=datetime.now(UTC), **values)
    )


def restart(connection: sa.Connection, run_id: str, folder: str) -> int:
    """Record that the run goes on in this folder of the home; return its new fence."""
    values = {"state": RunState.RUNNING, "reason": None, "ended_at": None, "folder": folder}
    connection.execute(
        runs.update().where(runs.c.id == run_id).values(fence=runs.c.fence + 1, **values)
    )
    fence = connection.execute(sa.select(runs.c.fence).where(runs.c.id == run_id)).scalar_one()
    return int(fence)


def require_fence(connection: sa.Connection, run_id: str, fence: int) -> None:
    """Raise Fenced if the run was taken over since it got this fence; lock its row until the
    commit, so that nobody takes it over before."""
    query = sa.select(runs.c.fence).where(runs.c.id == run_id).with_for_update(read=True)
    current = connection.execute(query).scalar()
    if current != fence:
        raise Fenced(
            f"run {run_id!r}",
            "another process goes on with it; nothing of this one counts",
            "Follow that one: thumbwheel run list",
        )


def fence_of(connection: sa.Connection, run_id: str) -> int | None:
    """Return the fence that the run has now, or None if there is no such run."""
    return connection.execute(sa.select(runs.c.fence).where(runs.c.id == run_id)).scalar()


def add_checkpoint(connection: sa.Connection, checkpoint: StoredCheckpoint) -> None:
    values = {**vars(checkpoint), "files": dict(checkpoint.files)}
    connection.execute(run_checkpoints.insert().values(recorded_at=datetime.now(UTC), **values))


def checkpoints_of(connection: sa.Connection, run_id: str) -> list[StoredCheckpoint]:
    """Return the stored checkpoints of a run, the newest first."""
    query = sa.select(run_checkpoints).where(run_checkpoints.c.run_id == run_id)
    order = (run_checkpoints.c.fence.desc(), run_checkpoints.c.step.desc())
    return [
        StoredCheckpoint(row.run_id, row.fence, row.step, row.files)
        for row in connection.execute(query.order_by(*order))
    ]


def runs_with_checkpoints(connection: sa.Connection) -> set[str]:
    """Return the ids of the runs that have stored checkpoints."""
    return set(connection.execute(sa.select(run_checkpoints.c.run_id).distinct()).scalars())


def forget_checkpoint(connection: sa.Connection, checkpoint: StoredCheckpoint) -> None:
    columns = run_checkpoints.c
    is_same = sa.and_(
        columns.run_id == checkpoint.run_id,
        columns.fence == checkpoint.fence,
        columns.step == checkpoint.step,
    )
    connection.execute(run_checkpoints.delete().where(is_same))


def forget_checkpoints(connection: sa.Connection, run_id: str) -> None:
    connection.execute(run_checkpoints.delete().where(run_checkpoints.c.run_id == run_id))


def end(
    connection: sa.Connection,
    run_id: str,
    state: RunState,
    reason: str | None,
    metrics: Mapping[str, Any],
) -> None:
    values = {
        "state": state,
        "reason": reason,
        "metrics": dict(metrics),
        "ended_at": datetime.now(UTC),
    }
    connection.execute(runs.update().where(runs.c.id == run_id).values(**values))


def beat(connection: sa.Connection, run_id: str) -> None:
    """Record a sign of life of a run that is trained. One that counted as silent runs again."""
    is_alive = (runs.c.state == RunState.RUNNING) | (runs.c.reason == SILENT)
    values = {
        "beat": sa.func.coalesce(runs.c.beat, 0) + 1,
        "state": RunState.RUNNING,
        "reason": None,
        "ended_at": None,
    }
    connection.execute(runs.update().where(runs.c.id == run_id, is_alive).values(**values))


def end_silent(connection: sa.Connection, run: Run) -> bool:
    """Record that a run was killed with its host; return False if it has given a sign of life since
    it was read, or has ended."""
    is_same = runs.c.beat.is_not_distinct_from(run.beat) & (runs.c.state == RunState.RUNNING)
    values = {"state": RunState.STOPPED, "reason": SILENT, "ended_at": datetime.now(UTC)}
    update = runs.update().where(runs.c.id == run.id, is_same).values(**values)
    return connection.execute(update).rowcount > 0


def by_id(connection: sa.Connection, run_id: str) -> list[Run]:
    """Return the runs whose id is or begins with `run_id`."""
    return [
        _run(row) for row in connection.execute(_JOINED.where(has_id(runs.c.id, run_id))).mappings()
    ]


def by_state(connection: sa.Connection, state: RunState) -> list[Run]:
    """Return the runs of all agents that are in this state, oldest first."""
    rows = connection.execute(
        _JOINED.where(runs.c.state == state).order_by(runs.c.recorded_at)
    ).mappings()
    return [_run(row) for row in rows]


def by_agent(connection: sa.Connection, agent_id: str) -> list[Run]:
    """Return the runs of an agent, oldest first."""
    return [
        _run(row)
        for row in connection.execute(
            _JOINED.where(runs.c.agent_id == agent_id).order_by(runs.c.recorded_at)
        ).mappings()
    ]


def environment_of(connection: sa.Connection, run_id: str) -> dict[str, Any]:
    """Return the packages and the machine of a run, as `train.environment` gave them."""
    query = sa.select(runs.c.environment).where(runs.c.id == run_id)
    return dict(connection.execute(query).scalar_one())


def notes(connection: sa.Connection, agent_id: str) -> dict[str, RunNote]:
    """Return run id -> note, for the runs of an agent."""
    query = (
        sa.select(run_notes)
        .join(runs, runs.c.id == run_notes.c.run_id)
        .where(runs.c.agent_id == agent_id)
    )
    rows = connection.execute(query).mappings()
    return {row["run_id"]: RunNote(row["note"], tuple(row["tags"])) for row in rows}


def write_note(connection: sa.Connection, run_id: str, note: RunNote) -> None:
    """Replace the note of a run."""
    connection.execute(run_notes.delete().where(run_notes.c.run_id == run_id))
    connection.execute(
        run_notes.insert().values(
            run_id=run_id, note=note.text, tags=list(note.tags), recorded_at=datetime.now(UTC)
        )
    )


def needing(connection: sa.Connection, run_id: str) -> list[str]:
    """Return the names of the versions and reward models of a run, in their order."""
    names = []
    for prefix, table in (("v", model_versions), ("rm", reward_models)):
        query = sa.select(table.c.number).where(table.c.run_id == run_id).order_by(table.c.number)
        names += [f"{prefix}{number}" for number in connection.execute(query).scalars()]
    return names


def remove(connection: sa.Connection, run_id: str) -> None:
    """Delete the rows of a run that no version refers to."""
    connection.execute(run_notes.delete().where(run_notes.c.run_id == run_id))
    connection.execute(runs.delete().where(runs.c.id == run_id))


def _run(row: sa.RowMapping) -> Run:
    return Run(
        row["id"],
        row["agent"],
        row["algorithm"],
        row["dataset_id"],
        row["base"],
        row["base_fingerprint"],
        row["config"],
        RunState(row["state"]),
        row["reason"],
        row["metrics"],
        row["recorded_at"],
        row["ended_at"],
        row["folder"],
        row["beat"],
    )
