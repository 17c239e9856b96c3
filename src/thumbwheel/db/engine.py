"""Connections to the database: readers, and one writer that commits in groups and acknowledges a
write once it is on disk.

SQLite runs in WAL mode with `synchronous=FULL`. Exactly one connection writes at a time, over all
processes: the writer holds the home's `writer.lock` while it writes. (Before SQLite 3.51.3, two
connections that write and checkpoint at the same instant can corrupt a WAL file:
sqlite.org/wal.html#walresetbug.) Readers open the file read-only, so closing them checkpoints
nothing.
"""

from __future__ import annotations

import fcntl
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DatabaseError, OperationalError

from thumbwheel.core import log
from thumbwheel.core.errors import StorageError

T = TypeVar("T")
Work = Callable[[sa.Connection], T]

GROUP = 256
"""Most pieces of work in one commit."""

ROWS_IN_MEMORY = 1000
"""Rows of a streamed result that are in memory at a time."""

SILENT_SECONDS = 2.0
"""Seconds of waiting for another process after which the user is told."""


class Database:
    """One SQLite file: `read()` opens a connection, `write(work)` runs `work` in a durable
    transaction."""

    def __init__(self, path: Path, lock: Path, *, wait: float = 30.0) -> None:
        self.path, self._lock, self._wait = path, lock, wait
        self._reader: sa.Engine | None = None
        self._writer: _Writer | None = None
        self._guard = threading.Lock()

    def write(self, work: Work[T]) -> T:
        """Run `work(connection)` and return its result once it is on disk.

        Raises what `work` raised, after rolling it back.
        """
        return self.submit(work).result()

    def submit(self, work: Work[T]) -> Future[T]:
        """Like `write`, for callers with many pieces of work: those that wait together share one
        commit, but each fails alone."""
        with self._guard:
            if self._writer is None:
                self._writer = _Writer(self.path, self._lock, self._wait)
        return self._writer.submit(work)

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A connection that sees one consistent state and cannot write."""
        with self._guard:
            if self._reader is None:
                self._reader = _engine(self.path, "ro", self._wait)
        with _storage_errors(self.path), self._reader.connect() as connection:
            yield connection

    def close(self) -> None:
        """Finish the submitted work and close the file."""
        if self._writer is not None:
            self._writer.close()
        if self._reader is not None:
            self._reader.dispose()
        self._reader = self._writer = None


def streamed(connection: sa.Connection, query: sa.Select[Any]) -> Iterator[Any]:
    """The rows of `query`, `ROWS_IN_MEMORY` at a time; iterating over the result row by row takes
    about half as long again."""
    result = connection.execute(query, execution_options={"yield_per": ROWS_IN_MEMORY})
    for rows in result.partitions():
        yield from rows


def _engine(path: Path, mode: str, wait: float) -> sa.Engine:
    def connect() -> sqlite3.Connection:
        if mode != "ro":
            # Create the file with private permissions first: SQLite's log and index inherit them.
            # If that fails, SQLite's own message says it better.
            with suppress(OSError):
                os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        return sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=wait,
            isolation_level=None,
            check_same_thread=False,
        )

    engine = sa.create_engine("sqlite://", creator=connect, poolclass=sa.pool.QueuePool)

    @sa.event.listens_for(engine, "connect")
    def settings(connection: sqlite3.Connection, _: Any) -> None:
        if mode != "ro":
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        message = f"waiting for another program that holds {str(path)!r}, at most {wait:g} s"
        with _said_after_delay(message):
            connection.exec_driver_sql("BEGIN" if mode == "ro" else "BEGIN IMMEDIATE")

    return engine


@contextmanager
def writing(path: Path, lock: Path, wait: float = 30.0) -> Iterator[sa.Engine]:
    """An engine with exclusive write access over all processes, for the writer and migrations."""
    with _locked(lock, wait):
        engine = _engine(path, "rwc", wait)
        try:
            with _storage_errors(path):
                yield engine
        finally:
            engine.dispose()


def compact(path: Path, lock: Path, wait: float = 30.0) -> None:
    """Rewrite the database without its free pages and empty its log, so that no byte of what was
    deleted is left in the files.

    Raises StorageError if another program keeps reading it.
    """
    with writing(path, lock, wait) as engine, closing(engine.raw_connection()) as connection:
        raw: Any = connection.driver_connection
        raw.execute("PRAGMA secure_delete=ON")
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        raw.execute("VACUUM")
        busy = raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    if busy:
        why = "another program reads it, so its log cannot be emptied"
        raise StorageError(
            f"database {str(path)!r}", why, "Close that program, then run the same command again"
        )


@contextmanager
def _locked(path: Path, wait: float) -> Iterator[None]:
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StorageError(
            f"lock file {str(path)!r}",
            error.strerror or str(error),
            "Make the home writable, or name another with --home",
        ) from None
    try:
        home = str(path.parent)
        message = f"waiting for another process that writes to {home!r}, at most {wait:g} s"
        with _said_after_delay(message):
            _acquire(handle, path, time.monotonic() + wait)
        yield
    finally:
        os.close(handle)


@contextmanager
def _said_after_delay(text: str) -> Iterator[None]:
    """Print `text` once if the block takes longer than `SILENT_SECONDS`."""
    timer = threading.Timer(SILENT_SECONDS, log.say, (text,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _acquire(handle: int, path: Path, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise StorageError(
                    f"home {str(path.parent)!r}",
                    "another process is writing to it and did not finish",
                    "Wait for that process or stop it (fuser shows who holds writer.lock), then "
                    "try again",
                ) from None
            time.sleep(0.01)


@contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    """Turn errors of SQLite into a StorageError that says what to do."""
    try:
        yield
    except (OperationalError, sqlite3.OperationalError) as error:
        raise _storage_error(path, str(getattr(error, "orig", None) or error)) from error
    except (DatabaseError, sqlite3.DatabaseError) as error:
        if "malformed" not in str(error) and "not a database" not in str(error):
            raise
        raise StorageError(
            f"database {str(path)!r}",
            "the file is damaged or no database",
            "Restore it from a backup",
        ) from error


def _storage_error(path: Path, reason: str) -> StorageError:
    fixes = {
        "locked": (
            "it is locked by another program",
            "Close the program that has it open, then try again",
        ),
        "full": (
            "the disk is full; nothing of this step was kept",
            "Free some space, then run the same command again",
        ),
        "disk I/O": (
            "the disk refused to read or write",
            "Check the disk (and its free space), then run the same command again",
        ),
        "unable to open": ("it cannot be opened", "Check that the home exists and may be written"),
        "readonly": (
            "it may not be written",
            "Make the home writable, or name another with --home",
        ),
    }
    why, fix = next(
        (fixes[key] for key in fixes if key in reason),
        (reason, "Run the command again; if it stays, report it"),
    )
    return StorageError(f"database {str(path)!r}", why, fix)


class _Writer:
    """The thread that owns the writing connection. It takes the waiting pieces of work, runs each
    in a savepoint, commits once and answers every caller."""

    def __init__(self, path: Path, lock: Path, wait: float) -> None:
        self._path, self._lock, self._wait = path, lock, wait
        self._waiting: queue.Queue[tuple[Work[Any], Future[Any]] | None] = queue.Queue(
            maxsize=4 * GROUP
        )
        self._thread = threading.Thread(target=self._run, name="thumbwheel-writer", daemon=True)
        self._thread.start()

    def submit(self, work: Work[T]) -> Future[T]:
        answer: Future[T] = Future()
        self._waiting.put((work, answer))
        return answer

    def close(self) -> None:
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        engine = _engine(self._path, "rwc", self._wait)
        open_ = True
        while open_:
            group, open_ = self._next_group()
            if group:
                self._commit(engine, group)
        with suppress(StorageError), _locked(self._lock, self._wait):
            engine.dispose()  # closing may checkpoint, so it counts as writing

    def _next_group(self) -> tuple[list[tuple[Work[Any], Future[Any]]], bool]:
        """The waiting work, at most `GROUP` pieces; False once the writer is to close."""
        group, item = [], self._waiting.get()
        while item is not None:
            group.append(item)
            if len(group) == GROUP:
                return group, True
            try:
                item = self._waiting.get_nowait()
            except queue.Empty:
                return group, True
        return group, False

    def _commit(self, engine: sa.Engine, group: list[tuple[Work[Any], Future[Any]]]) -> None:
        answers: list[tuple[Future[Any], Any, Exception | None]] = []
        try:
            with (
                _locked(self._lock, self._wait),
                _storage_errors(self._path),
                engine.begin() as connection,
            ):
                for work, answer in group:
                    answers.append((answer, *_attempt(connection, self._path, work)))
        except Exception as error:  # noqa: BLE001 - the commit failed for every caller of the group
            for _, answer in group:
                answer.set_exception(error)
            return
        for answer, result, failure in answers:
            if failure is None:
                answer.set_result(result)
            else:
                answer.set_exception(failure)


def _attempt(
    connection: sa.Connection, path: Path, work: Work[Any]
) -> tuple[Any, Exception | None]:
    """(result, None) or (None, what the work raised).

    Raises StorageError if the whole transaction is lost. It leaves the savepoint alone then: a full
    disk makes SQLite roll everything back, and touching the savepoint would hide the reason.
    """
    savepoint = connection.begin_nested()
    try:
        with _storage_errors(path):
            result = work(connection)
            savepoint.commit()
    except StorageError:
        raise
    except Exception as error:  # noqa: BLE001 - one caller's failure is that caller's answer
        savepoint.rollback()
        return None, error
    return result, None
