"""Rows in the form in which the driver takes them. Encoding costs more processor time than sending,
so whoever has many rows encodes them before the transaction, in which nobody else can write.

SQLite gets tuples of parameters, PostgreSQL lines for COPY.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from thumbwheel.db.columns import Json
from thumbwheel.db.dialects import POSTGRESQL

if TYPE_CHECKING:
    import psycopg

Row = dict[str, Any]
Values = Mapping[str, Any]
Form = tuple[Any, ...] | bytes
"""A row for the driver: parameters for SQLite, a line of COPY for PostgreSQL."""

Encoder = Callable[[Values], Form]


class EncodedRow(Row):
    """A row of a table together with its form for the driver. Change neither."""

    __slots__ = ("form",)

    def __init__(self, values: Values, form: Form) -> None:
        super().__init__(values)
        self.form = form


def encoded(table: sa.Table, row: Values, dialect: sa.Dialect) -> EncodedRow:
    """Return `row`, which has every column of `table`, with its form for the driver. Raises
    TypeError or ValueError for a value that cannot be stored."""
    return EncodedRow(row, _encoder(table, dialect)(row))


def insert_rows(connection: sa.Connection, table: sa.Table, rows: Sequence[Row]) -> None:
    """Insert `rows`, each with every column of `table`, none of which exists yet. Those that are
    not encoded are encoded here."""
    if not rows:
        return
    forms = _forms(table, rows, connection.dialect)
    if connection.dialect.name == POSTGRESQL:
        _copy(connection, table.name, table, forms)
    else:
        connection.exec_driver_sql(_insert(table), forms)


def insert_missing(connection: sa.Connection, table: sa.Table, rows: Mapping[str, Row]) -> None:
    """Insert the `rows`, by id, that do not exist yet, also if another transaction inserts the same
    ones at this moment."""
    if not rows:
        return
    if connection.dialect.name != POSTGRESQL:
        forms = _forms(table, list(rows.values()), connection.dialect)
        connection.exec_driver_sql(f"{_insert(table)} ON CONFLICT DO NOTHING", forms)
        return
    forms = _forms(table, list(rows.values()), connection.dialect)
    staged = f"staged_{table.name}"
    connection.exec_driver_sql(
        f"CREATE TEMPORARY TABLE IF NOT EXISTS {staged} (LIKE {table.name}) ON COMMIT DELETE ROWS"
    )
    # emptied also for a transaction that stages a second time
    connection.exec_driver_sql(f"DELETE FROM {staged}")
    _copy(connection, staged, table, forms)
    # in the order of ids, so that two transactions with the same rows wait for each other in turn
    # instead of in a circle
    names = _names(table)
    connection.exec_driver_sql(
        f"INSERT INTO {table.name} ({names}) SELECT {names} FROM {staged} ORDER BY id "
        "ON CONFLICT DO NOTHING"
    )


def _forms(table: sa.Table, rows: Iterable[Row], dialect: sa.Dialect) -> list[Any]:
    encode = _encoder(table, dialect)
    return [row.form if isinstance(row, EncodedRow) else encode(row) for row in rows]


def _names(table: sa.Table) -> str:
    return ", ".join(f'"{column.name}"' for column in table.columns)


def _insert(table: sa.Table) -> str:
    parameters = ", ".join("?" for _ in table.columns)
    return f"INSERT INTO {table.name} ({_names(table)}) VALUES ({parameters})"


def _copy(connection: sa.Connection, target: str, table: sa.Table, forms: Sequence[bytes]) -> None:
    import psycopg

    driver: Any = connection.connection.driver_connection
    raw: psycopg.Connection = driver
    statement = f"COPY {target} ({_names(table)}) FROM STDIN"
    try:
        with raw.cursor() as cursor, cursor.copy(statement.encode()) as stream:
            stream.write(b"".join(forms))
    except psycopg.OperationalError as error:
        is_lost = raw.closed
        if is_lost:
            connection.invalidate(error)
        raise sa.exc.OperationalError(
            statement, None, error, connection_invalidated=is_lost
        ) from error


@lru_cache(maxsize=256)
def _encoder(table: sa.Table, dialect: sa.Dialect) -> Encoder:
    if dialect.name == POSTGRESQL:
        return _copy_line(table)
    return _parameters(table, dialect)


def _parameters(table: sa.Table, dialect: sa.Dialect) -> Encoder:
    """Return an encoder into a tuple of parameters, each as SQLAlchemy would bind it."""
    columns = [
        (column.name, column.type.dialect_impl(dialect).bind_processor(dialect))
        for column in table.columns
    ]

    def encode(row: Values) -> tuple[Any, ...]:
        values = []
        for name, process in columns:
            value = row[name]
            values.append(process(value) if process is not None else value)
        return tuple(values)

    return encode


def _copy_line(table: sa.Table) -> Encoder:
    """Return an encoder into a line of COPY's text format."""
    columns = [(column.name, isinstance(column.type, Json)) for column in table.columns]

    def encode(row: Values) -> bytes:
        fields = []
        for name, is_json in columns:
            value = row[name]
            if value is None:
                fields.append("\\N")
            elif is_json:
                fields.append(_escaped(json.dumps(value)))
            else:
                fields.append(_field(value))
        return ("\t".join(fields) + "\n").encode()

    return encode


def _field(value: Any) -> str:
    if isinstance(value, str):
        return _escaped(value)
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise TypeError(f"naive datetime {value!r}")
        return value.isoformat()
    return str(value)


def _escaped(text: str) -> str:
    if "\0" in text:
        raise ValueError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
    if "\\" in text:
        text = text.replace("\\", "\\\\")
    return text.replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
