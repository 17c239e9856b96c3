"""How much of the server one sender may occupy: threads, and the time in which it reads what is
large.

A server has a few dozen threads and one event loop for everybody, and a request of some kilobytes
can keep either busy for seconds. Keys cost nothing to whoever owns an agent, so all keys and users
of the same agents have one share together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal, ParamSpec, TypeVar

from fastapi.concurrency import run_in_threadpool

from thumbwheel.access.types import ANY_AGENT, Principal
from thumbwheel.core.errors import Busy

P = ParamSpec("P")
T = TypeVar("T")

LargeKind = Literal["call", "rows", "file"]
"""What may be large. Calls of models do not wait for rows, and no app waits for a person who looks
at a file."""
AT_ONCE = 4
"""Threads that work for one share; the server has forty."""
MOST_WAITING = 256
"""Requests of one share that wait for a turn."""
MOST_WAITING_BYTES = 128 << 20
"""Bytes of rows that wait; one request is taken however large it is."""


def share_of(principal: Principal) -> str:
    """Return the name of the share of a principal.

    >>> verbs = frozenset({"read"})
    >>> share_of(Principal("key_1", "a", "key", {"support": verbs}))
    'agents support'
    >>> share_of(Principal("key_2", "b", "key", {"*": verbs}))
    'key_2'
    """
    if ANY_AGENT in principal.grants:
        return principal.id
    return f"agents {' '.join(sorted(principal.grants))}"


@dataclass
class Share:
    """The requests of one share that have a turn or wait for one."""

    threads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)
    reads_again_at: float = 0.0
    """On the clock `time.monotonic`."""
    count: int = 0
    """Requests that have a turn or wait for one."""
    size: int = 0
    """Bytes that they hold."""


class WorkShares:
    """The shares of a server. For use on its event loop alone."""

    def __init__(self) -> None:
        self._shares: dict[str, Share] = {}

    @asynccontextmanager
    async def thread_turn(self, name: str) -> AsyncIterator[None]:
        """Wait until a thread may work for this share, which holds while the context is open.
        Raises Busy if too many requests of the share wait."""
        with self._counted(name) as share:
            async with share.threads:
                yield

    @asynccontextmanager
    async def reading_turn(
        self, name: str, what: LargeKind, size: int = 0
    ) -> AsyncIterator[ReadingTurn]:
        """Wait until the share may have something large of this kind read; one request of it has
        the turn at a time. After it, the next one waits for as long as this one took the processor,
        so that a share takes at most half of it. Raises Busy if too many requests of the share
        wait, or hold too much memory: `size` is how many bytes this one holds."""
        turn = ReadingTurn()
        with self._counted(f"{name} {what}", size) as share:
            async with share.reading:
                await asyncio.sleep(max(0.0, share.reads_again_at - time.monotonic()))
                try:
                    yield turn
                finally:
                    share.reads_again_at = time.monotonic() + turn.seconds

    @contextmanager
    def _counted(self, name: str, size: int = 0) -> Iterator[Share]:
        share = self._shares.setdefault(name, Share())
        is_too_large = share.count > 0 and share.size + size > MOST_WAITING_BYTES
        if share.count >= MOST_WAITING or is_too_large:
            raise Busy(
                "the request",
                f"{share.count} requests for the same agents wait for their turn",
                "Send it again later, and fewer at once",
            )
        share.count += 1
        share.size += size
        try:
            yield share
        finally:
            share.count -= 1
            share.size -= size
            if not share.count and share.reads_again_at <= time.monotonic():
                del self._shares[name]


@dataclass
class ReadingTurn:
    """A turn in which something large is read."""

    seconds: float = 0.0
    """For which it has taken the processor."""

    def here(self, read: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> T:
        """Return what `read` returns, called in this thread."""
        began = time.thread_time()
        try:
            return read(*args, **options)
        finally:
            self.seconds += time.thread_time() - began

    async def in_thread(self, read: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> T:
        """Return what `read` returns, called in another thread."""
        return await run_in_threadpool(self.here, read, *args, **options)


@dataclass(frozen=True)
class CurrentShare:
    """The share of the request that is answered in this context."""

    shares: WorkShares
    name: str


CURRENT: ContextVar[CurrentShare | None] = ContextVar("thumbwheel_share", default=None)
"""Set before a route is answered; None outside of requests."""


async def in_thread_turn(work: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> T:
    """Return what `work` returns in a thread, once it is the turn of the current request's share.
    Raises Busy."""
    current = CURRENT.get()
    if current is None:
        return await run_in_threadpool(work, *args, **options)
    async with current.shares.thread_turn(current.name):
        return await run_in_threadpool(work, *args, **options)


async def in_file_turn(work: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> T:
    """Return what `work` returns in a thread, once the current request's share may have a file or
    texts as large as one read. Raises Busy."""
    current = CURRENT.get()
    if current is None:
        return await run_in_threadpool(work, *args, **options)
    async with current.shares.reading_turn(current.name, "file") as turn:
        return await turn.in_thread(work, *args, **options)
