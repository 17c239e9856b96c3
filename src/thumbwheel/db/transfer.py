"""Copies all rows of a home from one database into another, as a whole or not at all.

Rows keep their ids, times and JSON, so what is computed from them, such as the fingerprints of
datasets, stays the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import sqlalchemy as sa
from sqlalchemy.exc import DataError

from thumbwheel.core import ids, log
from thumbwheel.core.errors import Conflict, StorageError
from thumbwheel.db.batches import batches
from thumbwheel.db.dialects import Backend, Sqlite
from thumbwheel.db.engine import Database, streamed, writing
from thumbwheel.db.migrate import upgrade
from thumbwheel.db.ownership import (
    blobs_location,
    home_id,
    set_blobs_location,
    set_home_id,
)
from thumbwheel.db.schema import cluster_keys, homes, hosts, metadata

BATCH = 1_000
"""Rows of one INSERT."""

OF_THIS_DATABASE = (homes, cluster_keys, hosts)
TABLES = [table for table in metadata.sorted_tables if table not in OF_THIS_DATABASE]
"""What is copied, each table after those that it refers to. The keys of a cluster stay: they move
with the folder (cluster.leave)."""

SELF_REFERENCES = [
    constraint
    for table in TABLES
    for constraint in table.foreign_key_constraints
    if constraint.referred_table is table
]


def copy_database(
    source: Backend, target: Backend, home_id: str, on_arrival: Callable[[], None]
) -> dict[str, int]:
    """Copy all rows of `source` into `target`, which then belongs to the home of this id, and
    return the number of rows by table.

    Nobody can write to `source` meanwhile, nor afterwards: it then belongs to no home, and a
    process that has it open fails at its next write. `on_arrival` is called once the rows are in
    `target`.

    Raises Conflict if `target` has rows already; StorageError, with nothing copied, if it cannot
    hold one.
    """
    require_empty(target)
    upgrade(target)
    with writing(source) as source_engine, source_engine.begin() as reading:
        with writing(target) as target_engine, target_engine.begin() as filling:
            counts = fill(reading, filling, target, home_id)
        on_arrival()
        set_home_id(reading, ids.new("hom"))
    return counts


def require_empty(target: Backend) -> None:
    """Raise Conflict if any table of the database has a row."""
    if not target.exists:
        return
    database = Database(target)
    try:
        with database.read() as connection:
            existing = set(sa.inspect(connection).get_table_names())
            for table in metadata.sorted_tables:
                if table.name not in existing:
                    continue
                if connection.execute(sa.select(sa.literal(1)).select_from(table)).first():
                    raise Conflict(
                        target.name,
                        f"it is not empty: table {table.name!r} has rows",
                        "Name an empty database, or move this one away",
                    )
    finally:
        database.close()


def fill(
    reading: sa.Connection, filling: sa.Connection, target: Backend, home_id: str
) -> dict[str, int]:
    """Copy all rows of one connection into the empty database of another one; return the number of
    rows by table."""
    counts = {table.name: _count(reading, table) for table in TABLES}
    total = sum(counts.values())
    with (
        log.progress("copying", total, "rows") as advance,
        target.out_of_order(filling, SELF_REFERENCES),
    ):
        for table in TABLES:
            for rows in batches(_rows(reading, table), BATCH):
                try:
                    filling.execute(table.insert(), rows)
                except DataError as error:
                    raise StorageError(
                        target.name,
                        f"it cannot store a row of table {table.name!r} ({error.orig})",
                        "Nothing was copied; erase or correct that row first",
                    ) from None
                advance(len(rows), table.name)
    arrived = {table.name: _count(filling, table) for table in TABLES}
    if arrived != counts:
        raise StorageError(target.name, "not every row arrived", "Run the same command again")
    set_home_id(filling, home_id)
    set_blobs_location(filling, blobs_location(reading))
    return counts


def _count(connection: sa.Connection, table: sa.Table) -> int:
    return int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())


def _rows(connection: sa.Connection, table: sa.Table) -> Iterator[dict[str, object]]:
    for row in streamed(connection, sa.select(table)):
        yield dict(row._mapping)


def save(database: Database, path: Path) -> None:
    """Write all rows as they are at this moment into a new SQLite file, while others write on."""
    if database.backend.save_file(path):
        return
    stored_id = home_id(database) or ""
    with TemporaryDirectory(prefix="thumbwheel-") as folder:
        target = Sqlite(path, Path(folder, "lock"))
        upgrade(target)
        with (
            database.read() as reading,
            writing(target) as engine,
            engine.begin() as filling,
        ):
            fill(reading, filling, target, stored_id)
