"""Looks at the running experiments while a server runs, if it is the one of its home that does."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from thumbwheel.core import log
from thumbwheel.db.leadership import Leadership
from thumbwheel.db.workspace import Workspace
from thumbwheel.experiments.running import running

EVERY = 1.0
"""Seconds between two looks."""
PART = 0.1
"""Of the time of one processor, what looking may take at most: many units are looked at less
often."""


class ExperimentRunner:
    """Looks at the running experiments again and again, in a thread. Start it by `with`."""

    def __init__(self, ws: Workspace, leadership: Leadership, every: float = EVERY) -> None:
        self._ws = replace(ws, db=ws.db.guarded(leadership.guard))
        self._leadership, self._every = leadership, every
        self._changes = ws.db.changes()
        self._seen: object = None
        self._is_running = True
        """Whether an experiment ran at the last look."""
        self._ended = threading.Event()
        self._problem: str | None = None
        self._thread = threading.Thread(target=self._run, name="experiments", daemon=True)

    def __enter__(self) -> ExperimentRunner:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._changes.close()

    def problem(self) -> str | None:
        """Return why experiments are not updated now; None if they are."""
        return self._problem

    def _run(self) -> None:
        pause = self._every
        while not self._ended.wait(pause):
            began = time.thread_time()  # to wait for a database costs nothing
            try:
                self._look()
                self._problem = None
            except Exception as error:  # noqa: BLE001 - the next look may find the database again
                if self._problem is None:
                    log.logger.error("experiments cannot be looked at: %s", error)
                self._problem = str(error).split("\n")[0]
            pause = max(self._every, (time.thread_time() - began) / PART)

    def _look(self) -> None:
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
