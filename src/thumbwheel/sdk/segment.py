"""`Segment`: how a process writes lines into the inbox of a home, many at once and durable.

Each process appends to a file of its own. A thread writes the lines that wait and makes them
durable with one fsync; then each caller has its answer. Whoever drains the inbox
(capture/inbox.py) renames a file away at any time; the writer sees that under the file's lock,
before it appends again, and begins a new file. So the process may be killed anywhere: an
acknowledged line is on disk, and at most the last line of its file is torn. Not here: what a line
says (`record`).
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from thumbwheel.sdk.disk import is_file_at, sync
from thumbwheel.sdk.spool_files import new_name

LINES, SIZE = 10_000, 64 * 2**20
"""Most lines and bytes that wait; a disk that takes no more must not fill the memory."""

IDLE = 10.0
"""Seconds after which the thread ends where no line comes."""

Waiting = tuple[bytes, "Future[None]"]


class Full(OSError):
    """Too many lines wait for the disk; this one was not accepted."""

    def __init__(self, inbox: Path) -> None:
        super().__init__(errno.ENOBUFS, "too many lines wait for the disk", str(inbox))


class Segment:
    """The file of this process in `inbox`. Safe for threads; after a fork the child makes its
    own."""

    def __init__(self, inbox: Path) -> None:
        self.inbox = inbox
        self._path: Path | None = None
        self._handle = -1
        self._waiting: deque[Waiting] = deque()
        self._size = 0
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def append(self, line: bytes) -> Future[None]:
        """Append `line` (without its end), and return a future that resolves once it is on disk, or
        carries the OSError of the disk.

        Never blocks, so that it may be called on an event loop: raises Full at once if too much
        waits. Raises ValueError for a line with a line end inside.
        """
        return self.append_all([line])

    def append_all(self, lines: Sequence[bytes]) -> Future[None]:
        """Append lines that are stored together or not at all; otherwise as `append`."""
        for line in lines:
            if b"\n" in line:
                raise ValueError(f"{line!r:.80} is more than a line")
        return self._accept(b"\n".join(lines))

    def append_large(self, lines: Sequence[bytes]) -> Future[None]:
        """Append lines as `append_all` does; where lines are prepared, in the calling thread."""
        return self.append_all(lines)

    def _accept(self, data: bytes) -> Future[None]:
        answer: Future[None] = Future()
        if sys.is_finalizing():
            # Threads stand still by now, perhaps with our file and lock: nothing of theirs is used.
            Segment(self.inbox)._store([(self.prepared(data), answer)])
            return answer
        with self._changed:
            if self._closed:
                raise ValueError("the segment is closed")
            if len(self._waiting) >= LINES or self._size + len(data) > SIZE:
                raise Full(self.inbox)
            if self._thread is not None or self._start():
                self._waiting.append((data, answer))
                self._size += len(data)
                self._changed.notify()
                return answer
        self._store([(data, answer)])
        return answer

    def _start(self) -> bool:
        """Start the thread; False where the interpreter ends and starts none any more."""
        thread = threading.Thread(target=self._run, name="thumbwheel-segment", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        self._thread = thread
        return True

    def close(self) -> None:
        """Return when everything that waits is on disk, or refused by it."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()
        self._leave()

    def abandon(self) -> None:
        """Close the file in a forked child: file and thread belong to the parent."""
        if self._handle >= 0:
            os.close(self._handle)

    def _run(self) -> None:
        while group := self._next_group():
            self._store(group)

    def prepared(self, lines: bytes) -> bytes:
        """Return lines as they are written. Runs on the segment's thread, not where they came from:
        a subclass may take its time."""
        return lines

    def _store(self, group: list[Waiting]) -> None:
        pieces: list[bytes] = []
        prepared: list[Waiting] = []
        for data, answer in group:
            try:
                pieces.append(self.prepared(data) + b"\n")
            except Exception as error:  # noqa: BLE001 - the thread must live: others wait for it
                answer.set_exception(error)
            else:
                prepared.append((data, answer))
        if prepared:
            self._store_prepared(b"".join(pieces), prepared)

    def _store_prepared(self, data: bytes, group: list[Waiting]) -> None:
        try:
            self._write(data)
        except Exception as error:  # noqa: BLE001 - the thread must live: others wait for it
            for _, answer in group:
                answer.set_exception(error)
        else:
            for _, answer in group:
                answer.set_result(None)

    def _next_group(self) -> list[Waiting]:
        """Wait for lines and return all of them; an empty list if the thread must end, because the
        segment is closed or nothing came for a while."""
        while True:
            with self._changed:
                if not self._waiting and not self._closed:
                    self._changed.wait(IDLE)
                waiting = list(self._waiting)
                self._waiting.clear()
                self._size = 0
                if not waiting:
                    self._thread = None
                    return []
            group = [item for item in waiting if item[1].set_running_or_notify_cancel()]
            if group:
                return group

    def _write(self, data: bytes) -> None:
        """Append `data`, on disk when this returns. If the disk refuses it, nothing of it remains.
        Raises OSError."""
        path = self._lock()
        start = os.fstat(self._handle).st_size
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(self._handle, view) :]
            os.fsync(self._handle)
            if start == 0:
                sync(self.inbox)  # a new file is on disk only when its name is
        except OSError:
            with suppress(OSError):  # what went wrong first is what the caller hears
                os.ftruncate(self._handle, start)
                if start == 0:
                    path.unlink()
            self._leave()  # nobody knows what it holds after a failed fsync: the next is a new one
            raise
        fcntl.flock(self._handle, fcntl.LOCK_UN)

    def _lock(self) -> Path:
        """Lock this segment's file for appending, or a new one if it is gone, and return its
        path."""
        if self._path is not None:
            fcntl.flock(self._handle, fcntl.LOCK_EX)
            if is_file_at(self._path, self._handle):
                return self._path
        while True:
            self._leave()
            self.inbox.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.inbox.mkdir(mode=0o700, exist_ok=True)
            path = self.inbox / new_name()
            self._handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o600)
            self._path = path
            fcntl.flock(self._handle, fcntl.LOCK_EX)
            if is_file_at(path, self._handle):
                return path

    def _leave(self) -> None:
        if self._path is not None:
            os.close(self._handle)
        self._path, self._handle = None, -1
