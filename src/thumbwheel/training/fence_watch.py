"""Ends what is computed here for a run once nobody can say that the run still has its fence.

A host that was cut off cannot be told that another one goes on in its place. So it asks, and stops
by itself after a lease without an answer. Who asks may hang in a connection that is gone;
therefore somebody else watches the clock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from thumbwheel.core import log

ASKS = 4
"""Times in a lease that the fence is asked for."""
LOOKS = 20
"""Looks at the clock in a lease."""


class FenceWatch:
    """Calls `stop` with a reason, once, when the fence is lost. Its threads are daemons."""

    def __init__(
        self, has_fence: Callable[[], bool], lease: float, stop: Callable[[str], None]
    ) -> None:
        self._has_fence, self._lease, self._stop = has_fence, lease, stop
        self._answered_at = time.monotonic()
        self._ended = threading.Event()

    def start(self) -> None:
        """Begin to ask and to watch."""
        for work in (self._ask, self._watch):
            threading.Thread(target=work, name="fence", daemon=True).start()

    def end(self) -> None:
        """Stop watching: nothing is computed any more."""
        self._ended.set()

    def _ask(self) -> None:
        while not self._ended.wait(self._lease / ASKS):
            # an answer is as old as its question
            asked_at = time.monotonic()
            try:
                has_fence = self._has_fence()
            except Exception as error:  # noqa: BLE001 - whatever the driver raises is no answer
                log.say(f"the fence of the run cannot be asked for: {error}")
                continue
            if not has_fence:
                self._end_all("another process goes on with the run")
                return
            self._answered_at = asked_at

    def _watch(self) -> None:
        while not self._ended.wait(self._lease / LOOKS):
            if time.monotonic() - self._answered_at > self._lease:
                self._end_all(f"nobody said for {self._lease:g} s that the run still has its fence")
                return

    def _end_all(self, reason: str) -> None:
        if not self._ended.is_set():
            self._ended.set()
            log.say(f"stopping what is computed here: {reason}")
            self._stop(reason)
