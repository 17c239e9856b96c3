"""Names that people use for what descends from erased data."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from thumbwheel.db import schema, stored_rows
from thumbwheel.db.stored_rows import Record
from thumbwheel.report.types import Tainted
from thumbwheel.review import label_documents


def names_of(connection: sa.Connection, tainted: Tainted, agent_id: str) -> dict[str, list[str]]:
    """Return kind -> the tainted items, under the names that people use. Names of another agent
    than `agent_id` begin with that agent's name."""
    names = tainted.to_json()
    for kind in ("shown", *label_documents.KINDS):
        names.pop(kind)
    versions = stored_rows.rows_by_id(connection, schema.model_versions, tainted.versions)
    models = stored_rows.rows_by_id(connection, schema.reward_models, tainted.reward_models)
    exports = stored_rows.rows_by_id(connection, schema.exports, tainted.exports)
    names["versions"] = _numbered(connection, versions, "v", agent_id)
    names["reward_models"] = _numbered(connection, models, "rm", agent_id)
    names["exports"] = [export["path"] for export in exports]
    return names


def _numbered(
    connection: sa.Connection, rows: Iterable[Record], prefix: str, agent_id: str
) -> list[str]:
    sorted_names = []
    for row in rows:
        agent = ""
        if row["agent_id"] != agent_id:
            other = stored_rows.row_by_id(connection, schema.agents, row["agent_id"]) or {}
            agent = f"{other['slug']}/"
        sorted_names.append((agent, row["number"]))
    return [f"{agent}{prefix}{number}" for agent, number in sorted(sorted_names)]
