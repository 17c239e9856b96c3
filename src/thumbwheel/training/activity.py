"""What the process of a run does between two lines of metrics, with its count and the time that is
left: it measures the base on the dev rows before the first step, for example.

The child writes one small file, at most twice a second; whoever shows the run reads it.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass

from thumbwheel.core.files import replace
from thumbwheel.training.rundir import RunDir

FILE = "activity.json"
LEAST_PAUSE = 0.5
"""Seconds between two writes about the same work."""


@dataclass(frozen=True)
class Activity:
    """Work that is under way."""

    what: str
    done: float
    total: float | None
    unit: str
    seconds: float
    """Since it began."""

    @property
    def seconds_left(self) -> float | None:
        """At the same pace; None before anything is done, or without a total."""
        if not self.total or not self.done:
            return None
        return self.seconds * (self.total - self.done) / self.done

    def in_words(self) -> str:
        """Return the activity as one line.

        >>> Activity("measuring the base", 37, 114, "dev rows", 260.0).in_words()
        'measuring the base: 37 of 114 dev rows, about 9 min left'
        >>> Activity("measuring the base", 0, 114, "dev rows", 1.0).in_words()
        'measuring the base: 0 of 114 dev rows'
        >>> Activity("loading qwen3", 0, None, "", 3.0).in_words()
        'loading qwen3'
        """
        if not self.total and not self.done:
            return self.what
        count = f"{self.done:.0f}" + (f" of {self.total:.0f}" if self.total else "")
        words = f"{self.what}: {count} {self.unit}".rstrip()
        left = self.seconds_left
        if left is None or self.done == self.total:
            return words
        shown = f"{left:.0f} s" if left < 60 else f"{left / 60:.0f} min"
        return f"{words}, about {shown} left"


class ActivityFile:
    """A sink of the log that keeps the newest activity in the folder of the run."""

    def __init__(self, run: RunDir) -> None:
        self._path = run.path / FILE
        self._what, self._began, self._written_at = "", 0.0, 0.0

    def line(self, text: str) -> None:
        """Write nothing: lines go to the log of the run."""

    def progress(self, what: str, done: float, total: float | None, unit: str, note: str) -> None:
        """Write the activity to the file, unless that was done just now."""
        now = time.monotonic()
        is_new = what != self._what or not done
        if is_new:
            self._what, self._began = what, now
        elif now - self._written_at < LEAST_PAUSE and done != total:
            return
        self._written_at = now
        activity = Activity(what, done, total, unit, now - self._began)
        try:
            replace(self._path, json.dumps(asdict(activity)))
        except OSError:
            return  # a full disk is said by what has to be kept


def activity(run: RunDir) -> Activity | None:
    """Return what the run does now, or None if nothing is recorded or metrics were written
    since."""
    path = run.path / FILE
    try:
        written_at = path.stat().st_mtime_ns
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if run.metrics.exists() and run.metrics.stat().st_mtime_ns > written_at:
        return None
    return Activity(**fields)
