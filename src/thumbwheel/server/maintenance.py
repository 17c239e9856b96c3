"""What the server does once an hour by itself: it removes what the home keeps no longer."""

from __future__ import annotations

from dataclasses import replace

from thumbwheel.capture.uploads import sweep_uploads
from thumbwheel.core import log
from thumbwheel.core.repeated import Repeated
from thumbwheel.db.leadership import Leadership
from thumbwheel.db.workspace import Workspace
from thumbwheel.homes.retention import retain
from thumbwheel.models.blob_location import forget_cached

FIRST, EVERY = 60.0, 3600.0
"""Seconds until the first time after the start, and between two."""


class Maintenance(Repeated):
    """Use as a context manager."""

    def __init__(
        self, ws: Workspace, leadership: Leadership, first: float = FIRST, every: float = EVERY
    ) -> None:
        self._ws, self._leadership = ws, leadership
        super().__init__(
            "maintenance", every=every, first=first, failing="traces that are too old stay"
        )

    def _is_over(self) -> bool:
        return self._ended.is_set() or not self._leadership.holds()

    def _once(self) -> None:
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
