"""Rows of any table as JSON values, by their ids, in batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from thumbwheel.db.batches import batches

Record = Mapping[str, Any]
"""One stored row, as a JSON value."""


def row_by_id(connection: sa.Connection, table: sa.Table, row_id: str | None) -> Record | None:
    """Return the row of `table` with this id, or None."""
    if not row_id:
        return None
    row = connection.execute(sa.select(table).where(table.c.id == row_id)).mappings().first()
    return as_record(row) if row else None


def rows_where(
    connection: sa.Connection, table: sa.Table, where: sa.ColumnElement[bool]
) -> list[Record]:
    """Return the rows of `table` that meet the condition, oldest first."""
    rows = connection.execute(
        sa.select(table).where(where).order_by(table.c.recorded_at, table.c.id)
    ).mappings()
    return [as_record(row) for row in rows]


def select(
    connection: sa.Connection, columns: Iterable[Any], key: Any, wanted: Iterable[Any], *where: Any
) -> Iterator[Any]:
    """Yield the rows of `columns` whose `key` is among `wanted`, in batches, so that there may be
    many."""
    for batch in batches(list(wanted)):
        yield from connection.execute(sa.select(*columns).where(key.in_(batch), *where))


def rows_of_agent(connection: sa.Connection, table: sa.Table, agent_id: str | None) -> list[Record]:
    """Return all rows of `table` that belong to the agent, oldest first; None selects all
    agents."""
    return rows_where(
        connection, table, sa.true() if agent_id is None else table.c.agent_id == agent_id
    )


def rows_by_id(connection: sa.Connection, table: sa.Table, wanted: Iterable[str]) -> list[Record]:
    """Return the rows of `table` with these ids, in order of the ids."""
    return sorted(
        (as_record(row._mapping) for row in select(connection, table.c, table.c.id, wanted)),
        key=lambda row: str(row["id"]),
    )


def set_values(
    connection: sa.Connection, table: sa.Table, row_id: str, values: Mapping[str, Any]
) -> None:
    """Change columns of one row."""
    connection.execute(table.update().where(table.c.id == row_id).values(**values))


def ids_of(rows: Iterable[Any]) -> set[str]:
    """Return the values of the first column, without duplicates."""
    return {row[0] for row in rows}


def delete_rows(
    connection: sa.Connection, table: sa.Table, column: sa.Column[Any], values: Iterable[str]
) -> None:
    """Delete the rows whose `column` is among `values`."""
    for batch in batches(sorted(values)):
        connection.execute(table.delete().where(column.in_(batch)))


def set_null(
    connection: sa.Connection, column: sa.Column[Any], key: sa.Column[Any], values: Iterable[str]
) -> None:
    """Set `column` to null where `key` is among `values`."""
    for batch in batches(sorted(values)):
        update = column.table.update().where(key.in_(batch))
        connection.execute(update.values({column.name: None}))


def as_record(row: sa.RowMapping) -> dict[str, Any]:
    """Return the row as a JSON value."""
    return {
        name: value.isoformat() if isinstance(value, datetime) else value
        for name, value in row.items()
    }
