"""The database of a home: readers, and one writer that commits in groups and acknowledges a write
once it is on disk.

Whether the rows are in SQLite or in PostgreSQL, and what follows from that, is in `dialects`.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

import sqlalchemy as sa

from thumbwheel.core.errors import Busy, StorageError
from thumbwheel.db.changes import Changes
from thumbwheel.db.dialects import READER_WAIT, READERS, Backend
from thumbwheel.db.schema import homes, metadata
from thumbwheel.db.write_locks import WHOLE_HOME, WriteLock
from thumbwheel.db.writer import Work, Writer

T = TypeVar("T")

Guard = Callable[[sa.Connection], None]
"""Raises where this process may not write any more."""

ROWS_IN_MEMORY = 1000
"""Rows of a streamed result that are in memory at a time."""


class Database:
    """`read()` opens a connection, `write(work)` runs `work` in a durable transaction."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.guard: Guard | None = None
        """Asked before each piece of work, in the same transaction; what it raises is the answer.

        It must lock the rows that it decides by (`FOR SHARE`): on PostgreSQL others may write
        between the two.
        """
        self.home_id: str | None = None
        """The home whose rows these are, once that is known."""
        self._reader: sa.Engine | None = None
        self._writer: Writer | None = None
        self._guard = threading.Lock()

    @property
    def dialect(self) -> sa.Dialect:
        """The dialect of the database, for rows that are encoded before they are written."""
        with self._guard:
            self._reader = self._reader or self.backend.reader()
        return self._reader.dialect

    def write(self, work: Work[T], lock: WriteLock = WHOLE_HOME) -> T:
        """Run `work(connection)` and return its result once it is on disk. `lock` names what no
        other write may change meanwhile (`write_locks.py`).

        Raises what `work` raised, after rolling it back. Work whose transaction was lost is run
        again.
        """
        return self.submit(work, lock).result()

    def submit(
        self, work: Work[T], lock: WriteLock = WHOLE_HOME, *, wait: bool = True
    ) -> Future[T]:
        """Queue `work` and return the future of its result. It is like `write`, for callers with
        many pieces of work: pieces that wait together share one commit, but each fails alone.

        If the queue is full, block until there is room. Without `wait`, never block, as an event
        loop requires, and raise Busy.
        """
        with self._guard:
            if self._writer is None:
                self._writer = Writer(self.backend, self._require_home)
        return self._writer.submit(_guarded(self.guard, work), lock, wait=wait)

    def guarded(self, guard: Guard) -> Database:
        """Return a view of this database that also calls `guard`. Close this database, not the
        view."""
        with self._guard:
            self._writer = self._writer or Writer(self.backend, self._require_home)
            self._reader = self._reader or self.backend.reader()
        view = copy.copy(self)
        first = self.guard

        def both(connection: sa.Connection) -> None:
            if first is not None:
                first(connection)
            guard(connection)

        view.guard = both
        return view

    def _require_home(self, connection: sa.Connection) -> None:
        """Raise StorageError if the rows were moved since this database was opened; anything
        written after that would be left behind."""
        if self.home_id is None:
            return
        if connection.execute(sa.select(homes.c.id)).scalar() != self.home_id:
            raise StorageError(
                self.backend.name,
                "the rows of this home were moved to another database, or its keys to a cluster, "
                "since this program started",
                "Start it again as `thumbwheel db copy` or `cluster init` said; this step was not "
                "stored",
            )

    def oldest_waiting(self) -> float:
        """Return the seconds since the oldest piece of work that is not yet on disk was submitted;
        0 if there is none."""
        writer = self._writer
        return writer.oldest_waiting() if writer else 0.0

    def waiting(self) -> int:
        """Return the number of submitted pieces of work that have not been started."""
        writer = self._writer
        return writer.waiting() if writer else 0

    @contextmanager
    def read(self, snapshot: str | None = None) -> Iterator[sa.Connection]:
        """Yield a connection that sees one consistent state and cannot write; with a `snapshot`,
        the state of the connection that the snapshot was taken from."""
        with self._guard:
            if self._reader is None:
                self._reader = self.backend.reader()
        with self.backend.errors(), self._reading(self._reader) as connection:
            self.backend.follow(connection, snapshot)
            yield connection

    def _reading(self, reader: sa.Engine) -> sa.Connection:
        """Return a connection for a reader, as soon as one is free. Raises Busy."""
        try:
            return reader.connect()
        except sa.exc.TimeoutError:
            raise Busy(
                self.backend.name,
                f"{READERS} others read it at once, and none of them ended in {READER_WAIT:g} s",
                "Try again in a second",
            ) from None

    def snapshot(self, connection: sa.Connection) -> str | None:
        """Return a name for the state that a connection of `read` sees, for `read` in another
        process while the connection is open; None with SQLite, which has no such names."""
        return self.backend.snapshot(connection)

    def prepare_erasure(self, connection: sa.Connection) -> None:
        """Call in a write before it deletes rows whose bytes are to go too; then call `compact`."""
        self.backend.prepare_erasure(connection)

    def compact(self) -> None:
        """Rewrite the tables without deleted rows, so that no byte of them is left in the files of
        the database.

        Raises StorageError if another program keeps reading it.
        """
        self.backend.compact([table.name for table in metadata.sorted_tables])

    def changes(self) -> Changes:
        """Return an object that tells whether another connection has committed; with PostgreSQL
        not of quiet writes (`write_locks.py`)."""
        with self.read() as connection:
            return Changes(connection.engine, self.backend.watch)

    def close(self) -> None:
        """Finish the submitted work and let go of the connections."""
        if self._writer is not None:
            self._writer.close()
        if self._reader is not None:
            self._reader.dispose()
        self._reader = self._writer = None


def _guarded(guard: Guard | None, work: Work[T]) -> Work[T]:
    if guard is None:
        return work

    def guarded(connection: sa.Connection) -> T:
        guard(connection)
        return work(connection)

    return guarded


def streamed(connection: sa.Connection, query: sa.Select[Any]) -> Iterator[Any]:
    """Yield the rows of `query`, fetched `ROWS_IN_MEMORY` at a time; iterating over the result row
    by row takes about half as long again."""
    result = connection.execute(query, execution_options={"yield_per": ROWS_IN_MEMORY})
    for rows in result.partitions():
        yield from rows


@contextmanager
def writing(backend: Backend) -> Iterator[sa.Engine]:
    """Yield an engine with exclusive write access across all processes, for migrations."""
    with backend.exclusive():
        engine = backend.engine()
        try:
            with backend.errors():
                yield engine
        finally:
            engine.dispose()
