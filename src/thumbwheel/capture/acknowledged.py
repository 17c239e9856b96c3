"""When what came over HTTP is acknowledged: once it is on the disk of this host, or once its rows
are in the database, so that the host may burn (`capture.acknowledge`).

Either way it goes to the spool first. A full spool takes nothing more.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from thumbwheel.capture.inbox import Drainer
from thumbwheel.capture.redact import CaptureConfig
from thumbwheel.sdk.segment import Full, Segment
from thumbwheel.sdk.spool_files import waiting_bytes

LOOK_EVERY = 0.25
"""Seconds between two looks at the size of the spool."""
GIGABYTE = 1e9


class SpoolFull(Full):
    """Too much waits to become rows; this was not accepted."""

    def __init__(self, inbox: Path) -> None:
        super().__init__(inbox)
        self.strerror = "too many rows wait for the database"


class AcknowledgedSegment:
    """A segment of the spool. Its futures resolve once the lines are acknowledged. Thread-safe."""

    def __init__(self, segment: Segment, drainer: Drainer, config: CaptureConfig) -> None:
        self._segment, self._drainer = segment, drainer
        self._waits_for_rows = config.acknowledge == "rows"
        self._most_bytes = config.spool_gb * GIGABYTE
        self._looked_at = float("-inf")
        self._is_full = False

    def append(self, line: bytes) -> Future[None]:
        """Append a line, as `append_all` does."""
        return self.append_all([line])

    def append_all(self, lines: Sequence[bytes]) -> Future[None]:
        """Append lines that are stored together or not at all, as `Segment.append_all` does; the
        future resolves once they are acknowledged, or carries Unstored. Raises Full."""
        self._require_room()
        return self._acknowledged(self._segment.append_all(lines))

    def append_large(self, lines: Sequence[bytes]) -> Future[None]:
        """Append lines as `append_all` does, redacted in the calling thread."""
        self._require_room()
        return self._acknowledged(self._segment.append_large(lines))

    def _require_room(self) -> None:
        """Raise SpoolFull if too much waits to become rows."""
        now = time.monotonic()
        if now > self._looked_at + LOOK_EVERY:
            self._looked_at = now
            self._is_full = waiting_bytes(self._segment.inbox) > self._most_bytes
        if self._is_full:
            raise SpoolFull(self._segment.inbox)

    def _acknowledged(self, spooled: Future[None]) -> Future[None]:
        """Return the future that resolves once spooled lines are acknowledged."""
        if not self._waits_for_rows:
            return spooled
        stored: Future[None] = Future()

        def wait_for_rows(done: Future[None]) -> None:
            error = done.exception()
            if error is None:
                self._drainer.resolve_when_stored(stored)
            elif stored.set_running_or_notify_cancel():
                stored.set_exception(error)

        spooled.add_done_callback(wait_for_rows)
        return stored

    def close(self) -> None:
        """Return when everything that waits for the disk is there."""
        self._segment.close()
