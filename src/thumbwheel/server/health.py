"""What `/health`, `/ready` and `/live` say.

`/health` is for whoever watches: it is red where any part stands still. `/ready` is for what sends
calls here: it is red where a call would not be answered. `/live` only says that the process
answers; restarting it helps against nothing else.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from thumbwheel.access.needs import public
from thumbwheel.core import log

WATCHERS = public("machines that watch ask it, and it holds no data")
LEAVING = "the server stops, and takes no new calls"
READ_SECONDS = 2.0
"""For a check that reads the database."""
KNOWN_SECONDS = 30.0
"""For which what such a check read last is its answer, where reading takes longer: a busy machine
is no broken one."""

Figures = Mapping[str, Callable[[], object]]
"""Name -> a count or a time of the server."""


@dataclass(frozen=True)
class HealthCheck:
    """A part of the server that can stand still."""

    part: str
    problem: Callable[[], str | None]
    """What is wrong with it now; None where nothing is."""
    is_needed: bool = False
    """Whether calls cannot be answered while it has a problem."""


class TimeLimited:
    """A check that reads the database. One that is away must not keep waiting who asks for health,
    and asking often must not heap up threads: a reading that has not ended is waited for again."""

    def __init__(
        self,
        problem: Callable[[], str | None],
        seconds: float = READ_SECONDS,
        known_seconds: float = KNOWN_SECONDS,
    ) -> None:
        self._problem, self._seconds, self._known_seconds = problem, seconds, known_seconds
        self._reading: Future[str | None] | None = None
        self._guard = threading.Lock()
        self._last: tuple[float, str | None] = (-math.inf, None)

    def __call__(self) -> str | None:
        """Return the problem or None, or a message if the state could not be read for some time."""
        with self._guard:
            reading = self._reading
            if reading is None:
                reading = self._reading = Future()
                # a daemon: the server's end does not wait for a database
                threading.Thread(target=self._read, args=(reading,), daemon=True).start()
        try:
            return reading.result(self._seconds)
        except TimeoutError:
            read_at, last = self._last
            if time.monotonic() - read_at < self._known_seconds:
                return last
            return f"its state could not be read within {self._seconds:g} s"

    def _read(self, reading: Future[str | None]) -> None:
        try:
            result = self._problem()
            self._last = (time.monotonic(), result)
            reading.set_result(result)
        except Exception as error:  # noqa: BLE001 - it goes to who asked
            reading.set_exception(error)
        with self._guard:
            self._reading = None


@dataclass(frozen=True)
class ServerHealth:
    """The state of all parts."""

    checks: Sequence[HealthCheck]
    figures: Figures
    leaving: threading.Event = field(default_factory=threading.Event)
    """Set once the server is to stop."""

    def problems(self) -> dict[str, str]:
        """Return part -> problem, for the parts that have one."""
        problems = {}
        for check in self.checks:
            try:
                problem = check.problem()
            except Exception as error:  # noqa: BLE001 - who asks for health always gets an answer
                # the text may quote an address of the database
                log.logger.error("the state of %s cannot be read: %s", check.part, error)
                problem = f"its state cannot be read ({type(error).__name__}); see the log"
            if problem is not None:
                problems[check.part] = problem
        return problems

    def body(self) -> tuple[int, dict[str, Any]]:
        """Return (status of the answer to `/health`, its content)."""
        problems = self.problems()
        content: dict[str, Any] = {"status": "red" if problems else "green", "problems": problems}
        for name, read in self.figures.items():
            with suppress(Exception):  # the part's problem says why
                content[name] = read()
        return 503 if problems else 200, content

    def readiness(self) -> tuple[int, dict[str, Any]]:
        """Return (status of the answer to `/ready`, its content)."""
        problems = self.problems()
        needed = {check.part for check in self.checks if check.is_needed}
        hindrances = {part: why for part, why in problems.items() if part in needed}
        if self.leaving.is_set():
            hindrances["server"] = LEAVING
        content = {"status": "red" if hindrances else "green", "problems": hindrances}
        return 503 if hindrances else 200, content


def router(health: ServerHealth) -> APIRouter:
    """Return the router for `/health`, `/ready` and `/live`. The first two read folders and rows,
    so they run off the event loop."""
    routes = APIRouter()

    @routes.get("/health", dependencies=[WATCHERS])
    async def read_health() -> JSONResponse:
        status, content = await run_in_threadpool(health.body)
        return JSONResponse(content, status)

    @routes.get("/ready", dependencies=[WATCHERS])
    async def read_readiness() -> JSONResponse:
        status, content = await run_in_threadpool(health.readiness)
        return JSONResponse(content, status)

    @routes.get("/live", dependencies=[WATCHERS])
    async def read_liveness() -> JSONResponse:
        return JSONResponse({"status": "green"})

    return routes
