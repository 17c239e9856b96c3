"""How much may be stored: of an agent altogether, and of an agent or a key in a day (usage.py).

Stored traces are counted in the database, at most every half minute, with what was admitted since.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from pydantic import Field

from thumbwheel.core.config import Config
from thumbwheel.core.ids import slug_of
from thumbwheel.core.usage import DayUsage

COUNT_EVERY = 30.0
"""Seconds between two counts of an agent's traces."""

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


class Quotas:
    """Thread-safe."""

    def __init__(self, config: QuotaConfig, used: DayUsage, count_traces: CountTraces) -> None:
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
