"""What only PostgreSQL has: URLs with secrets, servers that are old, read-only or gone, deadlocks,
restarts under load, and text order in a database of another collation."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from tests.servers.postgres_server import Databases, PostgresServer
from tests.waiting import until
from tests.worlds.erasure_world import AGENT, lines_of, name, word, write
from thumbwheel.capture.ingest import ingest
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import ConfigError, MissingExtra, StorageError
from thumbwheel.db import dialects, migrate, ownership
from thumbwheel.db.dialects import Postgresql, backend_at
from thumbwheel.db.engine import Database
from thumbwheel.db.schema import agents, artifacts
from thumbwheel.db.workspace import Workspace
from thumbwheel.erasure.erase import erase
from thumbwheel.llm.port import free_port
from thumbwheel.models.types import Agent

pytestmark = pytest.mark.postgresql

SECRET = "s3cret/w:rd"
QUOTED = "s3cret%2Fw%3Ard"


@pytest.fixture
def url(databases: Databases) -> Iterator[str]:
    """A database with every table."""
    address = databases.migrated()
    yield address
    databases.drop(address)


@pytest.fixture
def empty_url(databases: Databases) -> Iterator[str]:
    """A database without tables."""
    address = databases.empty()
    yield address
    databases.drop(address)


def add(connection: sa.Connection, name: str) -> str:
    row = {"sha256": name, "kind": "x", "size": 1, "recorded_at": datetime.now(UTC)}
    connection.execute(artifacts.insert().values(**row))
    return name


def names(database: Database) -> set[str]:
    with database.read() as connection:
        return set(connection.execute(sa.select(artifacts.c.sha256)).scalars())


def workspace(home: Path, url: str) -> Workspace:
    return Workspace.open(Home.at(home), Sources({}, "none", {"THUMBWHEEL_DATABASE": url}))


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("nonsense", "no URL"),
        ("postgresql:/db", "no URL"),
        ("postgresql://user:s3cret@host:port/db", "no URL"),
        ("mysql://user:s3cret@host/db", "'mysql' are not supported"),
        ("postgresql://user:s3c@ret@host/db", "its host cannot be one"),
        ("postgresql://user:s3cret@host", "names no database"),
    ],
)
def test_a_wrong_address_is_refused_and_not_shown(tmp_path: Path, address: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as raised:
        workspace(tmp_path, address)
    assert "variable THUMBWHEEL_DATABASE" in str(raised.value)
    assert "postgresql://USER@HOST" in str(raised.value)
    assert "s3c" not in str(raised.value)
    assert not (tmp_path / "thumbwheel.db").exists()


@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://me:{QUOTED}@127.0.0.1:PORT/db",
        f"postgresql://me@127.0.0.1:PORT/db?password={QUOTED}",
        f"postgresql:///db?host=127.0.0.1&port=PORT&user=me&password={QUOTED}",
    ],
)
def test_a_password_is_nowhere_to_be_seen(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    backend = backend_at(Home.at("home"), address.replace("PORT", str(free_port())), "the test")
    with pytest.raises(StorageError, match="does not answer") as raised:
        migrate.upgrade(backend)
    shown = [repr(backend), str(backend), backend.name, backend.address, str(raised.value)]
    shown += [repr(raised.value.__cause__), *capsys.readouterr()]
    assert "127.0.0.1" in backend.address
    for text in shown:
        assert SECRET not in text
        assert QUOTED not in text
        assert "s3cret" not in text


def test_another_process_gets_the_whole_address() -> None:
    backend = Postgresql.from_url(f"postgresql://me:{QUOTED}@h/db?sslmode=require", "the test")
    assert dialects.opened_at(backend.secret_address) == backend
    assert backend.url.password == SECRET


def test_a_password_in_the_message_of_a_library_is_taken_out() -> None:
    backend = Postgresql.from_url(f"postgresql://me:{QUOTED}@host/db", "the test")
    with pytest.raises(StorageError) as raised, backend.errors():
        raise psycopg.OperationalError(f"cannot use {SECRET} of me:{QUOTED}@host")
    assert "cannot use *** of me:***@host" in str(raised.value)


def test_connections_notice_a_server_that_went_away_and_the_url_may_say_otherwise(url: str) -> None:
    other = url + "?connect_timeout=3&tcp_user_timeout=4000&application_name=mine"
    for address, expected in ((url, ("10", "15000", "")), (other, ("3", "4000", "mine"))):
        engine = Postgresql.from_url(address, "the test").reader()
        with engine.connect() as connection:
            raw = connection.connection.driver_connection
            assert isinstance(raw, psycopg.Connection)
            settings = raw.info.get_parameters()
            values = (
                settings.get("connect_timeout"),
                settings.get("tcp_user_timeout"),
                settings.get("application_name", ""),
            )
            assert values == expected
            assert settings["keepalives_idle"] == "5"
        engine.dispose()


def test_an_old_server_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialects, "OLDEST_SERVER", 99)
    with pytest.raises(StorageError, match=r"PostgreSQL \d+; thumbwheel needs 99 or later"):
        migrate.upgrade(Postgresql.from_url(url, "the test"))


def test_a_database_that_cannot_hold_every_text_is_refused(databases: Databases) -> None:
    address = databases.empty("ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'")
    with pytest.raises(StorageError, match="its encoding is LATIN1"):
        migrate.upgrade(Postgresql.from_url(address, "the test"))
    databases.drop(address)


def test_a_database_that_is_not_there_is_said(url: str) -> None:
    with pytest.raises(StorageError, match=r"does not answer .*no_such_database.*does not exist"):
        migrate.upgrade(Postgresql.from_url(f"{url.rsplit('/', 1)[0]}/no_such_database", "test"))


def test_a_database_that_may_only_be_read_is_said(url: str) -> None:
    name = url.rsplit("/", 1)[1]
    with psycopg.connect(url, autocommit=True) as other:
        other.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    database = Database(Postgresql.from_url(url, "the test"))
    with pytest.raises(StorageError, match="may only be read"):
        database.write(lambda c: add(c, "a"))
    database.close()


def test_what_is_acknowledged_is_on_disk_also_where_the_server_would_rather_not(url: str) -> None:
    name = url.rsplit("/", 1)[1]
    with psycopg.connect(url, autocommit=True) as other:
        other.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
    database = Database(Postgresql.from_url(url, "the test"))
    show = "SHOW synchronous_commit"
    assert database.write(lambda c: c.exec_driver_sql(show).scalar_one()) == "on"
    database.close()


def test_text_sorts_by_code_point_whatever_the_collation_of_the_database(url: str) -> None:
    """As in SQLite, and as Python compares: builds walk several ordered streams side by side."""
    slugs = [*"aBbZz~0éÄ\U0001f553", "a-b", "a_b", "ab", "a b", "10", "9"]
    database = Database(Postgresql.from_url(url, "the test"))
    rows = [{"id": f"agt_{slug}", "slug": slug, "recorded_at": datetime.now(UTC)} for slug in slugs]
    database.write(lambda c: c.execute(agents.insert(), rows))
    with database.read() as connection:
        query = sa.select(agents.c.slug).order_by(agents.c.slug)
        assert list(connection.execute(query).scalars()) == sorted(slugs)
        above = sa.select(agents.c.slug).where(agents.c.slug >= "a")
        assert set(connection.execute(above).scalars()) == {slug for slug in slugs if slug >= "a"}
    database.close()


def test_the_collation_of_ci_is_another_one(url: str) -> None:
    """So that the test above proves something there."""
    if not os.environ.get("THUMBWHEEL_TEST_POSTGRES_COLLATION"):
        pytest.skip("an embedded PostgreSQL has no ICU")
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT 'a' < 'B'").fetchone()
    assert row == (True,)


def test_processes_read_the_same_state_by_a_snapshot(url: str) -> None:
    first = Database(Postgresql.from_url(url, "the test"))
    second = Database(dialects.opened_at(first.backend.secret_address))
    first.write(lambda c: add(c, "a"))
    with first.read() as connection:
        snapshot = first.snapshot(connection)
        first.write(lambda c: add(c, "b"))
        with second.read(snapshot) as other:
            assert list(other.execute(sa.select(artifacts.c.sha256)).scalars()) == ["a"]
        assert names(second) == {"a", "b"}
    first.close()
    second.close()


def test_texts_are_as_long_as_in_sqlite(url: str) -> None:
    """Rules of length are checked where values come in, alike for both."""
    database = Database(Postgresql.from_url(url, "the test"))
    database.write(lambda c: add(c, "x" * 2_000))
    assert names(database) == {"x" * 2_000}
    database.close()


def test_without_psycopg_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra, match=r"pip install 'thumbwheel\[postgres\]'"):
        workspace(tmp_path, "postgresql://me:s3cret@host/db")


def test_an_erased_subject_is_in_no_file_of_the_server(url: str, tmp_path: Path) -> None:
    """Its write-ahead log and its backups aside, which are the owner's."""

    def files() -> bytes:
        with psycopg.connect(url, autocommit=True) as other:
            other.execute("CHECKPOINT")
            query = "SELECT current_setting('data_directory'), oid FROM pg_database"
            row = other.execute(f"{query} WHERE datname = current_database()").fetchone()
            assert row
        paths = Path(row[0], "base", str(row[1])).iterdir()
        return b"".join(path.read_bytes() for path in paths if path.is_file())

    lines = [line for person in range(3) for line in lines_of(person)]
    with workspace(tmp_path / "home", url) as ws:
        ingest(ws, AGENT, "jsonl", write(tmp_path / "lines.jsonl", lines))
        assert word(0).encode() in files()
        erase(ws, Agent.named(AGENT), name(0))
        assert word(0).encode() not in files()
        assert word(1).encode() in files()


