"""The writer's promise: an answer means "on disk", one failure is one caller's, and what cannot be
stored is said."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from tests.store.outside import outside
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import Busy, StorageError
from thumbwheel.db import dialects, migrate, writer
from thumbwheel.db.dialects import Backend, Sqlite
from thumbwheel.db.engine import Database, writing
from thumbwheel.db.schema import artifacts, metadata, model_versions
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import of_agent
from thumbwheel.db.writer import GROUP, HOLDING, WAITING


@pytest.fixture
def db(backend: Backend) -> Iterator[Database]:
    migrate.upgrade(backend)
    database = Database(backend)
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
    with outside(db.backend) as other:
        assert other.execute("SELECT sha256 FROM artifacts").fetchall() == [("a",)]


@pytest.mark.sqlite
def test_durability_settings(db: Database) -> None:
    assert db.write(lambda c: c.exec_driver_sql("PRAGMA synchronous").scalar_one()) == 2
    assert db.write(lambda c: c.exec_driver_sql("PRAGMA journal_mode").scalar_one()) == "wal"
    assert db.write(lambda c: c.exec_driver_sql("PRAGMA foreign_keys").scalar_one()) == 1


def test_readers_cannot_write(db: Database) -> None:
    db.write(lambda c: add(c, "a"))
    with pytest.raises(StorageError, match=r"may (not|only)"), db.read() as reader:
        add(reader, "b")
    assert names(db) == {"a"}


def test_a_reader_sees_one_state(db: Database) -> None:
    db.write(lambda c: add(c, "a"))
    with db.read() as connection:
        query = sa.select(sa.func.count()).select_from(artifacts)
        assert connection.execute(query).scalar_one() == 1
        db.write(lambda c: add(c, "b"))
        assert connection.execute(query).scalar_one() == 1
    assert names(db) == {"a", "b"}


@pytest.fixture
def commits() -> Iterator[list[sa.Connection]]:
    """The connection of every commit, in any database."""
    connections: list[sa.Connection] = []

    def note(connection: sa.Connection) -> None:
        connections.append(connection)

    sa.event.listen(sa.Engine, "commit", note)
    yield connections
    sa.event.remove(sa.Engine, "commit", note)


def test_as_many_read_at_once_as_a_server_has_threads_and_one_more_is_told_to_wait(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate.upgrade(backend)
    monkeypatch.setattr(dialects, "READER_WAIT", 0.1)
    database = Database(backend)
    with ExitStack() as stack:
        for _ in range(dialects.READERS):
            stack.enter_context(database.read())
        with pytest.raises(Busy, match="50 others read it at once"), database.read():
            pass
    with database.read():
        pass
    database.close()


def test_what_waits_together_shares_a_commit(
    db: Database, commits: list[sa.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "HOLDING", 60.0)  # however slow the machine is
    go = threading.Event()
    blocker = db.submit(lambda c: go.wait(10))
    waiting = [db.submit(lambda c, i=i: add(c, f"n{i}")) for i in range(3 * GROUP)]
    go.set()
    assert [answer.result(60) for answer in waiting] == [f"n{i}" for i in range(3 * GROUP)]
    assert blocker.result()
    assert 4 <= len(commits) <= 3 * GROUP / 10


def test_on_a_database_with_many_writers_a_commit_has_work_of_one_lock(
    db: Database, commits: list[sa.Connection]
) -> None:
    ran: list[int] = []
    go = threading.Event()
    blocker = db.submit(lambda _: go.wait(10))
    works = [
        db.submit(lambda _, number=number: ran.append(number), of_agent(f"agt_{number % 2}"))
        for number in range(8)
    ]
    go.set()
    for work in works:
        work.result(60)
    assert blocker.result()
    # those of one lock run in the order in which they came
    assert [number for number in ran if number % 2 == 0] == [0, 2, 4, 6]
    assert [number for number in ran if number % 2 == 1] == [1, 3, 5, 7]
    if db.backend.has_many_writers:
        assert len(commits) >= 3
    else:
        assert ran == sorted(ran)


def test_a_commit_ends_after_its_time_so_that_other_processes_get_their_turn(
    db: Database, commits: list[sa.Connection]
) -> None:
    works = [db.submit(lambda c: time.sleep(HOLDING / 2.5)) for _ in range(12)]
    with writing(db.backend) as engine, engine.begin():  # another writer, in the middle of it
        assert not works[-1].done()
    for work in works:
        work.result(10)
    assert len(commits) >= 6  # two pieces fit; a third would end too late


def test_where_too_much_waits_who_may_not_block_is_refused_at_once(db: Database) -> None:
    go = threading.Event()
    running = db.submit(lambda c: go.wait(10))
    while db.submit(lambda c: None) and db.oldest_waiting() < 0.05:
        time.sleep(0.01)
    with pytest.raises(Busy, match="Send it again") as raised:
        for _ in range(WAITING + 1):
            db.submit(lambda c: None, wait=False)
    assert raised.value.retry_after == 1
    blocked = threading.Thread(target=db.write, args=(lambda c: add(c, "waited"),))
    blocked.start()
    assert db.oldest_waiting() > 0.05
    assert names(db) == set()
    go.set()
    blocked.join(10)
    assert running.result()
    assert names(db) == {"waited"}
    assert db.oldest_waiting() == 0.0


def test_work_that_its_caller_cancelled_is_left_out(db: Database) -> None:
    go = threading.Event()
    running = db.submit(lambda c: go.wait(10))
    works = [db.submit(lambda c, i=i: add(c, f"n{i}")) for i in range(3)]
    assert works[1].cancel()
    go.set()
    assert [works[0].result(10), works[2].result(10)] == ["n0", "n2"]
    assert running.result() and not running.cancel()
    assert names(db) == {"n0", "n2"}


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
    with outside(db.backend) as other:
        if isinstance(db.backend, Sqlite):
            other.execute("BEGIN IMMEDIATE")
        else:
            other.execute("BEGIN")
            other.execute("LOCK TABLE artifacts")
        with pytest.raises(StorageError, match=r"locked by another program|did not finish"):
            db.write(lambda c: add(c, "while"))
        other.execute("ROLLBACK")
    db.write(lambda c: add(c, "after"))
    assert names(db) == {"before", "after"}


def test_another_writer_of_the_home_is_said(db: Database) -> None:
    db.write(lambda c: add(c, "before"))
    with (
        writing(db.backend) as engine,
        engine.begin(),
        pytest.raises(StorageError, match="another process is writing"),
    ):
        db.write(lambda c: add(c, "while"))
    db.write(lambda c: add(c, "after"))
    assert names(db) == {"before", "after"}


@pytest.mark.sqlite
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


@pytest.mark.sqlite
def test_a_program_of_others_that_comes_and_goes_does_not_take_the_log_away(
    backend: Backend, db: Database
) -> None:
    """It deletes the log where it believes to be alone, and what is committed to a deleted log is
    lost. (PostgreSQL has no such file.)"""
    assert isinstance(backend, Sqlite)
    with db.read() as connection:
        connection.execute(sa.select(artifacts)).all()
    db.write(lambda connection: add(connection, "before"))
    look = "import sqlite3, sys; connection = sqlite3.connect(sys.argv[1]); "
    look += "print(connection.execute('SELECT sha256 FROM artifacts').fetchall()); "
    command = [sys.executable, "-c", look + "connection.close()", str(backend.path)]
    for name in ("first", "second"):
        db.write(lambda connection, name=name: add(connection, name))
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert name in shown


@pytest.mark.sqlite
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
from thumbwheel.db.dialects import Postgresql, Sqlite
from thumbwheel.db.engine import Database
from thumbwheel.db.schema import artifacts
place, tag = sys.argv[1], sys.argv[2]
db = Database(
    Postgresql.from_url(place, "argument") if "://" in place
    else Sqlite(Path(place), Path(place).with_name("lock"))
)
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
            [sys.executable, "-c", WRITER, db.backend.secret_address, str(round_)],
            stdout=subprocess.PIPE,
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
    if isinstance(db.backend, Sqlite):
        with outside(db.backend) as other:
            assert other.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_fresh_schema_is_a_migrated_one(backend: Backend) -> None:
    migrate.upgrade(backend)
    engine = backend.reader()
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
        # by name: a migration appends a column, wherever the table's definition has it
        parts["columns"] = [
            column | {"type": repr(column["type"])} for column in inspector.get_columns(table)
        ]
        for name in ("columns", "foreign keys", "unique", "check", "indexes"):
            parts[name] = sorted(parts[name], key=lambda part: str(part["name"]))
        for index in parts["indexes"]:
            # the condition of a partial index is an expression, which equals no other
            options = index.get("dialect_options", {})
            index["dialect_options"] = {name: str(value) for name, value in options.items()}
        schema[table] = parts
    return schema


def test_the_migrated_schema_is_that_of_the_metadata(backend: Backend) -> None:
    """Collations too, which Alembic does not compare."""
    migrate.upgrade(backend)
    engine = backend.engine()
    migrated = schema_of(engine)
    with engine.begin() as connection:
        metadata.drop_all(connection)
        metadata.create_all(connection)
    assert migrated == schema_of(engine)
    assert migrated.keys() == metadata.tables.keys()
    engine.dispose()


NEXT_REVISION = """
from alembic import op
import sqlalchemy as sa

