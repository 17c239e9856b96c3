"""Runs programs where that is safe, on warm sandboxes that last as long as this process."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Sequence

from thumbwheel.sandbox.canaries import level
from thumbwheel.sandbox.pool import Pool
from thumbwheel.sandbox.types import (
    Level,
    Limits,
    SandboxJob,
    SandboxOutcome,
    SandboxRefused,
    SandboxResult,
)

_lock = threading.Lock()
_pools: dict[tuple[Limits, bool], Pool] = {}


def shared(limits: Limits, trusted: bool = False) -> Pool:
    """Return the pool of this process with these limits. Raises Refused if code may not run
    here."""
    reached = Level.STANDARD if trusted else level()
    with _lock:
        if (limits, trusted) not in _pools:
            _pools[limits, trusted] = Pool(limits, level=reached, trusted=trusted)
        return _pools[limits, trusted]


def run(
    jobs: Sequence[SandboxJob], limits: Limits | None = None, trusted: bool = False
) -> list[SandboxResult]:
    """Run the jobs and return one outcome per job; all BLOCKED, with the reason and its fix, if
    code may not run here."""
    try:
        return shared(limits or Limits(), trusted).run(jobs)
    except SandboxRefused as error:
        return [SandboxResult(SandboxOutcome.BLOCKED, str(error)) for _ in jobs]


@atexit.register
def _close() -> None:
    with _lock:
        for pool in _pools.values():
            pool.close()
        _pools.clear()
