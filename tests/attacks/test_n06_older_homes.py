"""N6: a home of older code is opened, or refused with a sentence that says what to do.

The numbers of migrations were given three times, to different tables: a database of number 0005 was
taken for another one, and the message was about an index. An index, a table or a column tells now.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import StorageError
from thumbwheel.db import migrate
from thumbwheel.db.dialects import Sqlite
from thumbwheel.db.engine import writing
from thumbwheel.db.workspace import Workspace

BEFORE_RELEASE = Path(__file__).parent / "older_homes" / "before_release.sql"
"""What the five migrations made that became one baseline later; it says that it is number 0005."""
REVISIONS = sorted(migrate.BY_FINGERPRINT.values())
pytestmark = pytest.mark.sqlite


def made_of(path: Path, sql: str) -> Sqlite:
    with sqlite3.connect(path) as connection:
        connection.executescript(sql)
    return Sqlite(path, path.with_suffix(".lock"))


def rows(backend: Sqlite, query: str) -> list[tuple[object, ...]]:
    with sqlite3.connect(backend.path) as connection:
        return connection.execute(query).fetchall()


def dump(backend: Sqlite) -> list[str]:
    with sqlite3.connect(backend.path) as connection:
        return list(connection.iterdump())


def fingerprint(backend: Sqlite) -> str:
    with sa.create_engine(f"sqlite:///{backend.path}").connect() as connection:
        return migrate.schema_fingerprint(connection)


def database_at(folder: Path, revision: str) -> Sqlite:
    """Return a database that was brought to a revision."""
    backend = Sqlite(folder / "db", folder / "lock")
    config = Config()
    config.set_main_option("script_location", str(migrate.FOLDER))
    with writing(backend) as engine, engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    return backend


@pytest.mark.parametrize("number", ["0001", "0005"])
def test_a_home_of_before_the_release_is_opened_and_keeps_its_rows(
    tmp_path: Path, number: str
) -> None:
    sql = BEFORE_RELEASE.read_text().replace("VALUES('0005')", f"VALUES('{number}')")
    assert f"VALUES('{number}')" in sql
    made_of(tmp_path / "thumbwheel.db", sql)
    with Workspace.open(Home.at(tmp_path), Sources({}, "none", {})) as ws:
        assert migrate.revision_of(ws.db.backend) == migrate.HEAD
        with ws.db.read() as connection:
            assert connection.execute(sa.text("SELECT slug FROM agents")).scalar() == "support"


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("number", ["0001", "0005", "0007"])
def test_the_tables_say_what_a_database_is_whatever_its_number(
    tmp_path: Path, revision: str, number: str
) -> None:
    backend = database_at(tmp_path, revision)
    assert migrate.BY_FINGERPRINT[fingerprint(backend)] == revision
    with sqlite3.connect(backend.path) as connection:
        connection.execute(f"UPDATE alembic_version SET version_num = '{number}'")
    migrate.upgrade(backend)
    assert migrate.revision_of(backend) == migrate.HEAD
    (tmp_path / "new").mkdir()
    assert fingerprint(backend) == fingerprint(database_at(tmp_path / "new", "head"))


REFUSED = {
    "of half a development version": (
        BEFORE_RELEASE.read_text().replace("VALUES('0005')", "VALUES('0003')")
        + "DROP TABLE artifacts;",
        "thumbwheel import",
    ),
    "of a newer version": (
        BEFORE_RELEASE.read_text().replace("VALUES('0005')", "VALUES('tw9001')"),
        "Upgrade thumbwheel",
    ),
    "of another program": (
        "CREATE TABLE alembic_version (version_num TEXT); CREATE TABLE chat (id TEXT);"
        "INSERT INTO alembic_version VALUES ('ab12cd34ef56');",
        "the database of another program",
    ),
    "of a program without Alembic": ("CREATE TABLE chat (id TEXT);", "another program"),
    "without a version": (
        BEFORE_RELEASE.read_text() + "DROP TABLE alembic_version;",
        "not their version",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_opened_is_said_and_stays_as_it_is(tmp_path: Path, name: str) -> None:
    sql, advice = REFUSED[name]
    backend = made_of(tmp_path / "db", sql)
    before = dump(backend)
    with pytest.raises(StorageError, match=advice):
        migrate.upgrade(backend)
    assert dump(backend) == before


def test_no_id_of_a_revision_is_one_of_the_old_numbers() -> None:
    for script in ScriptDirectory(str(migrate.FOLDER)).walk_revisions():
        assert not migrate.NUMBER.fullmatch(script.revision)
