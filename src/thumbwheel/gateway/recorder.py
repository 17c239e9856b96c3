"""Writes recorded calls down, in a thread of its own, so that a call neither waits nor fails for
it. What is lost is counted.

A line goes to a segment of the inbox (sdk/segment.py), from which the server's drainer makes rows.
What a line says is record.py's.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from thumbwheel.core import log
from thumbwheel.core.errors import public_reason

MOST_CALLS = 4096
"""Calls that may wait to be written down."""
MOST_BYTES = 256 << 20
"""Of their requests and replies together."""
LARGEST_SHARE = 0.75
"""Of what the calls of others leave free: the most that the calls of one share take together, so
that there is room for those of others."""
RED = 60.0
"""Seconds after a loss for which the recorder counts as unhealthy."""
SAY_EVERY = 30.0
"""Seconds between two lines of the log about losses."""


class Spool(Protocol):
    """Where lines go (sdk/segment.py)."""

    def append(self, line: bytes) -> Future[None]:
        """Take a line at once; the future resolves once it is on disk."""

    def close(self) -> None:
        """Write the waiting calls."""


@dataclass(frozen=True)
class Losses:
    """Calls that were answered and are not recorded, since the start."""

    count: int = 0
    last: str = ""
    """Why the last one is not; /health shows it to everybody."""


@dataclass
class PendingCall:
    """A call to be written down. `line` makes its bytes, in the thread of the recorder."""

    line: Callable[[], bytes | None]
    """None where nothing is to be written."""
    size: int
    charge: Callable[[], object] | None = None
    """Charges the budgets, as making the line does, for a call that is lost; None if none count."""
    share: str = ""
    """Whose call it is (access/work_shares.py)."""
    durable: asyncio.Future[bool] | None = field(default=None)
    """Set once it is known whether the line is on disk, where somebody waits for that."""


class Recorder:
    """Start it by `with`. `add` never blocks and never raises."""

    def __init__(self, open_spool: Callable[[], Spool]) -> None:
        self._open_spool = open_spool
        self._spool: Spool | None = None
        self._entries: queue.SimpleQueue[PendingCall | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = self._waiting_bytes = 0
        self._calls_of: Counter[str] = Counter()
        self._bytes_of: Counter[str] = Counter()
        self._losses = Losses()
        self._lost_at = self._stored_at = self._told_at = float("-inf")
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)

    def __enter__(self) -> Recorder:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._entries.put(None)
        self._thread.join()

    @property
    def losses(self) -> Losses:
        """What was lost."""
        return self._losses

    @property
    def waiting(self) -> int:
        """Calls that wait to be written down."""
        return self._waiting

    def problem(self) -> str | None:
        """Return why calls are not being recorded; None if they are."""
        since = time.monotonic() - self._lost_at
        if self._lost_at > self._stored_at and since < RED:
            return f"{self._losses.count} calls are not recorded; the last: {self._losses.last}"
        return None

    def add(self, entry: PendingCall) -> None:
        """Queue a call for writing; if the queue is full, count it as lost."""
        with self._lock:
            is_full = self._waiting >= MOST_CALLS or self._waiting_bytes + entry.size > MOST_BYTES
            is_share_full = self._is_share_full(entry)
            is_taken = not (is_full or is_share_full)
            if is_taken:
                self._count(entry, 1)
        if is_taken:
            self._entries.put(entry)
            return
        if entry.charge is not None:
            with suppress(Exception):  # a call must not fail for being recorded
                entry.charge()
        if is_full:
            self._lose(entry, "more calls wait to be written than the disk takes")
        else:
            why = "more calls of its agents wait to be written than may"
            self._lose(entry, why, is_of_share=True)

    def _is_share_full(self, entry: PendingCall) -> bool:
        """Return whether the calls of the entry's share would take too much of the queue."""
        n_calls, n_bytes = self._calls_of[entry.share], self._bytes_of[entry.share]
        room = LARGEST_SHARE * (MOST_CALLS - (self._waiting - n_calls))
        room_bytes = LARGEST_SHARE * (MOST_BYTES - (self._waiting_bytes - n_bytes))
        return n_calls + 1 > room or n_bytes + entry.size > room_bytes

    def _count(self, entry: PendingCall, sign: int) -> None:
        """Count an entry that waits (1), or does not wait any more (-1)."""
        self._waiting += sign
        self._waiting_bytes += sign * entry.size
        self._calls_of[entry.share] += sign
        self._bytes_of[entry.share] += sign * entry.size
        if not self._calls_of[entry.share]:
            del self._calls_of[entry.share], self._bytes_of[entry.share]

    def _run(self) -> None:
        while (entry := self._entries.get()) is not None:
            self._write(entry)
            with self._lock:
                self._count(entry, -1)
        if self._spool is not None:
            with suppress(OSError):
                self._spool.close()

    def _write(self, entry: PendingCall) -> None:
        try:
            line = entry.line()
            if line is None:
                _settle(entry, True)
                return
            if self._spool is None:
                self._spool = self._open_spool()
            appended_at = time.monotonic()
            written = self._spool.append(line)
        except Exception as error:  # noqa: BLE001 - a call must not fail for being recorded
            self._lose(entry, public_reason(error), error)
            return

        def settle(done: Future[Any]) -> None:
            error = done.exception()
            if error is None:
                # A line from before a loss does not show that the loss is over.
                self._stored_at = appended_at
                _settle(entry, True)
            else:
                self._lose(entry, public_reason(error), error)

        written.add_done_callback(settle)

    def _lose(
        self,
        entry: PendingCall,
        why: str,
        error: BaseException | None = None,
        *,
        is_of_share: bool = False,
    ) -> None:
        """Count a call as lost. /health shows `why`; only the log has the text of the error.
        `is_of_share`: the calls of others are recorded, and the recorder has no problem."""
        now = time.monotonic()
        with self._lock:
            self._losses = Losses(self._losses.count + 1, why)
            if not is_of_share:
                self._lost_at = now
            is_silent = now < self._told_at + SAY_EVERY
            if not is_silent:
                self._told_at = now
        if not is_silent:
            text = why if error is None else f"{type(error).__name__}: {error}"
            log.logger.error("a call is not recorded (%d so far): %s", self._losses.count, text)
        _settle(entry, False)


def _settle(entry: PendingCall, stored: bool) -> None:
    future = entry.durable
    if future is None:
        return

    def resolve() -> None:
        if not future.done():
            future.set_result(stored)

    with suppress(RuntimeError):  # the loop has ended, and nobody waits
        future.get_loop().call_soon_threadsafe(resolve)