def test_an_erasure_does_not_end_while_somebody_sees_the_old_rows(url: str, tmp_path: Path) -> None:
    with workspace(tmp_path / "home", url) as ws:
        ingest(ws, AGENT, "jsonl", write(tmp_path / "lines.jsonl", lines_of(0)))
        with psycopg.connect(url) as other:
            other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            other.execute("SELECT 1")
            ws.db.write(lambda c: add(c, "later"))
            impatient = Database(Postgresql(sa.make_url(url), wait=0.5))
            with pytest.raises(StorageError, match="another program reads it"):
                impatient.compact()
        impatient.compact()


def test_a_deadlock_is_tried_again(url: str) -> None:
    """Another program takes two locks in the other order; PostgreSQL ends one of the two, and the
    work of the writer runs again."""
    database = Database(Postgresql.from_url(url, "the test"))
    runs: list[str] = []
    first_locked, second_locked = threading.Event(), threading.Event()

    def work(connection: sa.Connection) -> str:
        runs.append("run")
        connection.exec_driver_sql("SET LOCAL deadlock_timeout = '10ms'")
        connection.exec_driver_sql("LOCK TABLE cases")
        first_locked.set()
        second_locked.wait(60)
        connection.exec_driver_sql("LOCK TABLE raters")
        return add(connection, "a")

    answer = database.submit(work)
    with psycopg.connect(url) as other:
        other.execute("SET deadlock_timeout = '60s'")  # so that the writer is the one that is ended
        first_locked.wait(60)
        other.execute("LOCK TABLE raters")
        second_locked.set()
        other.execute("LOCK TABLE cases")
    assert answer.result(60) == "a"
    assert runs == ["run", "run"]
    assert names(database) == {"a"}
    database.close()


