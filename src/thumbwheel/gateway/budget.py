"""Whether agents and keys may use more: tokens and costs of a day (core/usage.py), and calls in
a minute. The servers of a home on many hosts count both in its database (db/shared_counts.py).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from thumbwheel.core.usage import DayUsage
from thumbwheel.gateway.refusal import Refusal
from thumbwheel.gateway.settings import Allowance

MINUTE = 60.0


@dataclass(frozen=True)
class Account:
    """An agent or a key with an allowance."""

    name: str
    """`agent support`, `key MOBILE_APP`."""
    allowance: Allowance

    @property
    def counts(self) -> bool:
        """Whether its tokens or costs are limited, so that replies have to be read for them."""
        return self.allowance.tokens_per_day is not None or self.allowance.cost_per_day is not None


class Windows(Protocol):
    """Where calls within a minute are counted. Thread-safe."""

    def admit(self, name: str, limit: int) -> int | None:
        """Count a call; return None if it is within the limit, else, without counting it, the
        seconds after which the next one is."""


class Budgets:
    """Thread-safe; `admit` is asked on the event loop, unless it `waits`, and `spend` wherever a
    reply is read."""

    def __init__(self, used: DayUsage, windows: Windows, is_shared: bool = False) -> None:
        """Set `is_shared` if calls of a minute are counted in the database."""
        self._used, self._windows, self._is_shared = used, windows, is_shared

    def waits(self, accounts: Iterable[Account]) -> bool:
        """Return whether `admit` waits for the database."""
        if not self._is_shared:
            return False
        return any(account.allowance.requests_per_minute is not None for account in accounts)

    def admit(self, accounts: Iterable[Account]) -> None:
        """Count a call for its agent and its key. Raises Refusal with 429 or 402 if one of them has
        used up its allowance."""
        for account in accounts:
            self._check_day(account)
            self._check_minute(account)

    def spend(self, accounts: Iterable[Account], tokens: int, cost: float) -> None:
        """Add the tokens and the cost of a call to each account."""
        amounts: dict[str, float] = {}
        for account in accounts:
            amounts[f"tokens of {account.name}"] = tokens
            amounts[f"cost of {account.name}"] = cost
        if amounts:
            self._used.add(amounts)

    def _check_day(self, account: Account) -> None:
        allowance = account.allowance
        if not account.counts:
            return
        tokens = self._used.total(f"tokens of {account.name}")
        cost = self._used.total(f"cost of {account.name}")
        if allowance.tokens_per_day is not None and tokens >= allowance.tokens_per_day:
            raise Refusal(
                402,
                f"{account.name} has used its {allowance.tokens_per_day:,} tokens of today; the "
                "next day begins at 00:00 UTC",
            )
        if allowance.cost_per_day is not None and cost >= allowance.cost_per_day:
            raise Refusal(
                402,
                f"{account.name} has used its {allowance.cost_per_day:g} of today; the next day "
                "begins at 00:00 UTC",
            )

    def _check_minute(self, account: Account) -> None:
        limit = account.allowance.requests_per_minute
        if limit is None:
            return
        wait = self._windows.admit(account.name, limit)
        if wait is not None:
            raise Refusal(
                429,
                f"{account.name} may make {limit} calls a minute; try again in {wait} s",
                {b"retry-after": str(wait).encode()},
            )


class CallTimes:
    """The calls of this process within the last minute."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[str, deque[float]] = {}

    def admit(self, name: str, limit: int) -> int | None:
        """See Windows."""
        now = time.monotonic()
        with self._lock:
            calls = self._calls.setdefault(name, deque())
            while calls and calls[0] <= now - MINUTE:
                calls.popleft()
            if len(calls) >= limit:
                return max(1, round(calls[0] + MINUTE - now))
            calls.append(now)
        return None
