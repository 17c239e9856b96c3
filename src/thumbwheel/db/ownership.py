"""Which home a database belongs to, so that nobody goes on with an empty database, or with the rows
of another home, because a URL is wrong.

The database has a row with the id of its home, and the home a file with that id and the address of
its database. `thumbwheel db copy` gives the target an id of its own, and the home the new id; from
then on the old database is refused, also to those who had opened it before.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

import sqlalchemy as sa

from thumbwheel.core import ids
from thumbwheel.core.config import Home
from thumbwheel.core.errors import ConfigError
from thumbwheel.core.files import replace, unwritable
from thumbwheel.db.dialects import SQLITE, VARIABLE, Backend
from thumbwheel.db.engine import Database, writing
from thumbwheel.db.schema import homes


@dataclass(frozen=True)
class Ownership:
    """What a home notes about its database."""

    id: str
    database: str
    """Its address, without secrets."""
    next_id: str | None = None
    """The id that the database gets in a step that a kill may have ended before or after."""


def claim(home: Home, database: Database) -> None:
    """Check that `database` has the rows of `home`; a new database becomes the home's.

    Raises ConfigError if the rows of the home are elsewhere, or the database is another home's.
    """
    address = database.backend.address
    stored_id = home_id(database)
    noted = noted_ownership(home)  # written before the row, so it is read after it
    if stored_id is None:
        if noted is not None and noted.database != address:
            raise _elsewhere(home, noted, database.backend.name)
        database.home_id = _take(home, database.backend)
        return
    if noted is None and address != SQLITE:
        raise _foreign(home, database.backend.name)
    if noted is not None and stored_id not in (noted.id, noted.next_id):
        if noted.database == address:
            raise _foreign(home, database.backend.name)
        raise _elsewhere(home, noted, database.backend.name)
    if noted != Ownership(stored_id, address):
        note_ownership(home, Ownership(stored_id, address))
    database.home_id = stored_id


def _take(home: Home, backend: Backend) -> str:
    """Write the id of the home into its new database and into the home's note; return the id.

    Of two homes that open a new database at once the first gets it. Raises ConfigError for the
    other one.
    """
    with writing(backend) as engine, engine.begin() as connection:
        # Another process may have done so since. If it opened the same home, it left a note here.
        noted = noted_ownership(home)
        stored_id: str | None = connection.execute(sa.select(homes.c.id)).scalar()
        if stored_id is not None:
            if noted is None or noted.id != stored_id:
                raise _foreign(home, backend.name)
            return stored_id
        ownership = Ownership(noted.id if noted else ids.new("hom"), backend.address)
        # The note first: where a kill leaves no row, the address in the note tells whose it is.
        note_ownership(home, ownership)
        set_home_id(connection, ownership.id)
    return ownership.id


def _elsewhere(home: Home, noted: Ownership, name: str) -> ConfigError:
    if noted.database == SQLITE:
        fix = f"Unset {VARIABLE}"
    else:
        fix = f"Set {VARIABLE} to the URL of that database"
    return ConfigError(
        f"{name} for home {str(home.path)!r}",
        f"the rows of this home are in {noted.database!r}",
        f"{fix}, or move the rows with: thumbwheel db copy",
    )


def _foreign(home: Home, name: str) -> ConfigError:
    return ConfigError(
        f"{name} for home {str(home.path)!r}",
        "it contains the rows of another home, whose files are not in this folder",
        "Name that home with --home, or give this one a separate database",
    )


def noted_ownership(home: Home) -> Ownership | None:
    """Return the note of `home` about its database, or None if the home was never opened. Raises
    ConfigError for an unreadable note."""
    try:
        return Ownership(**json.loads(home.ownership.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"file {str(home.ownership)!r}",
            f"it cannot be read ({error})",
            "Restore it from a backup; for a home with SQLite you may delete it",
        ) from None


def note_ownership(home: Home, ownership: Ownership) -> None:
    """Write the note, as a whole or not at all."""
    content = {key: value for key, value in asdict(ownership).items() if value is not None}
    try:
        replace(home.ownership, json.dumps(content) + "\n", mode=0o600)
    except OSError as error:
        raise unwritable(f"file {str(home.ownership)!r}", error) from None


def home_id(database: Database) -> str | None:
    """Return the id of the home that the database belongs to, or None for a new database."""
    with database.read() as connection:
        return connection.execute(sa.select(homes.c.id)).scalar()


def set_home_id(connection: sa.Connection, home_id: str) -> None:
    """Write the id of the home that owns the database."""
    location = blobs_location(connection)
    connection.execute(homes.delete())
    connection.execute(
        homes.insert().values(id=home_id, recorded_at=datetime.now(UTC), blobs=location)
    )


def blobs_location(connection: sa.Connection) -> str | None:
    """Return the address of the bucket with the blobs of the home; None for its folder."""
    location: str | None = connection.execute(sa.select(homes.c.blobs)).scalar()
    return location


def set_blobs_location(connection: sa.Connection, location: str | None) -> None:
    """Note where the blobs of the home are."""
    connection.execute(homes.update().values(blobs=location))
