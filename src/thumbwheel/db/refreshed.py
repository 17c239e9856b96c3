"""What is kept in memory of the rows, and is never older than `STALE` while somebody asks.

While it is asked, a thread looks every 40 ms whether anything was written; who asks and finds the
last look too long ago has it look at once, and waits for that at most `PATIENCE`. Where the
database does not answer, what was read last goes on to hold.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from thumbwheel.core import log
from thumbwheel.core.errors import public_reason

EVERY = 0.04
"""Seconds between two looks."""
QUIET = 1.0
"""Seconds without a question after which the thread looks only as often."""
STALE = 0.045
"""Seconds after a look in which a question relies on it."""
PATIENCE = 0.3
"""Seconds that a question waits for a look; an event loop stands still meanwhile."""
HANGING = 2.0
"""Seconds of a look after which the database counts as one that does not answer."""


class Refreshed:
    """Calls `look`, which reads the rows anew where that is needed; start it by `with`. `what` is
    read, for the log."""

    def __init__(self, look: Callable[[], None], what: str, every: float = EVERY) -> None:
        self._look, self._what, self._every = look, what, every
        self._lock = threading.Lock()
        self._checked_at = self._asked_at = float("-inf")
        self._look_began: float | None = None
        self._wanted, self._looked, self._ended = (threading.Event() for _ in range(3))
        self._thread = threading.Thread(target=self._run, name=what, daemon=True)
        self._failure: str | None = None

    @property
    def problem(self) -> str | None:
        """Why what is in memory may be old; None where it is not."""
        began = self._look_began
        seconds = time.monotonic() - began if began is not None else 0.0
        if seconds > HANGING:
            return f"the database has not answered for {seconds:.0f} s"
        return self._failure

    def __enter__(self) -> Refreshed:
        self.refresh()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._wanted.set()
        self._thread.join()

    def ask(self, age: float = STALE) -> bool:
        """Call before using the data in memory. It waits, for at most PATIENCE seconds, for a look
        if the last one is older than `age` seconds and no look hangs or has failed. Return whether
        there was such a look: with age 0 the data then include everything written before."""
        self._asked_at = now = time.monotonic()
        began = self._look_began
        is_hanging = began is not None and now - began > PATIENCE / 2
        if is_hanging:
            return False
        while not self._is_recent(now, age) and time.monotonic() < now + PATIENCE:
            self._looked.clear()
            self._wanted.set()
            # a look that ends meanwhile may have begun too long ago: then the next one counts
            if not self._is_recent(now, age):
                self._looked.wait(now + PATIENCE - time.monotonic())
        return now - self._checked_at <= age

    def wake(self) -> None:
        """Have the thread look soon, without waiting for it."""
        self._wanted.set()

    def _is_recent(self, now: float, age: float) -> bool:
        """Return whether the last look is recent enough, or has failed."""
        return now - self._checked_at <= age or self._failure is not None

    def refresh(self) -> None:
        """Look now. Never raises, and returns at once if a look is running, perhaps hanging; the
        data in memory then stay unchanged."""
        if not self._lock.acquire(blocking=False):
            return
        self._look_began = now = time.monotonic()
        try:
            self._look()
            self._checked_at = now
            self._failure = None
        except Exception as error:  # noqa: BLE001 - the server goes on by what it has
            if self._failure is None:
                log.logger.error("the %s cannot be read: %s", self._what, error)
            # /health answers without a key
            self._failure = f"the {self._what} cannot be read: {public_reason(error)}; see the log"
        finally:
            self._look_began = None
            self._looked.set()
            self._lock.release()

    def _run(self) -> None:
        pause = self._every
        while not self._ended.is_set():
            self._wanted.wait(pause)
            self._wanted.clear()
            self.refresh()
            is_asked = time.monotonic() - self._asked_at < QUIET
            pause = self._every if is_asked else max(self._every, QUIET)
