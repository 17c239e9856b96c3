"""All SQL of this stage: lineage and reports read the tables of the stages below."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from thumbwheel.db.columns import has_id
from thumbwheel.db.schema import (
    agents,
    aliases,
    datasets,
    decisions,
    evaluations,
    exports,
    feedback,
    feedback_targets,
    model_versions,
    reward_models,
    rewards,
    runs,
    subjects,
    tombstones,
    traces,
)
from thumbwheel.db.stored_rows import Record, as_record, row_by_id, rows_where, select


def version(connection: sa.Connection, version_id: str | None) -> Record | None:
    """Return a model version's row, or None."""
    return row_by_id(connection, model_versions, version_id)


def run(connection: sa.Connection, run_id: str | None) -> Record | None:
    """Return a run's row, or None."""
    return row_by_id(connection, runs, run_id)


def dataset(connection: sa.Connection, dataset_id: str | None) -> Record | None:
    """Return a dataset's row, or None."""
    return row_by_id(connection, datasets, dataset_id)


def evaluations_of(connection: sa.Connection, version_id: str) -> list[Record]:
    """Return the evaluations in which the version was the candidate, oldest first."""
    return rows_where(connection, evaluations, evaluations.c.candidate_id == version_id)


def decisions_of(connection: sa.Connection, version_id: str) -> list[Record]:
    """Return the decisions about the version, oldest first."""
    return rows_where(connection, decisions, decisions.c.version_id == version_id)


def exports_of(connection: sa.Connection, version_id: str) -> list[Record]:
    """Return the exports of the version, oldest first."""
    return rows_where(connection, exports, exports.c.version_id == version_id)


def children_of(connection: sa.Connection, version_id: str) -> list[Record]:
    """Return the versions whose parent is this one, oldest first."""
    return rows_where(connection, model_versions, model_versions.c.parent_id == version_id)


def alias_names(connection: sa.Connection, version_id: str) -> list[str]:
    """Return the aliases that point at the version, sorted."""
    return list(
        connection.execute(
            sa.select(aliases.c.name)
            .where(aliases.c.version_id == version_id)
            .order_by(aliases.c.name)
        ).scalars()
    )


def trained_versions(connection: sa.Connection, agent_id: str) -> list[Record]:
    """Return the agent's versions that came from a run, oldest first, each with its dataset_id."""
    joined = sa.select(model_versions, runs.c.dataset_id).join(
        runs, runs.c.id == model_versions.c.run_id
    )
    rows = connection.execute(
        joined.where(model_versions.c.agent_id == agent_id).order_by(model_versions.c.number)
    ).mappings()
    return [as_record(row) for row in rows]


def trained_reward_models(connection: sa.Connection, agent_id: str) -> list[Record]:
    """Return the agent's reward models, oldest first, each with its dataset_id."""
    joined = sa.select(reward_models, runs.c.dataset_id).join(
        runs, runs.c.id == reward_models.c.run_id
    )
    rows = connection.execute(
        joined.where(reward_models.c.agent_id == agent_id).order_by(reward_models.c.number)
    ).mappings()
    return [as_record(row) for row in rows]


def source_ids(connection: sa.Connection, agent_id: str, name: str) -> list[str]:
    """Return the ids of the agent's feedback, traces and subjects with this id (or beginning of
    one), or with this external id in any source."""
    row_ids: list[str] = []
    for table in (feedback, traces, subjects):
        has_name = has_id(table.c.id, name) | (table.c.external_id == name)
        query = sa.select(table.c.id).where(table.c.agent_id == agent_id, has_name)
        row_ids += connection.execute(query).scalars()
    return row_ids


def feedback_on(connection: sa.Connection, target_id: str) -> list[str]:
    """Return the ids of the feedback about a target."""
    query = (
        sa.select(feedback_targets.c.feedback_id)
        .where(feedback_targets.c.target_id == target_id)
        .distinct()
    )
    return list(connection.execute(query).scalars())


def target_ids(connection: sa.Connection, feedback_ids: Iterable[str]) -> dict[str, list[str]]:
    """Return feedback id -> ids of its targets; unknown targets are left out."""
    target = feedback_targets.c
    by_feedback: dict[str, list[str]] = {}
    columns = [target.feedback_id, target.target_id]
    for row in select(connection, columns, target.feedback_id, feedback_ids):
        if row.target_id is not None:
            by_feedback.setdefault(row.feedback_id, []).append(row.target_id)
    return by_feedback


def agent_slug(connection: sa.Connection, row_id: str) -> str | None:
    """Return the name of the agent that has a piece of feedback, a trace or a subject with this
    Thumbwheel id, or None."""
    for table in (feedback, traces, subjects):
        query = (
            sa.select(agents.c.slug)
            .join(table, table.c.agent_id == agents.c.id)
            .where(has_id(table.c.id, row_id))
        )
        slug = connection.execute(query).scalar()
        if slug:
            return str(slug)
    return None


def dataset_ids(connection: sa.Connection) -> list[str]:
    """Return the ids of all datasets of the home, newest first."""
    return list(
        connection.execute(
            sa.select(datasets.c.id).order_by(datasets.c.recorded_at.desc(), datasets.c.id)
        ).scalars()
    )


def erased_at(connection: sa.Connection, agent_id: str, keys: Iterable[str]) -> str | None:
    """Return when something with one of these keys was erased, as ISO text; None if nothing was."""
    of_agent = tombstones.c.agent_id == agent_id
    for row in select(connection, [tombstones.c.recorded_at], tombstones.c.key, keys, of_agent):
        return str(row.recorded_at.isoformat())
    return None


def rewards_of(connection: sa.Connection, target_ids: Iterable[str]) -> list[Record]:
    """Return the ledger's rewards for these targets."""
    return [
        as_record(row._mapping)
        for row in select(connection, rewards.c, rewards.c.target_id, sorted(target_ids))
    ]
