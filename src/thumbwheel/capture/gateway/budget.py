"""What agents and keys have used today, and whether they may use more.

The counts of a day are kept in a file of the home, so that a restart does not give them anew. It is
written at most once a second: a kill loses the counts of the last second. A server and its
successor write it side by side, each what it counted itself. A clock that jumps to another day and
back gives no budget twice, because the days are counted apart. The servers of a home on many hosts
count in its database (db/shared_counts.py).
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from thumbwheel.capture.gateway.refusal import Refusal
from thumbwheel.capture.gateway.settings import Allowance
from thumbwheel.core import log
from thumbwheel.core.files import replace
from thumbwheel.core.locks import wait_for
from thumbwheel.db.shared_counts import CallWindows, DayCounts

EVERY = 1.0
"""Seconds between two writes of the file."""
MINUTE = 60.0
SEPARATOR = " on "
"""Between an account and a day in a key of the file."""
MOST_DAYS = 7
"""Days of an account in the file: the newest, whatever the clock says now."""


@dataclass
class Spending:
    """What one agent or key used on `day`."""

    day: str
    tokens: int = 0
    cost: float = 0.0


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


class Ledger(Protocol):
    """Where it is counted what accounts used. Thread-safe."""

    def spent(self, name: str) -> Spending | None:
        """Return what the account used today; None if nothing."""

    def spend(self, names: Sequence[str], tokens: int, cost: float) -> None:
        """Add the tokens and the cost of a call to each account."""

    def close(self) -> None:
        """Write the counts."""


class Windows(Protocol):
    """Where calls within a minute are counted. Thread-safe."""

    def admit(self, name: str, limit: int) -> int | None:
        """Count a call; return None if it is within the limit, else, without counting it, the
        seconds after which the next one is."""


class Budgets:
    """Thread-safe; `admit` is asked on the event loop, unless it `waits`, and `spend` wherever a
    reply is read."""

    def __init__(self, ledger: Ledger, windows: Windows, is_shared: bool = False) -> None:
        """Set `is_shared` if calls of a minute are counted in the database."""
        self._ledger, self._windows, self._is_shared = ledger, windows, is_shared

    @classmethod
    def in_file(cls, path: Path) -> Budgets:
        """Return the budgets of a home with one host."""
        return cls(SpendingFile(path), CallTimes())

    @classmethod
    def shared(cls, counts: DayCounts, windows: CallWindows) -> Budgets:
        """Return the budgets of a home on many hosts. Close the counts, not the budgets."""
        return cls(SharedSpendings(counts), windows, is_shared=True)

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
        self._ledger.spend([account.name for account in accounts], tokens, cost)

    def close(self) -> None:
        """Write the counts."""
        self._ledger.close()

    def _check_day(self, account: Account) -> None:
        allowance = account.allowance
        if not account.counts:
            return
        spending = self._ledger.spent(account.name)
        if spending is None:
            return
        if allowance.tokens_per_day is not None and spending.tokens >= allowance.tokens_per_day:
            raise Refusal(
                402,
                f"{account.name} has used its {allowance.tokens_per_day:,} tokens of today; the "
                "next day begins at 00:00 UTC",
            )
        if allowance.cost_per_day is not None and spending.cost >= allowance.cost_per_day:
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


class SharedSpendings:
    """What accounts used of all servers of the home."""

    def __init__(self, counts: DayCounts) -> None:
        self._counts = counts

    def spent(self, name: str) -> Spending | None:
        """See Ledger."""
        tokens, cost = (self._counts.total(f"{unit} of {name}") for unit in ("tokens", "cost"))
        return Spending(_today(), int(tokens), cost)

    def spend(self, names: Sequence[str], tokens: int, cost: float) -> None:
        """See Ledger."""
        amounts: dict[str, float] = {}
        for name in names:
            amounts[f"tokens of {name}"] = tokens
            amounts[f"cost of {name}"] = cost
        if amounts:
            self._counts.add(amounts)

    def close(self) -> None:
        """See Ledger: the counts close themselves."""


class SpendingFile:
    """What accounts used, in a file of the home."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._spendings = _read(path)
        self._unwritten: dict[str, Spending] = {}
        self._written_at = 0.0

    def spent(self, name: str) -> Spending | None:
        """See Ledger."""
        with self._lock:
            return self._spendings.get(_key(name, _today()))

    def spend(self, names: Sequence[str], tokens: int, cost: float) -> None:
        """See Ledger."""
        with self._lock:
            for name in names:
                for spendings in (self._spendings, self._unwritten):
                    _add(spendings, name, Spending(_today(), tokens, cost))
            self._write()

    def close(self) -> None:
        """See Ledger."""
        with self._lock:
            self._written_at = 0.0
            self._write()

    def _write(self) -> None:
        if time.monotonic() < self._written_at + EVERY or not self._unwritten:
            return
        self._written_at = time.monotonic()
        try:
            with wait_for(self._path.with_suffix(".lock")):
                spendings = _read(self._path)
                for key, unwritten in self._unwritten.items():
                    _add(spendings, _name_in(key), unwritten)
                spendings = _newest(spendings)
                content = {key: vars(spending) for key, spending in spendings.items()}
                replace(self._path, json.dumps(content, indent=1), mode=0o600)
        except OSError as error:  # counting goes on in memory, and no call fails for it
            log.logger.warning("the budgets of today are not on disk: %s", error)
        else:
            self._spendings = spendings
            self._unwritten.clear()


def _today() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d}"


def _key(name: str, day: str) -> str:
    """Return the key of an account's spending on a day."""
    return f"{name}{SEPARATOR}{day}"


def _name_in(key: str) -> str:
    return key.rpartition(SEPARATOR)[0]


def _newest(spendings: dict[str, Spending]) -> dict[str, Spending]:
    """Return the newest days of each account."""
    by_name: dict[str, list[Spending]] = {}
    for key, spending in spendings.items():
        by_name.setdefault(_name_in(key), []).append(spending)
    newest = {}
    for name, days in by_name.items():
        for spending in sorted(days, key=lambda spending: spending.day)[-MOST_DAYS:]:
            newest[_key(name, spending.day)] = spending
    return newest


def _add(spendings: dict[str, Spending], name: str, spending: Spending) -> None:
    """Add a spending to the account's total of its day."""
    total = spendings.setdefault(_key(name, spending.day), Spending(spending.day))
    total.tokens += spending.tokens
    total.cost += spending.cost


def _read(path: Path) -> dict[str, Spending]:
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
        spendings = {}
        for key, fields in content.items():
            spending = Spending(**fields)
            # before days were counted apart, a key was the name alone
            name = _name_in(key) if SEPARATOR in key else key
            spendings[_key(name, spending.day)] = spending
        return spendings
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError):
        log.say(f"note: {path} cannot be read; what was used today is counted anew")
        return {}
