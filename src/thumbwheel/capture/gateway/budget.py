"""What agents and keys have used today, and whether they may use more.

The counts of a day are kept in a file of the home, so that a restart does not give them anew. It is
written at most once a second: a kill loses the counts of the last second. A server and its
successor write it side by side, each what it counted itself. A clock that jumps to another day and
back gives no budget twice, because the days are counted apart.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from thumbwheel.capture.gateway.refusal import Refusal
from thumbwheel.capture.gateway.settings import Allowance
from thumbwheel.core import log
from thumbwheel.core.files import replace
from thumbwheel.core.locks import wait_for

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


class Budgets:
    """Thread-safe; `admit` is asked on the event loop, `spend` wherever a reply is read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._spendings = _read(path)
        self._unwritten: dict[str, Spending] = {}
        self._calls: dict[str, deque[float]] = {}
        self._written_at = 0.0

    def admit(self, accounts: Iterable[Account]) -> None:
        """Count a call for its agent and its key. Raises Refusal with 429 or 402 if one of them has
        used up its allowance."""
        with self._lock:
            for account in accounts:
                self._check_day(account)
                self._check_minute(account)

    def spend(self, accounts: Iterable[Account], tokens: int, cost: float) -> None:
        """Add the tokens and the cost of a call to each account."""
        with self._lock:
            for account in accounts:
                for spendings in (self._spendings, self._unwritten):
                    _add(spendings, account.name, Spending(_today(), tokens, cost))
            self._write()

    def close(self) -> None:
        """Write the counts."""
        with self._lock:
            self._written_at = 0.0
            self._write()

    def _check_day(self, account: Account) -> None:
        allowance = account.allowance
        spending = self._spendings.get(_key(account.name, _today()))
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
        now = time.monotonic()
        calls = self._calls.setdefault(account.name, deque())
        while calls and calls[0] <= now - MINUTE:
            calls.popleft()
        if len(calls) >= limit:
            wait = max(1, round(calls[0] + MINUTE - now))
            raise Refusal(
                429,
                f"{account.name} may make {limit} calls a minute; try again in {wait} s",
                {b"retry-after": str(wait).encode()},
            )
        calls.append(now)

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
