"""Locks between processes: a file that one process holds until it closes its handle or ends."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from thumbwheel.core.errors import Conflict


def try_lock(path: Path, create: bool = True) -> int | None:
    """Return a handle that holds the lock until all copies of it are closed, or None if another
    process holds the lock. Raises OSError; without `create`, FileNotFoundError for a missing
    file."""
    handle = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def lock(path: Path, what: str, why: str) -> int:
    """Return a handle that holds the lock until all copies of it are closed. Raises Conflict with
    `what` is held and `why` if another process holds the lock."""
    handle = try_lock(path)
    if handle is None:
        raise Conflict(what, why, "Wait for it, or stop it with Ctrl-C there")
    return handle


@contextmanager
def wait_for(path: Path) -> Iterator[None]:
    """Wait until no other process holds the lock, and hold it until the end of the block. Raises
    OSError."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


class FairLock:
    """A lock between processes that goes to whoever waits for it: a process that takes it again and
    again cannot keep the others out.

    It is two files, the lock and the queue before it. Whoever waits for the lock holds the queue
    meanwhile. A process that lets go of the lock and wants it back stops at the queue, until the
    waiting process has had its turn. The kernel wakes who waits, so nobody polls. An object of this
    class is for one thread at a time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._abandoned: _Place | None = None

    @contextmanager
    def hold(
        self, seconds: float, *, notice_after: float, notice: Callable[[], None]
    ) -> Iterator[None]:
        """Hold the lock until the end of the block; call `notice` if getting it takes longer than
        `notice_after` seconds.

        Raises TimeoutError if another process still holds it after `seconds`, OSError if the files
        cannot be opened.
        """
        turn, self._abandoned = self._abandoned, None
        if turn is None or not turn.resume():
            turn = _Place(self.path)
        if not turn.came.wait(min(seconds, notice_after)):
            if seconds > notice_after:
                notice()
            turn.came.wait(max(0.0, seconds - notice_after))
        if not turn.claim():
            self._abandoned = turn
            raise TimeoutError
        try:
            yield
        finally:
            turn.end()


class _Place:
    """A place in the queue.

    The kernel's call that waits for a lock takes no time limit, so a thread makes it. Where the
    caller gives up, that thread goes on waiting, and lets go of the lock as soon as it has it.
    """

    def __init__(self, path: Path) -> None:
        self.came = threading.Event()
        self._mutex = threading.Lock()
        self._abandoned = self._over = False
        self._lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._queue = os.open(path.with_suffix(".queue"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            os.close(self._lock)
            raise
        with suppress(BlockingIOError):
            fcntl.flock(self._queue, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._come()
            return
        threading.Thread(target=self._wait, name="thumbwheel-lock", daemon=True).start()

    def _wait(self) -> None:
        fcntl.flock(self._queue, fcntl.LOCK_EX)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._come()

    def _come(self) -> None:
        _let_go(self._queue)
        with self._mutex:
            self._over = self._abandoned
            if self._over:
                _let_go(self._lock)
            else:
                self.came.set()

    def claim(self) -> bool:
        """Return whether the lock has been acquired; if not, abandon this turn."""
        with self._mutex:
            self._abandoned = not self.came.is_set()
            return not self._abandoned

    def resume(self) -> bool:
        """Wait again for an abandoned turn. Return False if it came and passed while it was
        abandoned."""
        with self._mutex:
            self._abandoned = False
            return not self._over

    def end(self) -> None:
        """Let go of the lock."""
        _let_go(self._lock)


def _let_go(handle: int) -> None:
    # A process that was forked meanwhile has a copy, so closing ours would free nothing.
    fcntl.flock(handle, fcntl.LOCK_UN)
    os.close(handle)
