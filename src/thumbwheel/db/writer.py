"""The one writer of a process: it commits in groups and answers each caller once the work is on
disk."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import sqlalchemy as sa

from thumbwheel.core.errors import Busy, StorageError
from thumbwheel.db.write_locks import WHOLE_HOME, WriteLock

T = TypeVar("T")
Work = Callable[[sa.Connection], T]

Check = Callable[[sa.Connection], None]

WRITE_LOCK = "write_lock"
"""The execution option of an engine that says what its next transaction locks."""

GROUP = 256
"""Most pieces of work in one commit."""

HOLDING = 0.05
"""Seconds for the work of one commit."""

CONTENDED = 0.02
"""Seconds after which the way to the lock counts as a wait for another process."""

WAITING = 4 * GROUP
"""Most pieces of work that wait."""

ATTEMPTS = 3
"""How often a transaction is tried that a deadlock or a lost connection ends."""


class TransactionLost(StorageError):
    """The transaction ended through no fault of its work: a deadlock, a server that restarted."""

    def __init__(self, what: str, why: str, fix: str, rolled_back: bool = False) -> None:
        """Set `rolled_back` if it is certain that no part of the work was kept, even if it was lost
        during the commit."""
        super().__init__(what, why, fix)
        self.rolled_back = rolled_back


class WritingSide(Protocol):
    """What the writer needs of a database."""

    @property
    def has_many_writers(self) -> bool:
        """Whether a write leaves others free to write meanwhile (`write_locks.py`)."""

    def engine(self) -> sa.Engine:
        """Return an engine that may write."""

    def exclusive(self) -> AbstractContextManager[None]:
        """Keep every other process from writing until the end of the block. Raises StorageError if
        waiting for it takes too long."""

    def errors(self) -> AbstractContextManager[None]:
        """Convert errors of this database into StorageError, or into TransactionLost if the same
        work can succeed when it is run again at once."""


@dataclass(frozen=True)
class _Piece:
    """A piece of work, whom to answer, and when it was submitted (monotonic seconds)."""

    work: Work[Any]
    lock: WriteLock
    answer: Future[Any]
    submitted: float


_Result = tuple[_Piece, Any, Exception | None]
"""A piece, what its work returned, and what it raised."""


class Writer:
    """The thread that owns the writing connection. It takes the waiting pieces of work, runs each
    in a savepoint, commits once and answers every caller. Work of a transaction that was lost is
    run again.

    A commit takes work for `HOLDING` seconds, and the rest waits for the next one, so that the
    writers of other processes get their turn. On a database with many writers a commit takes only
    work of the same lock, so that nobody waits for one lock while holding another.
    """

    def __init__(self, database: WritingSide, check: Check) -> None:
        """Start the thread that writes. It calls `check` in each transaction before any work; if
        `check` raises, every piece of work of that transaction fails with that error."""
        self._database, self._check = database, check
        self._waiting: deque[_Piece] = deque()
        self._running: list[_Piece] = []
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="thumbwheel-writer", daemon=True)
        self._thread.start()

    def submit(
        self, work: Work[T], lock: WriteLock = WHOLE_HOME, *, wait: bool = True
    ) -> Future[T]:
        """Queue `work` and return the future of its result. If `WAITING` pieces are queued already,
        wait for room, or without `wait` raise Busy at once."""
        if not self._database.has_many_writers:
            lock = WHOLE_HOME
        piece = _Piece(work, lock, Future(), time.monotonic())
        with self._changed:
            while len(self._waiting) >= WAITING and not self._closed:
                if not wait:
                    raise Busy(
                        "a write",
                        f"{WAITING} others wait for the database already",
                        "Send it again in a second",
                    )
                self._changed.wait()
            if self._closed:
                raise RuntimeError("the writer is closed")
            self._waiting.append(piece)
            self._changed.notify_all()
        return piece.answer

    def oldest_waiting(self) -> float:
        """Return the seconds since the oldest unfinished piece of work was submitted; 0 if there is
        none."""
        with self._changed:
            oldest = [*self._running[:1], *itertools.islice(self._waiting, 1)]
        now = time.monotonic()
        return max((now - piece.submitted for piece in oldest), default=0.0)

    def waiting(self) -> int:
        """Return the number of submitted pieces of work that have not been started."""
        return len(self._waiting)

    def close(self) -> None:
        """Finish the submitted work and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        engine = self._database.engine()
        while self._wait_for_work():
            self._commit(engine)
        with suppress(StorageError), self._database.exclusive():
            engine.dispose()  # closing may checkpoint, so it counts as writing

    def _wait_for_work(self) -> bool:
        """Wait for work. Return True once there is some, False once the writer is closed and none
        is left."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            return bool(self._waiting)

    def _commit(self, engine: sa.Engine) -> None:
        began = time.monotonic()
        results: list[_Result] | None = None
        try:
            for attempt in range(1, ATTEMPTS + 1):
                results = self._transaction(engine, began, is_last=attempt == ATTEMPTS)
                if results is not None:
                    break
        except Exception as error:  # noqa: BLE001 - the commit failed for every caller of the group
            if not self._running:  # nobody had a turn: it failed for all who waited for this one
                lock = self._next_lock()
                while self._next(began, lock):
                    pass
            results = [(piece, None, error) for piece in self._running]
        with self._changed:
            self._running = []
        for piece, result, failure in results or []:
            if failure is None:
                piece.answer.set_result(result)
            else:
                piece.answer.set_exception(failure)

    def _transaction(self, engine: sa.Engine, began: float, is_last: bool) -> list[_Result] | None:
        """Return the results of one committed transaction, or None if it was lost and can be run
        again. Raises StorageError if it is unknown whether a commit was kept."""
        is_committing = False
        lock = self._next_lock()
        try:
            with (
                self._database.exclusive(),
                self._database.errors(),
                engine.execution_options(**{WRITE_LOCK: lock}).begin() as connection,
            ):
                self._check(connection)
                # after a lost transaction the same pieces
                pieces = list(self._running) or self._group(began, lock)
                results = [
                    (piece, *_attempt(connection, self._database, piece.work)) for piece in pieces
                ]
                is_committing = True
        except TransactionLost as error:
            if is_committing and not error.rolled_back:
                raise StorageError(
                    error.what,
                    f"{error.why} during the commit, so it is unknown whether this step was stored",
                    "Run the same command again: it recognises stored rows",
                ) from None
            if is_last:
                raise
            return None
        return results

    def _next_lock(self) -> WriteLock:
        """Return the lock of the pieces that run, or else of the one that waited longest."""
        with self._changed:
            for piece in itertools.chain(self._running, self._waiting):
                return piece.lock
        return WHOLE_HOME

    def _group(self, began: float, lock: WriteLock) -> Iterator[_Piece]:
        """Yield the pieces of one commit, all with this lock: at most `GROUP`, and after the first
        only pieces that would end within `HOLDING` seconds if each took as long as the one before.

        Pieces submitted while another process writes join the group. Otherwise the first ones start
        at once, and the next ones gather while those are written to disk.
        """
        now = time.monotonic()
        end = now + HOLDING
        submitted_before = now if now - began > CONTENDED else began
        for _ in range(GROUP):
            piece = self._next(submitted_before, lock)
            if piece is None:
                return
            yield piece
            previous, now = now, time.monotonic()
            if now + (now - previous) > end:
                return

    def _next(self, submitted_before: float, lock: WriteLock) -> _Piece | None:
        """Return the piece with this lock that has waited longest, now counted as running, or None
        if all such pieces were submitted after `submitted_before`."""
        with self._changed:
            while True:
                piece = next((piece for piece in self._waiting if piece.lock == lock), None)
                if piece is None or piece.submitted > submitted_before:
                    return None
                self._waiting.remove(piece)
                self._changed.notify_all()
                if piece.answer.set_running_or_notify_cancel():
                    self._running.append(piece)
                    return piece


def _attempt(
    connection: sa.Connection, database: WritingSide, work: Work[Any]
) -> tuple[Any, Exception | None]:
    """Run `work` in a savepoint and return (result, None), or (None, the exception that it raised).

    Raises StorageError if the whole transaction is lost. It leaves the savepoint alone then: a full
    disk makes SQLite roll everything back, and touching the savepoint would hide the reason.
    """
    savepoint = connection.begin_nested()
    try:
        with database.errors():
            result = work(connection)
            savepoint.commit()
    except StorageError:
        raise
    except Exception as error:  # noqa: BLE001 - one caller's failure is that caller's answer
        savepoint.rollback()
        return None, error
    return result, None
