"""Where passwords of logins are checked: two at a time, in threads of their own.

A check takes 64 MiB and tens of milliseconds of every processor. In the threads that answer all
other requests, a hundred logins would let those wait for seconds.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from thumbwheel.access import users
from thumbwheel.access.types import User
from thumbwheel.core.errors import Busy
from thumbwheel.db.workspace import Workspace

THREADS = 2
MOST_WAITING = 16
"""Logins that run or wait; a person sees the answer of the last one after a second or two."""
NICENESS = 10


class PasswordChecks:
    """The threads of one server, which start with the first login."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "passwords", initializer=_stand_back)
        self._waiting = 0

    async def authenticate(self, ws: Workspace, name: str, password: str) -> User:
        """Return the user with this name and password. Raises Unauthenticated, and Busy if too many
        others log in."""
        if self._waiting >= MOST_WAITING:
            raise Busy(
                "the login",
                f"{MOST_WAITING} others are logging in at the moment",
                "Try again in a second",
            )
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, users.authenticate, ws, name, password)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Stop the threads; waiting logins get no answer."""
        self._threads.shutdown(cancel_futures=True)


def _stand_back() -> None:
    """Lower the priority of this thread, so that other requests get the processor first. On Linux
    each thread has its own niceness, which the threads that Argon2 starts inherit."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
