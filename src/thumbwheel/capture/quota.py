"""How much may be stored: of an agent altogether, and of an agent or a key in a day.

The day's counts are kept in a file of the home, beside those of a server that takes this one's
place, and written at most once a second; those of a home on many hosts in its database
(db/shared_counts.py). Stored traces are counted in the database, at most every
half minute, with what was admitted since.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from pydantic import Field

from thumbwheel.core import log
from thumbwheel.core.config import Config
from thumbwheel.core.files import replace
from thumbwheel.core.ids import slug_of
from thumbwheel.core.locks import wait_for

FILE = "quotas.json"
WRITE_EVERY, COUNT_EVERY = 1.0, 30.0
"""Seconds between two writes of the file, and between two counts of an agent's traces."""

CountTraces = Callable[[str], int]
"""Agent -> its stored traces."""


class DayQuota(Config):
    """What may come in a day (UTC). Beyond it a request is answered with 429, and a call is
    answered and not recorded."""

    rows_per_day: int | None = Field(default=None, ge=1)
    """Traces, spans and pieces of feedback in a day [default: any number]"""
    bytes_per_day: int | None = Field(default=None, ge=1)
    """Their size in a day, as JSON lines [default: any]"""


class AgentQuota(DayQuota):
    """What an agent may store."""

    traces: int | None = Field(default=None, ge=1)
    """Stored traces. Beyond them a request is answered with 507, until retention or an erasure
    makes room [default: any number]"""


class QuotaConfig(Config):
    """Bounds for what is stored, so that one app cannot fill the disk."""

    agents: dict[str, AgentQuota] = Field(default_factory=dict)
    """By the name of the agent"""
    keys: dict[str, DayQuota] = Field(default_factory=dict)
    """By the name of the key"""


class QuotaExceeded(Exception):
    """It is too much: `status` is that of the answer, the text says what to do."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Used(Protocol):
    """Counts what came today (UTC), by name. Thread-safe."""

    def total(self, name: str) -> float:
        """Return the amount of a name."""

    def add(self, amounts: Mapping[str, float]) -> None:
        """Add amounts by name."""


class Quotas:
    """Thread-safe."""

    def __init__(self, config: QuotaConfig, used: Used, count_traces: CountTraces) -> None:
        self._config, self._used, self._count_traces = config, used, count_traces
        self._lock = threading.Lock()
        self._stored: dict[str, tuple[int, float]] = {}
        self.refused = 0
        """Requests and records that were too much, since the start."""

    @property
    def is_bounded(self) -> bool:
        """Whether there is any quota."""
        return bool(self._config.agents or self._config.keys)

    def admit(self, key: str | None, rows: Iterable[tuple[str, int]]) -> None:
        """Count rows, each an agent's name and its size in bytes, for their agents and the key.
        Raises QuotaExceeded, and then counts none of them."""
        n_rows: Counter[str] = Counter()
        n_bytes: Counter[str] = Counter()
        for agent, size in rows:
            for name in (f"agent {agent}", *([f"key {key}"] if key else [])):
                n_rows[name] += 1
                n_bytes[name] += size
        with self._lock:
            for name, count in n_rows.items():
                kind, _, owner = name.partition(" ")
                quotas: Mapping[str, DayQuota] = (
                    self._config.agents if kind == "agent" else self._config.keys
                )
                quota = quotas.get(owner)
                if quota is not None:
                    self._check(name, quota, count, n_bytes[name])
            amounts: dict[str, float] = {}
            for name, count in n_rows.items():
                amounts |= {f"{name} rows": count, f"{name} bytes": n_bytes[name]}
                self._note_stored(name, count)
            self._used.add(amounts)

    def admit_lines(self, key: str | None, lines: Sequence[bytes]) -> None:
        """Admit lines of the inbox; see `admit`."""
        if self.is_bounded:
            self.admit(key, [(slug_of(json.loads(line)["agent"]), len(line)) for line in lines])

    def _check(self, name: str, quota: DayQuota, rows: int, size: int) -> None:
        """Raise QuotaExceeded if the quota has no room for so many rows and bytes."""
        for unit, amount, bound in (
            ("rows", rows, quota.rows_per_day),
            ("bytes", size, quota.bytes_per_day),
        ):
            if bound is not None and self._used.total(f"{name} {unit}") + amount > bound:
                self.refused += 1
                raise QuotaExceeded(
                    429,
                    f"The quota of {name} is {bound:,} {unit} a day; the next begins at 00:00 UTC. "
                    f"Its owner can raise {unit}_per_day (settings, quotas).",
                )
        bound = quota.traces if isinstance(quota, AgentQuota) else None
        if bound is not None and self._traces_of(name) + rows > bound:
            self.refused += 1
            raise QuotaExceeded(
                507,
                f"The quota of {name} is {bound:,} stored traces. Its owner can raise it "
                "(settings, quotas), or keep traces for a shorter time (settings, retention).",
            )

    def _traces_of(self, name: str) -> int:
        count, counted_at = self._stored.get(name, (0, float("-inf")))
        if time.monotonic() > counted_at + COUNT_EVERY:
            count = self._count_traces(name.removeprefix("agent "))
            self._stored[name] = count, time.monotonic()
        return count

    def _note_stored(self, name: str, rows: int) -> None:
        if name in self._stored:
            count, counted_at = self._stored[name]
            self._stored[name] = count + rows, counted_at


class UsedFile:
    """What came today, in a file of the home. Thread-safe; use as a context manager."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._lock = threading.Lock()
        self._day = _today()
        self._used: Counter[str] = _read(self._path).get(self._day, Counter())
        self._unwritten: Counter[str] = Counter()
        self._written_at = 0.0

    def __enter__(self) -> UsedFile:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._written_at = 0.0
            self._write()

    def total(self, name: str) -> float:
        """See Used."""
        with self._lock:
            self._turn_day()
            return self._used[name]

    def add(self, amounts: Mapping[str, float]) -> None:
        """See Used."""
        with self._lock:
            self._turn_day()
            for counter in (self._used, self._unwritten):
                counter.update({name: int(amount) for name, amount in amounts.items()})
            self._write()

    def _turn_day(self) -> None:
        if self._day != _today():
            self._day = _today()
            self._used.clear()
            self._unwritten.clear()

    def _write(self) -> None:
        if time.monotonic() < self._written_at + WRITE_EVERY or not self._unwritten:
            return
        self._written_at = time.monotonic()
        try:
            with wait_for(self._path.with_suffix(".lock")):
                used = _read(self._path).get(self._day, Counter()) + self._unwritten
                replace(self._path, json.dumps({self._day: used}, indent=1), mode=0o600)
        except OSError as error:  # counting goes on in memory
            log.logger.warning("the quotas of today are not on disk: %s", error)
        else:
            self._used = used
            self._unwritten.clear()


def _today() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d}"


def _read(path: Path) -> dict[str, Counter[str]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {day: Counter(counts) for day, counts in content.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError):
        log.say(f"note: {path} cannot be read; what came today is counted anew")
        return {}
