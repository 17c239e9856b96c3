"""All SQL of this stage. It owns no table yet: lineage and reports only read those of the stages below."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import sqlalchemy as sa

from thumbwheel.db.schema import (
    aliases,
    datasets,
    decisions,
    evaluations,
    exports,
    feedback,
    feedback_targets,
    model_versions,
    runs,
    subjects,
    traces,
)
from thumbwheel.loop.types import Record


def one(connection: sa.Connection, table: sa.Table, key: str | None) -> Record | None:
    """The row of `table` with id `key`."""
    row = connection.execute(sa.select(table).where(table.c.id == key)).mappings().first() if key else None
    return _plain(row) if row else None


def version(connection: sa.Connection, version_id: str | None) -> Record | None:
    """A model version's row."""
    return one(connection, model_versions, version_id)


def run(connection: sa.Connection, run_id: str | None) -> Record | None:
    """A run's row."""
    return one(connection, runs, run_id)


def dataset(connection: sa.Connection, dataset_id: str | None) -> Record | None:
    """A dataset's row."""
    return one(connection, datasets, dataset_id)


def evaluations_of(connection: sa.Connection, version_id: str) -> list[Record]:
    """Evaluations in which the version was the candidate, oldest first."""
    return _all(connection, evaluations, evaluations.c.candidate_id == version_id)


def decisions_of(connection: sa.Connection, version_id: str) -> list[Record]:
    """Decisions about the version, oldest first."""
    return _all(connection, decisions, decisions.c.version_id == version_id)


def exports_of(connection: sa.Connection, version_id: str) -> list[Record]:
    """Exports of the version, oldest first."""
    return _all(connection, exports, exports.c.version_id == version_id)


def children_of(connection: sa.Connection, version_id: str) -> list[Record]:
    """Versions whose parent it is, oldest first."""
    return _all(connection, model_versions, model_versions.c.parent_id == version_id)


def alias_names(connection: sa.Connection, version_id: str) -> list[str]:
    """Aliases that point at the version."""
    return list(connection.execute(sa.select(aliases.c.name).where(aliases.c.version_id == version_id).order_by(aliases.c.name)).scalars())


def trained_versions(connection: sa.Connection, agent_id: str) -> list[Record]:
    """Versions of the agent that came from a run, oldest first, each with its dataset_id."""
    joined = sa.select(model_versions, runs.c.dataset_id).join(runs, runs.c.id == model_versions.c.run_id)
    rows = connection.execute(joined.where(model_versions.c.agent_id == agent_id).order_by(model_versions.c.number)).mappings()
    return [_plain(row) for row in rows]


def source_ids(connection: sa.Connection, agent_id: str, name: str) -> list[str]:
    """The ids of feedback, traces or subjects of the agent that `name` means: an id, or an external id of any source."""
    found = []
    for table in (feedback, traces, subjects):
        named = (table.c.agent_id == agent_id) & ((table.c.id == name) | (table.c.external_id == name))
        found += list(connection.execute(sa.select(table.c.id).where(named)).scalars())
    return found


def feedback_on(connection: sa.Connection, target_id: str) -> list[str]:
    """Ids of the feedback about a target."""
    query = sa.select(feedback_targets.c.feedback_id).where(feedback_targets.c.target_id == target_id).distinct()
    return list(connection.execute(query).scalars())


def _all(connection: sa.Connection, table: sa.Table, where: sa.ColumnElement[bool]) -> list[Record]:
    rows = connection.execute(sa.select(table).where(where).order_by(table.c.recorded_at, table.c.id)).mappings()
    return [_plain(row) for row in rows]


def _plain(row: sa.RowMapping) -> dict[str, Any]:
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in row.items()}
