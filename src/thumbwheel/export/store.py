"""All SQL of exports."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import sqlalchemy as sa

from thumbwheel.core.config import Home
from thumbwheel.core.home_paths import HOME, located, portable
from thumbwheel.db.hosts import all_hosts, folder_id
from thumbwheel.db.schema import agents, exports, model_versions
from thumbwheel.export.types import Export, Parity, ParityLimits, TaskScore
from thumbwheel.models.types import ModelVersion


def add(connection: sa.Connection, home: Home, version: ModelVersion, done: Export) -> None:
    """Insert a finished export of `version`, with its files on this host."""
    connection.execute(
        exports.insert().values(
            id=done.id,
            agent_id=version.agent_id,
            version_id=version.id,
            format=done.format,
            quant=done.quant,
            path=portable(str(done.path), home.path),
            files=dict(done.files),
            parity=asdict(done.parity) | {"stops": list(done.stops)},
            accepted=done.accepted,
            recorded_at=datetime.now(UTC),
            folder=folder_id(home),
        )
    )


def forget_paths(connection: sa.Connection) -> int:
    """Replace the paths of all exports by those of folders that do not exist; return how many."""
    unknown = sa.literal(f"{HOME}/exports/") + exports.c.id
    return connection.execute(exports.update().values(path=unknown)).rowcount


def of_version(connection: sa.Connection, home: Home, version_id: str) -> list[Export]:
    """Return the exports of a version, oldest first."""
    joined = exports.join(model_versions, model_versions.c.id == exports.c.version_id).join(
        agents, agents.c.id == exports.c.agent_id
    )
    query = sa.select(exports, model_versions.c.number, agents.c.slug).select_from(joined)
    rows = connection.execute(
        query.where(exports.c.version_id == version_id).order_by(
            exports.c.recorded_at, exports.c.id
        )
    ).mappings()
    name_of = {host.folder: host.name for host in all_hosts(connection)}
    name_of.pop(folder_id(home), None)
    return [_export(home, row, name_of.get(row["folder"])) for row in rows]


def _export(home: Home, row: sa.RowMapping, host: str | None) -> Export:
    stored = dict(row["parity"])
    stops = tuple(stored.pop("stops", ()))
    stored["limits"] = ParityLimits(**stored["limits"])
    if stored.get("task"):
        stored["task"] = TaskScore(**stored["task"])
    for name in ("ends", "notes"):
        stored[name] = tuple(stored.get(name, ()))
    return Export(
        id=row["id"],
        agent=row["slug"],
        version=f"v{row['number']}",
        format=row["format"],
        path=Path(located(row["path"], home.path)),
        files=row["files"],
        parity=Parity(**stored),
        quant=row["quant"],
        accepted=row["accepted"],
        stops=stops,
        host=host,
    )
