"""Looks at the running experiments while a server runs, if it is the one of its home that does."""

from __future__ import annotations

import time
from dataclasses import replace

from thumbwheel.core import log
from thumbwheel.core.repeated import Repeated
from thumbwheel.db.leadership import Leadership
from thumbwheel.db.workspace import Workspace
from thumbwheel.experiments.running import running

EVERY = 1.0
"""Seconds between two looks."""
PART = 0.1
"""Of the time of one processor, what looking may take at most: many units are looked at less
often."""


class ExperimentRunner(Repeated):
    """Looks at the running experiments again and again, in a thread. Start it by `with`."""

    def __init__(self, ws: Workspace, leadership: Leadership, every: float = EVERY) -> None:
        self._ws = replace(ws, db=ws.db.guarded(leadership.guard))
        self._leadership = leadership
        self._changes = ws.db.changes()
        self._seen: object = None
        self._is_running = True
        """Whether an experiment ran at the last look."""
        self._worked_until = 0.0
        """Processor seconds of the thread at the end of the last look."""
        super().__init__(
            "experiments", every=every, first=every, failing="experiments cannot be updated"
        )

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._changes.close()

    def _pause(self) -> float:
        worked = time.thread_time()  # to wait for a database costs nothing
        seconds, self._worked_until = worked - self._worked_until, worked
        return max(self._every, seconds / PART)

    def _once(self) -> None:
        if not self._leadership.holds():
            self._seen = None  # whoever takes over looks at everything
            return
        marker = self._changes.marker()
        if marker == self._seen and not self._is_running:
            return
        self._is_running = bool(running(self._ws))
        self._seen = marker
        if not self._is_running:
            return
        # The statistics bring numpy along, which a server without an experiment does not need.
        from thumbwheel.loop.experiment import turn_all

        for experiment_id, decision in turn_all(self._ws).items():
            if decision.verdict != "undecided":
                log.say(f"{experiment_id}: {decision.verdict}: {decision.reasons[0]}")
