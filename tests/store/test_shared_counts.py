"""What the servers of a home on many hosts count together."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from tests.servers.postgres_server import Databases
from tests.waiting import until
from thumbwheel.db import shared_counts
from thumbwheel.db.dialects import Postgresql
from thumbwheel.db.engine import Database
from thumbwheel.db.schema import day_counts
from thumbwheel.db.shared_counts import CallWindows, DayCounts, count_call

pytestmark = pytest.mark.postgresql


@pytest.fixture
def two(databases: Databases) -> Iterator[tuple[Database, Database]]:
    """The database as two servers open it."""
    url = databases.migrated()
    backend = Postgresql(sa.make_url(url))
    first, second = Database(backend), Database(backend)
    yield first, second
    first.close()
    second.close()
    databases.drop(url)


def test_calls_of_the_minute_before_count_by_their_share(two: tuple[Database, Database]) -> None:
    first, second = two

    def call(database: Database, minutes: float) -> int | None:
        return database.write(lambda connection: count_call(connection, "a", 4, minutes))

    assert [call(first, 100.0), call(second, 100.2), call(first, 100.4)] == [None] * 3
    assert call(second, 100.9) is None
    assert call(first, 100.9) == 21  # at 101.25 three of the four are within the minute
    assert call(second, 101.2) == 3
    assert call(second, 101.25) is None
    assert call(first, 101.25) == 15
    assert call(first, 104.0) is None  # and nothing of what is long ago
    assert first.write(lambda connection: count_call(connection, "b", 4, 101.25)) is None


def test_of_calls_at_once_no_more_are_let_through(two: tuple[Database, Database]) -> None:
    """All within one minute: the clock is that of the test."""
    admitted: list[int | None] = []

    def call(database: Database) -> None:
        for _ in range(20):
            work = database.write(lambda connection: count_call(connection, "a", 10, 100.5))
            admitted.append(work)

    threads = [threading.Thread(target=call, args=(database,)) for database in two * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(admitted) == 80 and admitted.count(None) == 10
    assert CallWindows(two[0]).admit("b", 1) is None


def test_what_one_counted_the_other_sees_and_a_restart_keeps(
    two: tuple[Database, Database],
) -> None:
    with DayCounts(two[0]) as here, DayCounts(two[1]) as there:
        here.add({"tokens": 10, "cost": 0.5})
        here.add({"tokens": 5})
        assert here.total("tokens") == 15
        until(lambda: there.total("tokens") == 15)
        there.add({"tokens": 1})
        until(lambda: here.total("tokens") == 16)
        here.add({"tokens": 100})
    with DayCounts(two[0]) as restarted:
        assert restarted.total("tokens") == 116 and restarted.total("cost") == 0.5
        assert restarted.total("other") == 0


def test_another_day_begins_with_nothing_and_old_ones_go(
    two: tuple[Database, Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    with DayCounts(two[0]) as counts:
        counts.add({"tokens": 10})
        until(lambda: days(two[0]) != [])
        monkeypatch.setattr(shared_counts, "_today", lambda: "2999-01-01")
        assert counts.total("tokens") == 0
        counts.add({"tokens": 3})
        until(lambda: days(two[0]) == ["2999-01-01"])
        assert counts.total("tokens") == 3


def days(database: Database) -> list[str]:
    with database.read() as connection:
        return [*connection.execute(sa.select(day_counts.c.day)).scalars()]
