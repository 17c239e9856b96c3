"""One server of a home does what only one may do, and another takes over when it is gone."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.servers.postgres_server import Databases
from tests.waiting import until
from thumbwheel.core.errors import Fenced
from thumbwheel.db.dialects import Postgresql, Sqlite
from thumbwheel.db.engine import Database
from thumbwheel.db.leadership import Leadership
from thumbwheel.db.schema import agents

SERVER = """
import sys, time
import sqlalchemy as sa
from pathlib import Path
from thumbwheel.core.errors import Fenced
from thumbwheel.db.dialects import Postgresql
from thumbwheel.db.engine import Database
from thumbwheel.db.leadership import Leadership
database, states = Database(Postgresql(sa.make_url(sys.argv[1]))), Path(sys.argv[2])
with Leadership(database) as leadership:
    guarded = database.guarded(leadership.guard)
    while not leadership.holds():
        time.sleep(0.01)
    guarded.write(lambda connection: None)
    states.write_text("leads")
    while leadership.holds():
        time.sleep(0.01)
    try:
        guarded.write(lambda connection: None)
    except Fenced:
        states.write_text("fenced")
    time.sleep(600)
"""


@pytest.fixture
def url(databases: Databases) -> Iterator[str]:
    address = databases.migrated()
    yield address
    databases.drop(address)


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    opened = Database(Postgresql(sa.make_url(url)))
    yield opened
    opened.close()


@pytest.fixture
def other_server(url: str, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that leads, and writes what it knows of that into a file."""
    states = tmp_path / "states"
    process = subprocess.Popen([sys.executable, "-c", SERVER, url, str(states)])
    until(lambda: states.exists() and states.read_text() == "leads", 120)
    yield process
    process.kill()
    process.wait()


@pytest.mark.postgresql
def test_of_two_servers_one_leads_and_the_other_follows_it(database: Database) -> None:
    with Leadership(database) as first:
        until(first.holds)
        with Leadership(database) as second:
            database.guarded(first.guard).write(lambda connection: None)
            with pytest.raises(Fenced, match="another server does them now"):
                database.guarded(second.guard).write(lambda connection: None)
            assert not second.holds()
            first.__exit__()
            assert not first.holds()
            until(second.holds)


@pytest.mark.postgresql
@pytest.mark.slow
def test_a_server_that_is_killed_is_followed_at_once(
    database: Database, other_server: subprocess.Popen[bytes]
) -> None:
    with Leadership(database) as heir:
        assert not heir.holds()
        other_server.kill()
        until(heir.holds)


@pytest.mark.postgresql
@pytest.mark.slow
def test_a_server_that_stands_still_writes_nothing_after_it_was_followed(
    database: Database, other_server: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    with Leadership(database) as heir:
        other_server.send_signal(signal.SIGSTOP)
        until(heir.holds)
        other_server.send_signal(signal.SIGCONT)
        until(lambda: (tmp_path / "states").read_text() == "fenced")
        assert heir.holds()
        insert = agents.insert().values(id="agt_1", slug="a", recorded_at=sa.func.now())
        database.guarded(heir.guard).write(lambda connection: connection.execute(insert))


@pytest.mark.sqlite
def test_a_home_with_sqlite_has_one_server(tmp_path: Path) -> None:
    with Leadership(Database(Sqlite(tmp_path / "db", tmp_path / "lock"))) as leadership:
        assert leadership.holds()
