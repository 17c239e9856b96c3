"""The writer's promise: an answer means "on disk", one failure is one caller's, and what cannot be
stored is said."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import StorageError
from thumbwheel.db import migrate
from thumbwheel.db.engine import GROUP, Database, writing
from thumbwheel.db.schema import artifacts, metadata
from thumbwheel.db.workspace import Workspace


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    migrate.upgrade(tmp_path / "db", tmp_path / "lock")
    database = Database(tmp_path / "db", tmp_path / "lock", wait=0.5)
    yield database
    database.close()


def add(connection: sa.Connection, name: str, kind: str = "x") -> str:
    connection.execute(
        artifacts.insert().values(sha256=name, kind=kind, size=1, recorded_at=datetime.now(UTC))
    )
    return name


def names(db: Database) -> set[str]:
    with db.read() as connection:
        return set(connection.execute(sa.select(artifacts.c.sha256)).scalars())


def test_a_result_comes_back_once_it_is_on_disk(db: Database) -> None:
    assert db.write(lambda c: add(c, "a")) == "a"
    with sqlite3.connect(db.path) as other:
        assert other.execute("SELECT sha256 FROM artifacts").fetchall() == [("a",)]


def test_durability_settings(db: Database) -> None:
    assert db.write(lambda c: c.exec_driver_sql("PRAGMA synchronous").scalar_one()) == 2
    assert db.write(lambda c: c.exec_driver_sql("PRAGMA journal_mode").scalar_one()) == "wal"
    assert db.write(lambda c: c.exec_driver_sql("PRAGMA foreign_keys").scalar_one()) == 1


def test_readers_cannot_write(db: Database) -> None:
    db.write(lambda c: add(c, "a"))
    with pytest.raises(StorageError, match="may not be written"), db.read() as connection:
        add(connection, "b")
    assert names(db) == {"a"}


def test_a_reader_sees_one_state(db: Database) -> None:
    db.write(lambda c: add(c, "a"))
    with db.read() as connection:
        query = sa.select(sa.func.count()).select_from(artifacts)
        assert connection.execute(query).scalar_one() == 1
        db.write(lambda c: add(c, "b"))
        assert connection.execute(query).scalar_one() == 1
    assert names(db) == {"a", "b"}


def test_what_waits_together_shares_a_commit(db: Database) -> None:
    commits: list[sa.Connection] = []
    go = threading.Event()

    def note(connection: sa.Connection) -> None:
        commits.append(connection)

    sa.event.listen(sa.Engine, "commit", note)
    try:
        blocker = db.submit(lambda c: go.wait(10))
        waiting = [db.submit(lambda c, i=i: add(c, f"n{i}")) for i in range(3 * GROUP)]
        go.set()
        assert [answer.result(10) for answer in waiting] == [f"n{i}" for i in range(3 * GROUP)]
        assert blocker.result()
    finally:
        sa.event.remove(sa.Engine, "commit", note)
    assert 4 <= len(commits) <= 6


def test_one_failure_does_not_spoil_the_others_of_its_group(db: Database) -> None:
    go = threading.Event()

    def fail(connection: sa.Connection) -> None:
        add(connection, "half")
        raise ValueError("mine")

    db.submit(lambda c: go.wait(10))
    works = [lambda c: add(c, "a"), fail, lambda c: add(c, "a"), lambda c: add(c, "b")]
    answers = [db.submit(work) for work in works]
    go.set()
    assert answers[0].result() == "a"
    with pytest.raises(ValueError, match="mine"):
        answers[1].result()
    with pytest.raises(sa.exc.IntegrityError):
        answers[2].result()
    assert answers[3].result() == "b"
    assert names(db) == {"a", "b"}


def test_closing_finishes_what_was_submitted_and_it_opens_again(db: Database) -> None:
    answers = [db.submit(lambda c, i=i: add(c, f"n{i}")) for i in range(50)]
    db.close()
    assert all(answer.done() for answer in answers)
    db.write(lambda c: add(c, "after"))
    assert len(names(db)) == 51


def test_a_locked_database_is_said_and_waits_for_nobody_else(db: Database) -> None:
    db.write(lambda c: add(c, "before"))
    other = sqlite3.connect(db.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageError, match="locked by another program"):
        db.write(lambda c: add(c, "while"))
    other.execute("ROLLBACK")
    other.close()
    db.write(lambda c: add(c, "after"))
    assert names(db) == {"before", "after"}


def test_another_writer_of_the_home_is_said(db: Database, tmp_path: Path) -> None:
    db.write(lambda c: add(c, "before"))
    with (
        writing(db.path, tmp_path / "lock"),
        pytest.raises(StorageError, match="another process is writing"),
    ):
        db.write(lambda c: add(c, "while"))
    db.write(lambda c: add(c, "after"))
    assert names(db) == {"before", "after"}


def test_a_full_database_is_said_to_every_caller_and_nothing_acknowledged_is_lost(
    db: Database,
) -> None:
    acknowledged = {db.write(lambda c, i=i: add(c, f"n{i}")) for i in range(20)}
    pages = db.write(lambda c: c.exec_driver_sql("PRAGMA page_count").scalar_one())
    db.write(lambda c: c.exec_driver_sql(f"PRAGMA max_page_count = {pages + 4}").scalar_one())
    answers = {f"m{i}": db.submit(lambda c, i=i: add(c, f"m{i}", "x" * 3000)) for i in range(40)}
    refused = set()
    for name, answer in answers.items():
        try:
            acknowledged.add(answer.result())
        except StorageError as error:
            assert "disk is full" in str(error)
            refused.add(name)
    assert refused
    assert names(db) == acknowledged
    db.write(lambda c: c.exec_driver_sql("PRAGMA max_page_count = 100000").scalar_one())
    for name in sorted(refused):
        db.write(lambda c, name=name: add(c, name))
    assert names(db) == acknowledged | refused


def test_a_really_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = (
        os.geteuid() == 0
        and subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)], capture_output=True
        ).returncode
        == 0
    )
    if not mounted:
        pytest.skip("a small disk can be mounted by root only")
    try:
        with Workspace.open(Home.at(disk), Sources({}, "none", {})) as ws:
            acknowledged = set()
            with pytest.raises(StorageError, match=r"full|refused"):
                for i in range(2000):
                    acknowledged.add(ws.db.write(lambda c, i=i: add(c, f"n{i}", "x" * 3000)))
            assert acknowledged
            assert names(ws.db) == acknowledged
        with Workspace.open(Home.at(disk), Sources({}, "none", {})) as ws:
            assert names(ws.db) == acknowledged
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


WRITER = """
import os, sys, threading
from pathlib import Path
from datetime import UTC, datetime
from thumbwheel.db.engine import Database
from thumbwheel.db.schema import artifacts
folder, tag = Path(sys.argv[1]), sys.argv[2]
db = Database(folder / "db", folder / "lock")
def work(thread):
    for i in range(100_000):
        name = f"{tag}-{thread}-{i}"
        row = {"sha256": name, "kind": "x", "size": i, "recorded_at": datetime.now(UTC)}
        db.write(lambda c: c.execute(artifacts.insert().values(row)))
        os.write(1, (name + "\\n").encode())
