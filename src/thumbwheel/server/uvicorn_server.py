"""uvicorn, and how it leaves.

A server without a successor ends at once the connections that nobody uses, and the others after
their answer. One whose socket goes on listening, in a successor's or a service manager's hands,
must not: a client may send its next request in the same moment, and would find the connection
closed. It lets connections live for a while, and every answer ends its own.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from socket import socket

import uvicorn

UNUSED = 5.0
"""Seconds for which a connection that nobody uses stays open once the server is to leave."""


class HomeServer(uvicorn.Server):
    """Calls `answers` once it does, and sets `leaving` when it is to stop."""

    def __init__(
        self,
        config: uvicorn.Config,
        leaving: threading.Event,
        answers: Callable[[], None],
        is_passed: bool,
    ) -> None:
        """Initialize the server. `is_passed`: the socket belongs to a service manager and stays
        open."""
        super().__init__(config)
        self._leaving, self._answers, self._is_passed = leaving, answers, is_passed
        self._has_successor = False

    def hand_over(self) -> None:
        """Leave, because a successor answers. May be called from any thread."""
        self._has_successor = True
        self.should_exit = True

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Listen, and report that the server answers."""
        await super().startup(sockets)
        self._answers()

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Accept no more connections, and end the open ones."""
        self._leaving.set()
        for server in self.servers:
            server.close()
        if self._has_successor or self._is_passed:
            await self._let_connections_end()
        await super().shutdown(sockets)

    async def _let_connections_end(self) -> None:
        """Wait for the connections to end: after a handover however long calls take, else for the
        unused ones. Stopping the server meanwhile ends the wait."""
        signals = len(self._captured_signals)
        end = time.monotonic() + UNUSED
        while self.server_state.connections and len(self._captured_signals) == signals:
            if time.monotonic() > end:
                if not self._has_successor:
                    return
                for connection in list(self.server_state.connections):
                    connection.shutdown()  # at once, or after its answer where it has a request
            await asyncio.sleep(0.02)
