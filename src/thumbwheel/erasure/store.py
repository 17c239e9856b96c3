"""SQL of erasures: their records, which are rows of `tombstones`, and the changes that one makes
besides deleting a subject's rows (subject_data.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from thumbwheel.core import ids
from thumbwheel.db.schema import (
    aliases,
    answers,
    artifacts,
    datasets,
    model_versions,
    request_keys,
    tombstones,
)
from thumbwheel.db.stored_rows import Record, rows_where, set_values

ERASURE = "erasure"
"""Kind of tombstone that is the record of an erasure."""


def aliases_at(connection: sa.Connection, version_ids: Iterable[str]) -> list[tuple[str, str]]:
    """Return (alias, name of the version) for the aliases that point at one of these."""
    joined = sa.select(aliases.c.name, model_versions.c.number).join(
        model_versions, model_versions.c.id == aliases.c.version_id
    )
    rows = connection.execute(
        joined.where(aliases.c.version_id.in_(sorted(version_ids))).order_by(aliases.c.name)
    )
    return [(row.name, f"v{row.number}") for row in rows]


def record_tombstones(
    connection: sa.Connection, agent_id: str, keys: Iterable[tuple[str, str]], erased_at: datetime
) -> None:
    """Record (kind, key) as erased at this time; an existing tombstone gets the later time."""
    for kind, key in keys:
        same = (
            (tombstones.c.agent_id == agent_id)
            & (tombstones.c.kind == kind)
            & (tombstones.c.key == key)
        )
        update = tombstones.update().where(same).values(recorded_at=erased_at)
        if not connection.execute(update).rowcount:
            row = {
                "id": ids.new("tmb"),
                "agent_id": agent_id,
                "kind": kind,
                "key": key,
                "recorded_at": erased_at,
            }
            connection.execute(tombstones.insert().values(**row))


def erasures(connection: sa.Connection, agent_id: str) -> list[Record]:
    """Return the records of the agent's erasures, oldest first."""
    return rows_where(
        connection, tombstones, (tombstones.c.agent_id == agent_id) & (tombstones.c.kind == ERASURE)
    )


def begin_erasure(
    connection: sa.Connection, agent_id: str, key: str, report: Mapping[str, Any], began: datetime
) -> str:
    """Add a record of an erasure; return its id."""
    erasure = ids.new("ers")
    row = {
        "id": erasure,
        "agent_id": agent_id,
        "kind": ERASURE,
        "key": key,
        "report": dict(report),
        "recorded_at": began,
    }
    connection.execute(tombstones.insert().values(**row))
    return erasure


def note_erasure(connection: sa.Connection, erasure: str, report: Mapping[str, Any]) -> None:
    """Replace the report of an erasure."""
    connection.execute(
        tombstones.update().where(tombstones.c.id == erasure).values(report=dict(report))
    )


def replace_dataset(
    connection: sa.Connection,
    dataset_id: str,
    manifest: Mapping[str, Any],
    fingerprint: str,
    sizes: Mapping[str, int],
) -> None:
    """Store a dataset's new manifest and fingerprint, and record its new files."""
    values = {"manifest": dict(manifest), "fingerprint": fingerprint}
    set_values(connection, datasets, dataset_id, values)
    for sha256, size in sizes.items():
        recorded = sa.select(artifacts.c.sha256).where(artifacts.c.sha256 == sha256)
        if connection.execute(recorded).scalar() is None:
            row = {
                "sha256": sha256,
                "kind": "dataset",
                "size": size,
                "recorded_at": datetime.now(UTC),
            }
            connection.execute(artifacts.insert().values(**row))


def forget_requests(connection: sa.Connection, agent: str) -> None:
    """Delete the stored answers to requests with idempotency keys, except for requests about
    another agent."""
    about = request_keys.c.agent
    connection.execute(request_keys.delete().where((about == agent) | about.is_(None)))


def forget_replies(connection: sa.Connection, agent_id: str) -> None:
    """Delete the stored model replies in the agent's evaluations."""
    connection.execute(answers.delete().where(answers.c.agent_id == agent_id))