for thread in range(6):
    threading.Thread(target=work, args=(thread,)).start()
"""


def test_what_was_acknowledged_survives_kill_9(db: Database) -> None:
    rng = random.Random(3)
    acknowledged: set[str] = set()
    for round_ in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(db.path.parent), str(round_)], stdout=subprocess.PIPE
        )
        assert child.stdout
        first = child.stdout.readline()
        time.sleep(rng.uniform(0.05, 0.4))
        child.send_signal(signal.SIGKILL)
        lines = (first + child.stdout.read()).decode().split("\n")
        child.wait()
        assert child.returncode == -signal.SIGKILL
        acknowledged |= set(lines[:-1])
        assert acknowledged <= names(db)
    assert len(acknowledged) > 100
    with sqlite3.connect(db.path) as other:
        assert other.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_fresh_schema_is_a_migrated_one(tmp_path: Path) -> None:
    migrate.upgrade(tmp_path / "db", tmp_path / "lock")
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'db'}")
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": True}
        )
        assert compare_metadata(context, metadata) == []
        assert context.get_current_revision() == migrate.HEAD
    engine.dispose()


def schema_of(engine: sa.Engine) -> dict[str, Any]:
    """Columns, types, keys, indexes and constraints with their names, of every table."""
    inspector = sa.inspect(engine)
    schema = {}
    for table in set(inspector.get_table_names()) - {"alembic_version"}:
        parts: dict[str, Any] = {
            "primary key": inspector.get_pk_constraint(table),
            "foreign keys": inspector.get_foreign_keys(table),
            "unique": inspector.get_unique_constraints(table),
            "check": inspector.get_check_constraints(table),
            "indexes": inspector.get_indexes(table),
        }
        for name in ("foreign keys", "unique", "check", "indexes"):
            parts[name] = sorted(parts[name], key=lambda part: str(part["name"]))
        parts["columns"] = [
            column | {"type": repr(column["type"])} for column in inspector.get_columns(table)
        ]
        schema[table] = parts
    return schema


def test_the_migrated_schema_is_that_of_the_metadata(tmp_path: Path) -> None:
    migrate.upgrade(tmp_path / "migrated", tmp_path / "lock")
    migrated = sa.create_engine(f"sqlite:///{tmp_path / 'migrated'}")
    created = sa.create_engine(f"sqlite:///{tmp_path / 'created'}")
    metadata.create_all(created)
    assert schema_of(migrated) == schema_of(created)
    assert schema_of(migrated).keys() == metadata.tables.keys()
    migrated.dispose()
    created.dispose()


NEXT_REVISION = """
from alembic import op
import sqlalchemy as sa