revision, down_revision = "9000", HEAD


def upgrade() -> None:
    op.add_column("agents", sa.Column("note", sa.Text(), nullable=True))
"""


INSERTED_AGENT = "INSERT INTO agents VALUES ('agt_1', 'a', '2026-01-01 00:00:00.000000')"


def test_an_older_database_is_brought_up_and_keeps_its_rows(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate.upgrade(backend)
    with outside(backend) as connection:
        connection.execute(INSERTED_AGENT)
    shutil.copytree(migrate.FOLDER, tmp_path / "migrations")
    revision = NEXT_REVISION.replace("HEAD\n", f"{migrate.HEAD!r}\n", 1)
    (tmp_path / "migrations" / "versions" / "v9000_note.py").write_text(revision)
    monkeypatch.setattr(migrate, "FOLDER", tmp_path / "migrations")
    monkeypatch.setattr(migrate, "HEAD", "9000")
    migrate.upgrade(backend)
    with outside(backend) as connection:
        assert connection.execute("SELECT slug, note FROM agents").fetchall() == [("a", None)]
        assert connection.execute("SELECT * FROM alembic_version").fetchall() == [("9000",)]


def test_head_is_the_newest_revision() -> None:
    assert ScriptDirectory(str(migrate.FOLDER)).get_heads() == [migrate.HEAD]


def test_opening_twice_changes_nothing(tmp_path: Path) -> None:
    for _ in range(2):
        Workspace.open(Home.at(tmp_path), Sources({}, "none", {})).db.close()
    with Workspace.open(Home.at(tmp_path), Sources({}, "none", {})) as ws:
        assert migrate.revision_of(ws.db.backend) == migrate.HEAD


@pytest.mark.parametrize("revision", ["9999", "tw9999", "f00dbabe1234"])
def test_an_unknown_revision_is_said_and_nothing_changes(backend: Backend, revision: str) -> None:
    migrate.upgrade(backend)
    with outside(backend) as connection:
        connection.execute(f"UPDATE alembic_version SET version_num = '{revision}'")
        connection.execute("ALTER TABLE agents ADD COLUMN note TEXT")
    with pytest.raises(StorageError, match=r"newer version of thumbwheel|development version"):
        migrate.upgrade(backend)
    with outside(backend) as connection:
        assert connection.execute("SELECT * FROM alembic_version").fetchall() == [(revision,)]


@pytest.mark.sqlite
@pytest.mark.parametrize(
    "content", [b"no database at all" * 100, b"SQLite format 3\x00" + b"\xff" * 5000]
)
def test_a_file_that_is_no_database_is_said(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "db").write_bytes(content)
    with pytest.raises(StorageError, match=r"damaged or no database|refused"):
        migrate.upgrade(Sqlite(tmp_path / "db", tmp_path / "lock"))
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


@pytest.mark.sqlite
def test_a_home_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    database = Database(Sqlite(missing / "db", missing / "lock", wait=0.2))
    with pytest.raises(StorageError, match="lock file"):
        database.write(lambda c: add(c, "a"))
    with pytest.raises(StorageError, match="cannot be opened"), database.read():
        pass
    with suppress(StorageError):
        database.close()


NUMBERING = """
import sys
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace
from thumbwheel.models import store
with Workspace.open(Home.at(sys.argv[1]), Sources.read()) as ws:
    for number in range(40):
        def work(connection):
            agent_id = store.ensure_agent(connection, f"agent-{number}")
            for _ in range(2):
                store.add_version(connection, agent_id, {"state": "candidate", "base": "base"})
        ws.db.write(work)
"""


def test_what_is_looked_up_and_then_inserted_holds_over_processes(tmp_path: Path) -> None:
    """Three processes make the same agents and number their versions: each waits for the work of
    the others, and sees it."""
    Workspace.open(Home.at(tmp_path), Sources({}, "none", {})).db.close()
    command = [sys.executable, "-c", NUMBERING, str(tmp_path)]
    processes = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    with Workspace.open(Home.at(tmp_path), Sources({}, "none", {})) as ws, ws.db.read() as reader:
        query = sa.select(model_versions.c.number, sa.func.count())
        counts = reader.execute(query.group_by(model_versions.c.number)).tuples().all()
    assert dict(counts) == dict.fromkeys(range(6), 40)
