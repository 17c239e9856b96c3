"""Brings a database, new or old, to the newest schema with Alembic."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from pathlib import Path

import sqlalchemy as sa

from thumbwheel.core.errors import StorageError
from thumbwheel.db.dialects import Backend
from thumbwheel.db.engine import Database, writing
from thumbwheel.db.schema import metadata

VERSIONS = "alembic_version"
OURS = frozenset(metadata.tables)
HEAD = "tw0015"
"""The newest revision; a test compares it with the migrations folder."""

FOLDER = Path(__file__).parent / "migrations"

BY_FINGERPRINT = {
    "c9e103629679d0fb": "tw0001",
    "8f51c6404fe8248d": "tw0002",
    "d67ae1b304f5e259": "tw0003",
    "698b8b2af52a5c13": "tw0004",
    "343a70e8a249646f": "tw0005",
    "b4f0eda30dcbd780": "tw0006",
    "cdd07368d72334a6": "tw0007",
}
"""Fingerprint of a schema -> its revision. Before the first release the revisions were numbers that
were given three times, to different tables, so that such a number does not say what is there. No id
is ever given twice from now on, and no later revision belongs here."""
NUMBER = re.compile(r"\d{4}")
"""A revision of before the first release."""


def upgrade(backend: Backend) -> None:
    """Create or migrate the database; cheap if it is at HEAD already. If two processes do so at
    once, the second waits for the first.

    Raises StorageError, without changing anything, for a database of another program, or of a
    version that cannot be migrated.
    """
    if backend.exists and revision_of(backend) == HEAD:
        return
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(FOLDER))
    revisions = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    with writing(backend) as engine, engine.begin() as connection:
        _check(connection, backend.name, revisions)
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _check(connection: sa.Connection, name: str, revisions: Collection[str]) -> None:
    """Check that the database is Thumbwheel's and can be migrated; correct a revision number that
    the fingerprint of its schema contradicts. Raises StorageError."""
    tables = set(sa.inspect(connection).get_table_names())
    if not tables:
        return
    revision = None
    if VERSIONS in tables:
        revision = connection.execute(sa.text(f"SELECT version_num FROM {VERSIONS}")).scalar()
    if revision in revisions:
        return
    if not {"agents", "traces"} <= tables:
        if connection.dialect.name == "postgresql" and revision is None and not tables & OURS:
            return  # other programs may have tables beside ours there
        examples = ", ".join(sorted(tables)[:5])
        raise StorageError(
            name,
            f"it is the database of another program (its tables: {examples})",
            "Name another home; to bring feedback out of it, see thumbwheel import --help",
        )
    if revision is not None and NUMBER.fullmatch(revision):
        actual = BY_FINGERPRINT.get(schema_fingerprint(connection))
        if actual is not None:
            connection.execute(sa.text(f"UPDATE {VERSIONS} SET version_num = '{actual}'"))
            return
        raise StorageError(
            name,
            f"its tables are of a development version before the first release ({revision}), which "
            "no later version reads",
            "Keep it, and open it with the code that made it; name another home here, and import "
            "what you recorded: thumbwheel import",
        )
    if revision is None:
        raise StorageError(
            name,
            "it has tables of thumbwheel, but not their version",
            "Restore it from a backup: thumbwheel restore",
        )
    raise StorageError(
        name,
        f"a newer version of thumbwheel made it (schema {revision}; this one knows {HEAD})",
        "Upgrade thumbwheel, or name another home",
    )


def schema_fingerprint(connection: sa.Connection) -> str:
    """Return a hash of the names of tables, columns and indexes of ours, which are the same on
    every database."""
    inspector = sa.inspect(connection)
    names: list[str] = []
    for table in sorted(set(inspector.get_table_names()) & OURS):
        names += sorted(f"{table}.{column['name']}" for column in inspector.get_columns(table))
        indexes = {str(index["name"]) for index in inspector.get_indexes(table)}
        names += sorted(index for index in indexes if index.startswith("ix_"))
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]


def revision_of(backend: Backend) -> str | None:
    """Return the revision of the schema, or None for a database without Thumbwheel's tables."""
    database = Database(backend)
    try:
        with database.read() as connection:
            if not sa.inspect(connection).has_table(VERSIONS):
                return None
            return connection.execute(sa.text(f"SELECT version_num FROM {VERSIONS}")).scalar()
    finally:
        database.close()