revision, down_revision = "0002", "0001"


def upgrade() -> None:
    op.add_column("agents", sa.Column("note", sa.Text(), nullable=True))
"""


def test_an_older_database_is_brought_up_and_keeps_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate.upgrade(tmp_path / "db", tmp_path / "lock")
    with sqlite3.connect(tmp_path / "db") as connection:
        connection.execute("INSERT INTO agents VALUES ('agt_1', 'a', '2026-01-01 00:00:00.000000')")
    shutil.copytree(migrate.FOLDER, tmp_path / "migrations")
    (tmp_path / "migrations" / "versions" / "v0002_note.py").write_text(NEXT_REVISION)
    monkeypatch.setattr(migrate, "FOLDER", tmp_path / "migrations")
    monkeypatch.setattr(migrate, "HEAD", "0002")
    migrate.upgrade(tmp_path / "db", tmp_path / "lock")
    with sqlite3.connect(tmp_path / "db") as connection:
        assert connection.execute("SELECT slug, note FROM agents").fetchall() == [("a", None)]
        assert connection.execute("SELECT * FROM alembic_version").fetchall() == [("0002",)]


def test_head_is_the_newest_revision() -> None:
    assert ScriptDirectory(str(migrate.FOLDER)).get_heads() == [migrate.HEAD]


def test_opening_twice_changes_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        Workspace.open(Home.at(tmp_path), Sources({}, "none", {})).db.close()
    assert migrate._revision(tmp_path / "thumbwheel.db", tmp_path / "lock") == migrate.HEAD


@pytest.mark.parametrize("revision", ["9999", "0000", "0005"])
def test_an_unknown_revision_is_said_and_nothing_changes(tmp_path: Path, revision: str) -> None:
    migrate.upgrade(tmp_path / "db", tmp_path / "lock")
    with sqlite3.connect(tmp_path / "db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", [revision])
        connection.execute("INSERT INTO agents VALUES ('agt_1', 'a', '2026-01-01 00:00:00.000000')")
    with pytest.raises(StorageError, match="not of a version that this program knows"):
        migrate.upgrade(tmp_path / "db", tmp_path / "lock")
    with sqlite3.connect(tmp_path / "db") as connection:
        assert connection.execute("SELECT slug FROM agents").fetchall() == [("a",)]
        assert connection.execute("SELECT * FROM alembic_version").fetchall() == [(revision,)]


@pytest.mark.parametrize(
    "content", [b"no database at all" * 100, b"SQLite format 3\x00" + b"\xff" * 5000]
)
def test_a_file_that_is_no_database_is_said(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "db").write_bytes(content)
    with pytest.raises(StorageError, match=r"damaged or no database|refused"):
        migrate.upgrade(tmp_path / "db", tmp_path / "lock")
    assert (tmp_path / "db").read_bytes() == content


def test_many_threads_through_one_writer(db: Database) -> None:
    def work(thread: int) -> None:
        for i in range(50):
            db.write(lambda c, i=i: add(c, f"{thread}-{i}"))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(names(db)) == 400


def test_a_home_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    database = Database(tmp_path / "missing" / "db", tmp_path / "missing" / "lock", wait=0.2)
    with pytest.raises(StorageError, match="lock file"):
        database.write(lambda c: add(c, "a"))
    with pytest.raises(StorageError, match="cannot be opened"), database.read():
        pass
    with suppress(StorageError):
        database.close()
