"""Which server of a home does what only one of them may do: experiments, retention.

With PostgreSQL it is the server whose session holds an advisory lock. The session lives in a thread
that asks the database for a sign of life every second or so. PostgreSQL ends a session that is
silent for `SILENT` seconds, as that of a host that was cut off or stopped, and another server takes
the lock at its next try. Well before that the silent server has ceased to believe in its own lock.
A home with SQLite has one server, or for a moment also its successor, as ever.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from contextlib import suppress

import sqlalchemy as sa

from thumbwheel.core import log
from thumbwheel.core.errors import Fenced
from thumbwheel.db.dialects import Postgresql
from thumbwheel.db.engine import Database

EVERY, BELIEVED, SILENT = 1.5, 4.0, 7.0
"""Seconds between two signs of life; after which one no longer counts for this server; and after
which the database ends the session. SILENT + EVERY is when another server has taken over."""
LOCK = int.from_bytes(hashlib.sha256(b"thumbwheel leader").digest()[:8], "big", signed=True)
HOLDER = """
SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND ((classid::bigint << 32) | objid::bigint) = {number}
"""


def holder_of(connection: sa.Connection, number: int) -> int | None:
    """Return the id, on the server, of the session that has an advisory lock; None if none has."""
    pid: int | None = connection.exec_driver_sql(HOLDER.format(number=number)).scalar()
    return pid


class Leadership:
    """Use as a context manager."""

    def __init__(self, database: Database) -> None:
        backend = database.backend
        self._backend = backend if isinstance(backend, Postgresql) else None
        self._session: sa.Connection | None = None
        self._pid: int | None = None
        """Of the session that holds the lock, on the server of the database."""
        self._alive_at = -math.inf
        self._complained = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="leadership", daemon=True)

    def __enter__(self) -> Leadership:
        if self._backend is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._backend is not None:
            self._thread.join()

    def holds(self) -> bool:
        """Return whether this server is the one, as of less than `BELIEVED` seconds ago."""
        if self._backend is None:
            return True
        return self._pid is not None and time.monotonic() - self._alive_at < BELIEVED

    def guard(self, connection: sa.Connection) -> None:
        """Raise Fenced in a write if another server may be the one by now; for
        `Database.guarded`."""
        if self._backend is None:
            return
        holder = holder_of(connection, LOCK)
        if holder is None or holder != self._pid:
            raise Fenced(
                "the experiments and the retention of this home",
                "another server does them now",
                "Nothing is to be done: this server goes on to answer calls",
            )

    def _run(self) -> None:
        assert self._backend is not None  # noqa: S101 - the thread runs for PostgreSQL only
        engine = self._backend.session_engine()
        try:
            while True:
                try:
                    self._beat(engine)
                    self._complained = False
                except Exception as error:  # noqa: BLE001 - the next try may find the database again
                    self._lose()
                    if not self._complained:
                        log.logger.warning("leadership of this home: %s", error)
                    self._complained = True
                if self._ended.wait(EVERY):
                    return
        finally:
            self._lose()
            engine.dispose()

    def _beat(self, engine: sa.Engine) -> None:
        """Give a sign of life, or try to take the lock."""
        began = time.monotonic()
        if self._session is None:
            self._session = engine.connect()
            self._session.exec_driver_sql(f"SET idle_session_timeout = '{SILENT:g}s'")
        if self._pid is None:
            row = self._session.exec_driver_sql(
                f"SELECT pg_try_advisory_lock({LOCK}), pg_backend_pid()"
            ).one()
            if row[0]:
                self._alive_at = began
                self._pid = int(row[1])
                log.say("this server does the experiments and the retention of the home")
            return
        self._session.exec_driver_sql("SELECT 1")
        # counted from before the question: the database counts from after it
        self._alive_at = began

    def _lose(self) -> None:
        """Close the session, and the lock with it."""
        session, self._session, self._pid = self._session, None, None
        if session is not None:
            with suppress(Exception):
                session.invalidate()
            with suppress(Exception):
                session.close()
