"""What agents and keys used in a day (UTC), by name: tokens, costs, rows, bytes.

A home with one host counts in a file, so that a restart gives nothing anew. It is written at most
once a second: a kill loses what the last second counted. A server and its successor write it side
by side, each what it counted itself. Days are counted apart, so that a clock which jumps to another
day and back gives nothing twice. The servers of a home on many hosts count in its database
(db/shared_counts.py).
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from thumbwheel.core import log
from thumbwheel.core.files import replace
from thumbwheel.core.locks import wait_for

FILE = "usage.json"
"""Of the home."""
WRITE_EVERY = 1.0
"""Seconds between two writes of the file."""
MOST_DAYS = 7
"""Days in the file: the newest, whatever the clock says now."""
DAY = re.compile(r"\d{4}-\d\d-\d\d")

Days = dict[str, Counter[str]]
"""Day -> name -> amount."""


class DayUsage(Protocol):
    """Counts what is used today (UTC), by name. Thread-safe."""

    def total(self, name: str) -> float:
        """Return the amount of a name."""

    def add(self, amounts: Mapping[str, float]) -> None:
        """Add amounts by name."""


class UsageFile:
    """What was used, in a file of the home. Use as a context manager."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._lock = threading.Lock()
        self._days = _read(self._path)
        self._unwritten: Days = {}
        self._written_at = 0.0

    def __enter__(self) -> UsageFile:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._written_at = 0.0
            self._write()

    def total(self, name: str) -> float:
        """See DayUsage."""
        with self._lock:
            return self._days.get(_today(), Counter[str]())[name]

    def add(self, amounts: Mapping[str, float]) -> None:
        """See DayUsage."""
        with self._lock:
            for days in (self._days, self._unwritten):
                _add(days, _today(), amounts)
            self._write()

    def _write(self) -> None:
        if time.monotonic() < self._written_at + WRITE_EVERY or not self._unwritten:
            return
        self._written_at = time.monotonic()
        try:
            with wait_for(self._path.with_suffix(".lock")):
                days = _read(self._path)
                for day, amounts in self._unwritten.items():
                    _add(days, day, amounts)
                days = {day: days[day] for day in sorted(days)[-MOST_DAYS:]}
                replace(self._path, json.dumps(days, indent=1), mode=0o600)
        except OSError as error:  # counting goes on in memory, and no call fails for it
            log.logger.warning("what was used today is not on disk: %s", error)
        else:
            self._days = days
            self._unwritten = {}


def _today() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d}"


def _add(days: Days, day: str, amounts: Mapping[str, Any]) -> None:
    days.setdefault(day, Counter()).update(amounts)


def _read(path: Path) -> Days:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {day: Counter(used) for day, used in content.items() if DAY.fullmatch(day)}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError):
        log.say(f"note: {path} cannot be read; what was used today is counted anew")
        return {}
