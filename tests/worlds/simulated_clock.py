"""A clock that a simulation sets: a year passes in minutes, and nothing sleeps.

The package asks `datetime.now` for the time. Inside `simulated_clock` every module of it asks a
class that answers with the time of the simulation. What measures durations is left alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from typing import Any

PACKAGE = "thumbwheel"


@dataclass
class SimulatedClock:
    """The time of the simulation."""

    moment: datetime

    def advance(self, **parts: float) -> None:
        """Let time pass, as `hours=3`."""
        self.moment += timedelta(**parts)


@contextmanager
def simulated_clock(start: datetime) -> Iterator[SimulatedClock]:
    """Modules of the package that are loaded by now go by the clock until the block ends."""
    clock = SimulatedClock(start)

    class AnyDatetime(type):
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, datetime)

    class SimulatedDatetime(datetime, metaclass=AnyDatetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            # rows with equal times have no order, so time passes with every look at the clock
            clock.advance(microseconds=1)
            return clock.moment.astimezone(tz)

    modules = [
        module
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] == PACKAGE and vars(module).get("datetime") is datetime
    ]
    for module in modules:
        vars(module)["datetime"] = SimulatedDatetime
    try:
        yield clock
    finally:
        for module in modules:
            vars(module)["datetime"] = datetime
