"""How much content the rows of a page have: a limit on their number bounds no memory, because a
single row may have megabytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from thumbwheel.db.batches import batches

MOST_CONTENT = 8 * 2**20
"""Characters of a page; a longer row is a page by itself."""
MEASURED_AT_ONCE = 100


def content_length(*columns: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
    """Build the number of characters that these columns of a row have together."""
    total: sa.ColumnElement[int] = sa.literal(0)
    for column in columns:
        total = total + sa.func.coalesce(sa.func.length(sa.cast(column, sa.Text)), 0)
    return total


def fitting(
    connection: sa.Connection,
    row_ids: Sequence[str],
    id_column: sa.ColumnElement[str],
    length: sa.ColumnElement[int],
) -> list[str]:
    """Return the first of these ids, as many as have at most MOST_CONTENT together, and at least
    one. The database measures the rows; none is read."""
    total = 0
    first: list[str] = []
    for part in batches(row_ids, MEASURED_AT_ONCE):
        rows = connection.execute(sa.select(id_column, length).where(id_column.in_(part)))
        lengths = dict(rows.tuples().all())
        for row_id in part:
            total += lengths.get(row_id, 0)
            if first and total > MOST_CONTENT:
                return first
            first.append(row_id)
    return first
