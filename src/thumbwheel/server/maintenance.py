"""What the server does once an hour by itself: it removes what the home keeps no longer."""

from __future__ import annotations

import threading
from dataclasses import replace

from thumbwheel.capture.uploads import sweep_uploads
from thumbwheel.core import log
from thumbwheel.core.errors import ThumbwheelError
from thumbwheel.db.leadership import Leadership
from thumbwheel.db.workspace import Workspace
from thumbwheel.homes.retention import retain
from thumbwheel.models.blob_location import forget_cached

FIRST, EVERY = 60.0, 3600.0
"""Seconds until the first time after the start, and between two."""


class Maintenance:
    """Use as a context manager."""

    def __init__(
        self, ws: Workspace, leadership: Leadership, first: float = FIRST, every: float = EVERY
    ) -> None:
        self._ws, self._leadership = ws, leadership
        self._first, self._every = first, every
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="maintenance", daemon=True)
        self._problem: str | None = None

    def __enter__(self) -> Maintenance:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def problem(self) -> str | None:
        """Return why the last maintenance failed; None if it did not."""
        return self._problem

    def _run(self) -> None:
        pause = self._first
        while not self._ended.wait(pause):
            pause = self._every
            try:
                self._retain()
                self._problem = None
            except ThumbwheelError as error:
                self._problem = f"what is too old stays: {error.what}: {error.why}"
                log.logger.error("%s", self._problem)
            except Exception as error:  # noqa: BLE001 - the next time it may work
                self._problem = f"what is too old stays: {error!r}"
                log.logger.exception("retention failed")

    def _is_over(self) -> bool:
        return self._ended.is_set() or not self._leadership.holds()

    def _retain(self) -> None:
        sweep_uploads(self._ws)  # in the folder of this host
        forget_cached(self._ws)
        if not self._leadership.holds():
            return
        guarded = replace(self._ws, db=self._ws.db.guarded(self._leadership.guard))
        for result in retain(guarded, stop=self._is_over):
            if result.removed["traces"]:
                log.say(f"retention: {result.removed['traces']} traces of {result.agent} removed")
            if result.retired:
                names = ", ".join(result.retired)
                log.say(f"retention: files of {names} of {result.agent} removed")
