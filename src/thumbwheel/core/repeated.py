"""Work that a server does again and again, in a thread of its own.

class Sweeper(Repeated):
    def _once(self) -> None: ...

with Sweeper("sweeper", every=60.0, failing="old files stay") as sweeper:
    sweeper.problem()
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Self

from thumbwheel.core import log
from thumbwheel.core.errors import ThumbwheelError, public_reason


class Repeated(ABC):
    """Use as a context manager. One time that fails does not end it: the reason is logged, and is
    the `problem` until a later time succeeds."""

    def __init__(self, name: str, *, every: float, failing: str, first: float = 0.0) -> None:
        """
        Args:
            name: Of the thread.
            every: Seconds between two times.
            failing: What is not done while it fails, such as "old files stay".
            first: Seconds from the start to the first time.
        """
        self._every, self._first, self._failing = every, first, failing
        self._failure: str | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()

    def problem(self) -> str | None:
        """Return why the last time failed; None if it did not."""
        return self._failure

    @abstractmethod
    def _once(self) -> None:
        """Do it one time."""

    def _pause(self) -> float:
        """Return the seconds until the next time."""
        return self._every

    def _run(self) -> None:
        pause = self._first
        while not self._ended.wait(pause):
            try:
                self._once()
                self._failure = None
            except Exception as error:  # noqa: BLE001 - the next time may succeed
                if self._failure is None:
                    is_expected = isinstance(error, ThumbwheelError)
                    log.logger.error("%s: %s", self._failing, error, exc_info=not is_expected)
                # /health answers without a key
                self._failure = f"{self._failing}: {public_reason(error)}; see the log"
            pause = self._pause()
