"""FastAPI's application of a server, most of whose routes are added when they are first asked for.

Making the other 194 routes takes twice as long as the rest of a start: 1.5 s of a processor beside
0.7 s. Of that, 0.6 s are imports of the stages whose commands they run, and 0.9 s FastAPI's and
pydantic's work on their parameters and schemas. Apps that send traces, and whoever watches the
server, ask for a few routes only; these are there from the start.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool

from thumbwheel.access.needs import check_routes, needs_of
from thumbwheel.access.protocol import DOCUMENT
from thumbwheel.gateway.application import Scope, Send
from thumbwheel.gateway.request import Receive


class GrowingApi:
    """An ASGI application; `add_rest` adds the other routes. Raises AssertionError where one of the
    first routes names no need."""

    def __init__(self, api: FastAPI, add_rest: Callable[[FastAPI], None]) -> None:
        check_routes(api)
        self.first = api
        """The application as it is; perhaps without most of its routes."""
        # the document describes all routes, and so is not read before they are there
        self._first_routes = frozenset(needs_of(api)) - {f"GET {DOCUMENT}"}
        self._add_rest: Callable[[FastAPI], None] | None = add_rest
        self._lock = threading.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request. The first one that needs any of the other routes adds them all."""
        is_for_first = f"{scope['method']} {scope['path']}" in self._first_routes
        if self._add_rest is not None and not is_for_first:
            await run_in_threadpool(self.whole)  # in a thread: calls to models go on meanwhile
        await self.first(scope, receive, send)

    def whole(self) -> FastAPI:
        """Return the application with all routes."""
        with self._lock:
            if self._add_rest is not None:
                self._add_rest(self.first)
                self._add_rest = None
        return self.first