def test_a_connection_that_breaks_before_the_commit_is_replaced(url: str) -> None:
    database = Database(Postgresql.from_url(url, "the test"))
    attempts: list[int] = []

    def work(connection: sa.Connection) -> str:
        attempts.append(1)
        if len(attempts) == 1:
            process = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
            with psycopg.connect(url) as other:
                other.execute("SELECT pg_terminate_backend(%s)", [process])
        return add(connection, "a")

    assert database.write(work) == "a"
    assert names(database) == {"a"}
    database.close()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_server_that_restarts_under_load_loses_nothing_acknowledged(mode: str) -> None:
    """Work that was under way during the restart is done again or refused with what to do."""
    server = PostgresServer()
    try:
        address = server.create().start().url()
        backend = Postgresql.from_url(address, "the test")
        migrate.upgrade(backend)
        database = Database(backend)
        acknowledged: set[str] = set()
        refused: list[str] = []
        stop = threading.Event()

        def write(thread: int) -> None:
            number = 0
            while not stop.is_set():
                number += 1
                name = f"{thread}-{number}"
                try:
                    acknowledged.add(database.write(lambda c, name=name: add(c, name)))
                except StorageError as error:
                    refused.append(str(error))

        threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            time.sleep(0.3)
            server.stop(mode)
            server.start()
        before = len(acknowledged)
        until(lambda: len(acknowledged) > before)  # it goes on by itself
        stop.set()
        for thread in threads:
            thread.join(60)
        assert acknowledged <= names(database)
        assert len(refused) <= 3 * len(threads)
        for message in refused:
            # a server that stays away longer than a write waits ends it before the commit
            is_unknown = "unknown whether this step was stored" in message
            assert is_unknown or "it does not answer" in message
        database.close()
    finally:
        server.close()


