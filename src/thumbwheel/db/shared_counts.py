"""What the servers of a home on many hosts count together, in their PostgreSQL database: amounts of
a day, and calls in a minute.

The counts of a day are in memory, too, so that whoever asks waits for no database: each server adds
what it counted, and reads what all did, several times a second while somebody asks.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from thumbwheel.db.engine import Database
from thumbwheel.db.refreshed import Refreshed
from thumbwheel.db.schema import day_counts
from thumbwheel.db.write_locks import ROWS, WriteLock

FLUSH_EVERY = 0.25
"""Seconds between two writes of what this server counted."""
CALLS = WriteLock(is_quiet=True)
"""The lock of a counted call: one statement counts it, whatever others write, and no process keeps
the count in memory."""
DAYS = 7
"""Days after which counts are removed."""

CALL = """
INSERT INTO call_windows AS stored (name, minute, calls, previous)
SELECT :name, CAST(floor(:minutes) AS bigint), 1, 0
ON CONFLICT (name) DO UPDATE SET
    calls = CASE WHEN stored.minute = excluded.minute THEN stored.calls + 1 ELSE 1 END,
    previous = CASE
        WHEN stored.minute = excluded.minute THEN stored.previous
        WHEN stored.minute = excluded.minute - 1 THEN stored.calls
        ELSE 0
    END,
    minute = excluded.minute
WHERE 1 + CASE
    WHEN stored.minute = excluded.minute
        THEN stored.calls + stored.previous * (1 - :minutes + floor(:minutes))
    WHEN stored.minute = excluded.minute - 1
        THEN stored.calls * (1 - :minutes + floor(:minutes))
    ELSE 0
END <= :limit
RETURNING 1
"""
"""Counts a call if the last 60 seconds have room for it. Calls of the minute before count by the
share of it that is within these seconds."""


class DayCounts:
    """Amounts by name, of all servers, today (UTC). Thread-safe; start it by `with`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._day = _today()
        self._totals: Counter[str] = Counter()
        """As the database has them."""
        self._pending: Counter[str] = Counter()
        """What this server counted and the database does not have yet."""
        self._flushed_at = -math.inf
        self._refreshed = Refreshed(self._look, "counts of the day")

    def __enter__(self) -> DayCounts:
        self._refreshed.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._refreshed.__exit__()
        self._flush()

    def total(self, name: str) -> float:
        """Return what all servers counted today under this name. What others counted may be missing
        for a second, and for longer where the database does not answer."""
        self._refreshed.ask()
        with self._lock:
            self._turn_day()
            return self._totals[name] + self._pending[name]

    def add(self, amounts: Mapping[str, float]) -> None:
        """Count these amounts."""
        with self._lock:
            self._turn_day()
            self._pending.update(amounts)
        self._refreshed.wake()

    def _turn_day(self) -> None:
        if self._day != _today():
            self._day = _today()
            self._totals.clear()
            self._pending.clear()

    def _look(self) -> None:
        if time.monotonic() > self._flushed_at + FLUSH_EVERY:
            self._flush()
        with self._lock:
            self._turn_day()
            day = self._day
        query = sa.select(day_counts.c.name, day_counts.c.amount).where(day_counts.c.day == day)
        with self._database.read() as connection:
            totals = Counter({row.name: row.amount for row in connection.execute(query)})
        with self._lock:
            if self._day == day:
                self._totals = totals

    def _flush(self) -> None:
        """Add what this server counted to the rows."""
        with self._lock:
            day, pending = self._day, dict(self._pending)
        if not pending:
            return
        self._flushed_at = time.monotonic()
        self._database.write(lambda connection: _add(connection, day, pending), ROWS)
        with self._lock:
            if self._day == day:
                self._pending.subtract(pending)
                self._pending = Counter({name: n for name, n in self._pending.items() if n})
                self._totals.update(pending)


class CallWindows:
    """Calls by name within 60 seconds, of all servers, by the clock of the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def admit(self, name: str, limit: int) -> int | None:
        """Count a call; return None if it is within the limit, else, without counting it, the
        seconds after which the next one is. Waits for the database."""
        return self._database.write(
            lambda connection: count_call(connection, name, limit, _minutes(connection)),
            CALLS,
        )


def _minutes(connection: sa.Connection) -> float:
    """Return the minutes since 1970, by the clock of the database."""
    now = sa.text("SELECT extract(epoch FROM clock_timestamp())::double precision / 60")
    return float(connection.execute(now).scalar_one())


def count_call(connection: sa.Connection, name: str, limit: int, minutes: float) -> int | None:
    """Count a call at this time; see `CallWindows.admit`."""
    values = {"name": name, "minutes": minutes, "limit": limit}
    if connection.execute(sa.text(CALL), values).scalar() is not None:
        return None
    window = sa.text("SELECT minute, calls, previous FROM call_windows WHERE name = :name")
    row = connection.execute(window, {"name": name}).one()
    elapsed = minutes - row.minute
    if row.calls + 1 <= limit:
        # the calls of the minute before leave room in this minute
        free_at = 1 - (limit - 1 - row.calls) / max(1, row.previous)
    else:
        free_at = 2 - (limit - 1) / row.calls
    seconds: float = (free_at - elapsed) * 60
    return max(1, math.ceil(seconds))


def _add(connection: sa.Connection, day: str, amounts: Mapping[str, float]) -> None:
    rows = [{"day": day, "name": name, "amount": amount} for name, amount in amounts.items()]
    statement = insert(day_counts).values(sorted(rows, key=lambda row: str(row["name"])))
    total = day_counts.c.amount + statement.excluded.amount
    key = [day_counts.c.day, day_counts.c.name]
    connection.execute(statement.on_conflict_do_update(index_elements=key, set_={"amount": total}))
    oldest = date.fromisoformat(day) - timedelta(days=DAYS)
    connection.execute(day_counts.delete().where(day_counts.c.day < oldest.isoformat()))


def _today() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d}"
