"""Connections: readers that never checkpoint, and the group-commit writer, whose answer means "on
disk".

SQLite in WAL mode with `synchronous=FULL`. Exactly one connection writes at a time, over all
processes: the writer holds the home's `writer.lock` while it writes (two connections that write and
checkpoint at the same instant can corrupt a WAL file before SQLite 3.51.3:
sqlite.org/wal.html#walresetbug). Readers open the file read-only, so that closing them checkpoints
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

HELD = 1000
"""Rows of a streamed result in memory."""

SILENT = 2.0
"""Seconds of waiting for somebody else after which the user is told."""


class Database:
    """One SQLite file. `read()` gives a connection, `write(work)` runs `work` in a durable
    transaction."""

    def __init__(self, path: Path, lock: Path, *, wait: float = 30.0) -> None:
        self.path, self._lock, self._wait = path, lock, wait
        self._reader: sa.Engine | None = None
        self._writer: _Writer | None = None
        self._guard = threading.Lock()

    def write(self, work: Work[T]) -> T:
        """Run `work(connection)` and return its result once it is on disk; raises what `work`
        raised, with nothing kept of it."""
        return self.submit(work).result()

    def submit(self, work: Work[T]) -> Future[T]:
        """Like `write`, for callers that send many: works that wait together share one commit and
        fail apart."""
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
        with _explained(self.path), self._reader.connect() as connection:
            yield connection

    def close(self) -> None:
        """Finish what was submitted and let go of the file."""
        if self._writer is not None:
            self._writer.close()
        if self._reader is not None:
            self._reader.dispose()
        self._reader = self._writer = None


def streamed(connection: sa.Connection, query: sa.Select[Any]) -> Iterator[Any]:
    """The rows of `query`, `HELD` of them in memory at a time; row by row the library takes about
    half as long again."""
    for some in connection.execute(query, execution_options={"yield_per": HELD}).partitions():
        yield from some


def _engine(path: Path, mode: str, wait: float) -> sa.Engine:
    def connect() -> sqlite3.Connection:
        if mode != "ro":
            with suppress(OSError):  # SQLite says it better
                os.close(
                    os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
                )  # its log and index take the rights of the file
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
        with _told(f"waiting for another program that holds {str(path)!r}, at most {wait:g} s"):
            connection.exec_driver_sql("BEGIN" if mode == "ro" else "BEGIN IMMEDIATE")

    return engine


@contextmanager
def writing(path: Path, lock: Path, wait: float = 30.0) -> Iterator[sa.Engine]:
    """An engine that may write, while nobody else in any process may; for the writer and for
    migrations."""
    with _locked(lock, wait):
        engine = _engine(path, "rwc", wait)
        try:
            with _explained(path):
                yield engine
        finally:
            engine.dispose()


def compact(path: Path, lock: Path, wait: float = 30.0) -> None:
    """Write the database anew without its free pages and empty its log: what was deleted is then in
    no byte of the files.

    Raises StorageError where another program reads it all the while.
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
        with _told(
            f"waiting for another process that writes to {str(path.parent)!r}, at most {wait:g} s"
        ):
            _acquire(handle, path, time.monotonic() + wait)
        yield
    finally:
        os.close(handle)


@contextmanager
def _told(text: str) -> Iterator[None]:
    """Say `text` once when what happens inside takes longer than `SILENT` seconds."""
    timer = threading.Timer(SILENT, log.say, (text,))
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
def _explained(path: Path) -> Iterator[None]:
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
    """The thread that owns the writing connection: takes what waits, runs each piece in a
    savepoint, commits once, answers."""

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
            group, open_ = self._group()
            if group:
                self._commit(engine, group)
        with suppress(StorageError), _locked(self._lock, self._wait):
            engine.dispose()  # closing may checkpoint, so it counts as writing

    def _group(self) -> tuple[list[tuple[Work[Any], Future[Any]]], bool]:
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
                _explained(self._path),
                engine.begin() as connection,
            ):
                for work, answer in group:
                    answers.append((answer, *_attempt(connection, self._path, work)))
        except Exception as error:  # noqa: BLE001 - the commit failed, so every caller of the group must hear it
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
    """(result, None) or (None, what the work raised); raises StorageError where the whole
    transaction is lost.

    The savepoint is left alone then: a full disk makes SQLite roll everything back, and asking for
    the savepoint would hide why.
    """
    savepoint = connection.begin_nested()
    try:
        with _explained(path):
            result = work(connection)
            savepoint.commit()
    except StorageError:
        raise
    except Exception as error:  # noqa: BLE001 - one caller's failure is that caller's answer
        savepoint.rollback()
        return None, error
    return result, None
