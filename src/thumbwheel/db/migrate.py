"""Brings a database, new or old, to the newest schema with Alembic."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from thumbwheel.core.errors import StorageError
from thumbwheel.db.dialects import Backend
from thumbwheel.db.engine import Database, writing

HEAD = "0007"
"""The newest revision; a test compares it with the migrations folder."""

FOLDER = Path(__file__).parent / "migrations"


def upgrade(backend: Backend) -> None:
    """Create or migrate the database; cheap if it is at HEAD already. Of two processes that do so
    at once the second waits for the first."""
    if backend.exists and revision_of(backend) == HEAD:
        return
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(FOLDER))
    with writing(backend) as engine, engine.begin() as connection:
        config.attributes["connection"] = connection
        try:
            command.upgrade(config, "head")
        except CommandError as error:
            raise StorageError(
                backend.name,
                f"it is not of a version that this program knows ({error})",
                "Upgrade thumbwheel, or name another home",
            ) from None


def revision_of(backend: Backend) -> str | None:
    """The revision of the schema; None for a database without tables of ours."""
    database = Database(backend)
    try:
        with database.read() as connection:
            if not sa.inspect(connection).has_table("alembic_version"):
                return None
            return connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
    finally:
        database.close()
