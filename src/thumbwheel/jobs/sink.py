"""Collects what a job says and how far it has come, until it is written down."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from thumbwheel.core.home_paths import portable
from thumbwheel.jobs import store
from thumbwheel.jobs.types import EventKind, Job

FLUSH_EVERY = 0.5
"""Seconds between two writes of progress; the end of a job is written at once."""
POINTS = 500
"""About so many points of progress are stored of a job, however long it takes: they become rarer
as it goes on."""
LONGEST_LINE = 2_000


@dataclass
class JobSink:
    """The sink (core/log.py) of one attempt at a job."""

    job: Job
    home: Path
    clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _flushing: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _lines: list[str] = field(default_factory=list)
    _progress: dict[str, Any] | None = None
    _is_new: bool = False
    _n_lines: int = 0
    _point_at: float = 0.0
    _flushed_at: float = 0.0

    def __post_init__(self) -> None:
        self._began = self.moved_at = self.clock()

    moved_at: float = 0.0
    """Monotonic time of the last line or step forward."""

    def line(self, text: str) -> None:
        """Add a line to the log, as the protocol requires; surplus lines and characters are
        dropped."""
        with self._lock:
            self.moved_at = self.clock()
            self._n_lines += 1
            if self._n_lines <= store.MOST_LOG_LINES:
                self._lines.append(text[:LONGEST_LINE])

    def progress(self, what: str, done: float, total: float | None, unit: str, note: str) -> None:
        """Set the progress, as the protocol requires."""
        content = {"what": what, "done": done, "total": total, "unit": unit, "note": note}
        with self._lock:
            if content != self._progress:
                self.moved_at = self.clock()
                self._progress, self._is_new = content, True

    def due(self) -> bool:
        """Return whether there is something to write and the last write is long enough ago."""
        with self._lock:
            waits = bool(self._lines) or self._is_new
        return waits and self.clock() - self._flushed_at >= FLUSH_EVERY

    def flush(
        self, write: Callable[[Callable[[sa.Connection], None]], None], now: datetime, end: bool
    ) -> None:
        """Write the new lines and progress through `write`; if that raises, they are written next
        time. At the `end` the last progress becomes a point of its series."""
        with self._flushing:
            self._flush(write, now, end)

    def _flush(
        self, write: Callable[[Callable[[sa.Connection], None]], None], now: datetime, end: bool
    ) -> None:
        with self._lock:
            lines, progress, is_new = list(self._lines), self._progress, self._is_new
        if not lines and not is_new:
            return
        elapsed = self.clock() - self._began
        is_point = end or elapsed - self._point_at >= max(FLUSH_EVERY, elapsed / POINTS)
        values: dict[str, Any] = {"progressed_at": now}
        if progress is not None:
            progress_row = portable(progress, self.home)
            values["progress"] = progress_row

        def work(connection: sa.Connection) -> None:
            store.require_fence(connection, self.job.id, self.job.fence, changes=True)
            store.set_values(connection, self.job.id, **values)
            for line in portable(lines, self.home):
                store.add_event(connection, self.job.id, EventKind.LOG, {"text": line}, now)
            if is_new and progress is not None and is_point:
                store.add_event(connection, self.job.id, EventKind.PROGRESS, progress_row, now)

        write(work)
        with self._lock:
            del self._lines[: len(lines)]
            if self._progress is progress:
                self._is_new = False
        self._flushed_at = self.clock()
        if is_new and is_point:
            self._point_at = elapsed


class PartSink(JobSink):
    """The sink of a worker that does parts of another worker's job: that one says how far the job
    is."""

    def due(self) -> bool:
        """Return False: nothing is to be written."""
        return False

    def flush(
        self, write: Callable[[Callable[[sa.Connection], None]], None], now: datetime, end: bool
    ) -> None:
        """Write nothing."""
