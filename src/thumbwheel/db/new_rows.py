"""Inserting rows that another transaction may insert at the same moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from thumbwheel.db.dialects import POSTGRESQL


def insert_new(
    connection: sa.Connection, table: sa.Table, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Insert the `rows` whose key does not exist yet; the first one to insert a key wins.

    They are inserted in the order of their keys: two transactions with the same rows then wait for
    each other in turn, and not in a circle.
    """
    if not rows:
        return
    names = [column.name for column in table.primary_key.columns]
    in_order = sorted(rows, key=lambda row: [str(row[name]) for name in names])
    insert: Any = postgresql.insert if connection.dialect.name == POSTGRESQL else sqlite.insert
    connection.execute(insert(table).on_conflict_do_nothing(), [dict(row) for row in in_order])