class TestOwnership:
    def test_a_home_and_its_database_find_each_other_again(self, tmp_path: Path, url: str) -> None:
        with workspace(tmp_path, url) as ws:
            ws.db.write(lambda c: add(c, "a"))
        with workspace(tmp_path, url) as ws:
            assert names(ws.db) == {"a"}
        assert not (tmp_path / "thumbwheel.db").exists()
        noted = ownership.noted_ownership(Home.at(tmp_path))
        assert noted and noted.database == url

    def test_the_rows_are_not_silently_looked_for_elsewhere(
        self, tmp_path: Path, url: str, empty_url: str
    ) -> None:
        """No variable, or another URL: an empty database would look like lost rows."""
        workspace(tmp_path, url).db.close()
        for other in ("", empty_url):
            with pytest.raises(ConfigError, match="the rows of this home are in") as raised:
                workspace(tmp_path, other)
            assert url in str(raised.value)
            assert "Set THUMBWHEEL_DATABASE" in str(raised.value)
        with workspace(tmp_path, url):
            pass

    def test_a_home_with_sqlite_is_not_left_for_an_empty_server(
        self, tmp_path: Path, url: str
    ) -> None:
        workspace(tmp_path, "").db.close()
        with pytest.raises(ConfigError, match=r"in 'sqlite'\. Unset THUMBWHEEL_DATABASE, or move"):
            workspace(tmp_path, url)

    def test_the_database_of_another_home_is_refused(self, tmp_path: Path, url: str) -> None:
        workspace(tmp_path / "one", url).db.close()
        with pytest.raises(ConfigError, match="contains the rows of another home"):
            workspace(tmp_path / "two", url)

    @pytest.mark.slow
    def test_of_two_homes_that_open_a_new_database_at_once_one_gets_it(
        self, tmp_path: Path, empty_url: str
    ) -> None:
        """Each in a process of its own, which waits until all are ready."""
        gate, code = (
            tmp_path / "gate",
            (
                "import os, sys, time\n"
                "from pathlib import Path\n"
                "from thumbwheel.core.config import Home, Sources\n"
                "from thumbwheel.core.errors import ConfigError\n"
                "from thumbwheel.db.workspace import Workspace\n"
                "home, gate = Path(sys.argv[1]), Path(sys.argv[2])\n"
                "home.with_suffix('.ready').touch()\n"
                "while not gate.exists(): time.sleep(0.001)\n"
                "try:\n"
                "    ws = Workspace.open(Home.at(home), Sources({}, 'none', os.environ))\n"
                "except ConfigError as error:\n"
                "    sys.exit(str(error))\n"
                "print(ws.db.home_id)\n"
            ),
        )
        environment = {**os.environ, "THUMBWHEEL_DATABASE": empty_url}
        folders = [tmp_path / name for name in ("a", "b", "c")] + [tmp_path / "a"]
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", code, str(folder), str(gate)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for folder in folders
        ]
        until(lambda: all(folder.with_suffix(".ready").exists() for folder in folders))
        gate.touch()
        outputs = [process.communicate(timeout=120) for process in processes]
        winners = {
            (folder, output)
            for folder, process, (output, _) in zip(folders, processes, outputs, strict=True)
            if process.returncode == 0
        }
        assert len(winners) == 1
        (winner, printed) = winners.pop()
        noted = ownership.noted_ownership(Home.at(winner))
        assert noted and noted.id == printed.strip()
        for folder, process, (_, problem) in zip(folders, processes, outputs, strict=True):
            assert (process.returncode == 0) is (folder == winner)
            if folder != winner:
                assert "contains the rows of another home" in problem
                assert ownership.noted_ownership(Home.at(folder)) is None

    def test_who_saw_a_new_database_just_before_another_home_took_it_is_refused(
        self, tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        workspace(tmp_path / "one", url).db.close()
        monkeypatch.setattr(ownership, "home_id", lambda database: None)
        with pytest.raises(ConfigError, match="contains the rows of another home"):
            workspace(tmp_path / "two", url)
        workspace(tmp_path / "one", url).db.close()

    def test_a_server_that_moved_is_recognised(self, tmp_path: Path, url: str) -> None:
        workspace(tmp_path, url).db.close()
        moved = url.replace("127.0.0.1", "localhost")
        with workspace(tmp_path, moved):
            noted = ownership.noted_ownership(Home.at(tmp_path))
            assert noted and noted.database == moved

    def test_a_kill_between_the_note_and_the_row_is_made_good(
        self, tmp_path: Path, url: str
    ) -> None:
        noted = ownership.Ownership("hom_1", url)
        ownership.note_ownership(Home.at(tmp_path), noted)
        with workspace(tmp_path, url) as ws:
            assert ownership.home_id(ws.db) == "hom_1"

    def test_a_note_that_cannot_be_read_is_said(self, tmp_path: Path) -> None:
        (tmp_path / "database.json").write_text("{")
        with pytest.raises(ConfigError, match=r"database.json.*cannot be read"):
            workspace(tmp_path, "")


def test_a_write_that_stands_still_is_ended_and_done_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a process that is stopped in the midst of it: nobody else could write."""
    monkeypatch.setattr(dialects, "STANDING", 0.2)
    stuck, other = Database(Postgresql(sa.make_url(url))), Database(Postgresql(sa.make_url(url)))
    is_inside, goes_on = threading.Event(), threading.Event()
    attempts: list[str] = []

    def work(connection: sa.Connection) -> None:
        attempts.append(add(connection, "first"))
        is_inside.set()
        assert goes_on.wait(60)
        add(connection, "second")

    answer = stuck.submit(work)
    assert is_inside.wait(60)
    other.write(lambda connection: add(connection, "third"))
    assert names(other) == {"third"}
    goes_on.set()
    answer.result(60)
    assert names(other) == {"first", "second", "third"} and len(attempts) == 2
    stuck.close()
    other.close()


def test_a_write_whose_limit_the_server_does_not_watch_is_ended_by_those_that_wait(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a process that is stopped within the messages of one statement."""
    monkeypatch.setattr(dialects, "STANDING", 0.5)
    other = Database(Postgresql(sa.make_url(url)))
    with psycopg.connect(url) as stuck:
        stuck.execute("SELECT pg_advisory_xact_lock(%s)", [dialects.WRITER_LOCK])
        other.write(lambda connection: add(connection, "third"))
        assert names(other) == {"third"}
        with pytest.raises(psycopg.errors.AdminShutdown):
            stuck.execute("SELECT 1")
    other.close()


def test_a_write_that_goes_on_is_waited_for(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialects, "STANDING", 0.5)
    slow, other = Database(Postgresql(sa.make_url(url))), Database(Postgresql(sa.make_url(url)))
    is_inside = threading.Event()

    def work(connection: sa.Connection) -> None:
        is_inside.set()
        for _ in range(12):
            connection.exec_driver_sql("SELECT pg_sleep(0.2)")
        add(connection, "first")

    answer = slow.submit(work)
    assert is_inside.wait(60)
    other.write(lambda connection: add(connection, "second"))
    assert names(other) == {"first", "second"}
    answer.result(60)
    slow.close()
    other.close()
