"""Names in the rows of a backup that become parts of paths: ids, slugs, aliases, formats.

Here they are made and checked where they come in, and are trusted afterwards. A stranger may have
written the rows of a backup, so they are checked again before they become the rows of a home.
"""

from __future__ import annotations

import sqlalchemy as sa

from thumbwheel.db.columns import Id
from thumbwheel.db.schema import metadata

NAMES = frozenset(
    {
        "agents.slug",
        "aliases.name",
        "artifacts.sha256",
        "datasets.fingerprint",
        "deployments.target",
        "experiments.alias",
        "exports.format",
        "exports.quant",
        "model_versions.base_fingerprint",
        "reward_models.base_fingerprint",
        "runs.algorithm",
        "runs.base_fingerprint",
        "switches.alias",
    }
)
"""Columns with names, beside those with ids."""
NUMBERS = frozenset({"model_versions.number", "reward_models.number"})
"""Columns with numbers that become parts of names, such as v3."""
FOLDER = "folder"
"""The column of every table that tells hosts apart."""
SHOWN = 80
"""Characters of a value that an error shows."""


def misleading_name(connection: sa.Connection) -> str | None:
    """Return a description of a value that would lead out of the folder that it is a name in, or
    of a number that is none; None if there is no such value. For SQLite, whose columns may hold
    values of any type."""
    for table in metadata.sorted_tables:
        conditions = [
            (column, _is_misleading(column)) for column in table.columns if _is_name(column)
        ]
        conditions += [
            (column, sa.func.typeof(column).not_in(("integer", "null")))
            for column in table.columns
            if f"{table.name}.{column.name}" in NUMBERS
        ]
        if not conditions:
            continue
        # one pass over a table with millions of rows
        row = connection.execute(
            sa.select(*(column for column, _ in conditions))
            .where(sa.or_(*(condition for _, condition in conditions)))
            .limit(1)
        ).first()
        if row is not None:
            return _described(connection, table, conditions)
    return None


def _described(
    connection: sa.Connection,
    table: sa.Table,
    conditions: list[tuple[sa.Column[object], sa.ColumnElement[bool]]],
) -> str:
    """Return the table, the column and the value of the first row that fulfils a condition."""
    for column, condition in conditions:
        as_text = sa.cast(column, sa.Text)
        value = connection.execute(sa.select(as_text).where(condition).limit(1)).scalar()
        if value is not None:
            return f"{table.name}.{column.name} {value[:SHOWN]!r}"
    return table.name


def _is_name(column: sa.Column[object]) -> bool:
    of_table = f"{column.table.name}.{column.name}"
    return column.type is Id or of_table in NAMES or column.name == FOLDER


def _is_misleading(column: sa.Column[object]) -> sa.ColumnElement[bool]:
    """Return the condition that a value is no plain file name."""
    return sa.or_(
        sa.func.typeof(column).not_in(("text", "null")),
        column.op("GLOB")("*[/\\]*"),
        column.op("GLOB")(".*"),
        column == "",
    )
