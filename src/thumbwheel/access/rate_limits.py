"""How often keys, addresses and logins may ask. Counted in memory: one process serves a home."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from thumbwheel.access.types import Principal
from thumbwheel.access.work_shares import share_of
from thumbwheel.core.errors import Busy

if TYPE_CHECKING:
    from limits.strategies import SlidingWindowCounterRateLimiter

FAILURES_PER_MINUTE = 60
"""Keys that are none, from one address."""
LOGINS_PER_MINUTE = 5
"""Attempts for one name from one address."""
LOGINS_OF_ADDRESS = 20
"""Attempts for any names from one address, in a minute."""
LOGINS_OF_NAME = 30
"""Attempts for one name from all addresses, in a minute: who has many addresses guesses no faster.
More than one person needs, so that a few guesses from elsewhere keep nobody out."""

PAGES_PER_MINUTE = 60
"""Requests with one feedback token: a person presses no more buttons under one answer."""
MOST_OPEN = 64
"""Requests of one key or user that may be open at once to wait for what comes: streams of events,
results of jobs. Each looks into the database several times a second."""
MOST_DOWNLOADS = 4
"""Downloads of one key or user that are prepared or sent at once: each is a file on the disk for as
long as its client reads."""
MOST_DOWNLOADS_OF_SHARE = 16
"""Downloads of all keys and users of the same agents."""


class TooOften(Busy):
    """It was asked too often; `retry_after` says for how long."""

    def __init__(self, who: str, often: int, seconds: int) -> None:
        super().__init__(
            who,
            f"it asks more often than {often} times a minute",
            f"Try again in {seconds} s, or raise access.requests_per_minute",
        )
        self.retry_after = seconds


@dataclass(frozen=True)
class RateLimits:
    """Counts and refuses."""

    requests_per_minute: int
    """Of one key or user."""
    _open: Counter[str] = field(default_factory=Counter, compare=False)
    """Id of a key or user -> its requests that wait."""
    _downloads: Counter[str] = field(default_factory=Counter, compare=False)
    """Id of a key or user, or name of a share -> its downloads."""
    _lock: threading.Lock = field(default_factory=threading.Lock, compare=False)
    """Held while downloads are counted, which threads do."""

    @cached_property
    def _limiter(self) -> SlidingWindowCounterRateLimiter:
        # Apps on this machine send no keys, and a server without keys counts nothing.
        from limits.storage import MemoryStorage
        from limits.strategies import SlidingWindowCounterRateLimiter

        return SlidingWindowCounterRateLimiter(MemoryStorage())

    def count_request(self, principal_id: str) -> None:
        """Count a request of a key or user. Raises TooOften."""
        self._count(self.requests_per_minute, "request", principal_id, "the key or user")

    def count_failure(self, address: str) -> None:
        """Count a request with unknown credentials. Raises TooOften."""
        self._count(FAILURES_PER_MINUTE, "failure", address, "the address")

    def count_login(self, address: str, name: str) -> None:
        """Count a login attempt, before the password is checked. Raises TooOften."""
        self._count(LOGINS_OF_ADDRESS, "login", address, "the address of the login")
        self._count(LOGINS_OF_NAME, "login as", name, "the name of the login")
        both = f"{address} {name}"
        self._count(LOGINS_PER_MINUTE, "login of", both, "the login")

    def count_page(self, token: str) -> None:
        """Count a request with this valid feedback token. Raises TooOften."""
        self._count(PAGES_PER_MINUTE, "page", token, "the feedback token")

    @contextmanager
    def waiting(self, principal: Principal) -> Iterator[None]:
        """Count a waiting request of the key or user while the context is open. Raises Busy if too
        many already wait. Only for use on the event loop."""
        if principal.kind not in ("key", "user"):
            yield
            return
        if self._open[principal.id] >= MOST_OPEN:
            raise Busy(
                "the key or user",
                f"{MOST_OPEN} of its requests are already waiting",
                "End some of them, or request the current state",
            )
        self._open[principal.id] += 1
        try:
            yield
        finally:
            self._open[principal.id] -= 1
            if not self._open[principal.id]:
                del self._open[principal.id]

    def begin_download(self, principal: Principal) -> None:
        """Count a download of the key or user until `end_download`. Raises Busy if too many are
        prepared or sent already."""
        share = f"share {share_of(principal)}"
        limits = {principal.id: MOST_DOWNLOADS, share: MOST_DOWNLOADS_OF_SHARE}
        with self._lock:
            for name, most in limits.items():
                if self._downloads[name] >= most:
                    raise Busy(
                        "the download",
                        f"{most} of the same sender are still prepared or sent",
                        "Read one of them to its end, or close it",
                    )
            self._downloads.update(limits.keys())

    def end_download(self, principal: Principal) -> None:
        """Count a download no longer."""
        with self._lock:
            for name in (principal.id, f"share {share_of(principal)}"):
                self._downloads[name] -= 1
                if not self._downloads[name]:
                    del self._downloads[name]

    def _count(self, often: int, kind: str, key: str, who: str) -> None:
        from limits import RateLimitItemPerMinute

        item = RateLimitItemPerMinute(often)
        if not self._limiter.hit(item, kind, key):
            reset = self._limiter.get_window_stats(item, kind, key).reset_time
            raise TooOften(who, often, max(1, math.ceil(reset - time.time())))
