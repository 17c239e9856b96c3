"""Waits for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], object], seconds: float = 60.0) -> float:
    """Wait for the condition; the seconds that it took. Fails after `seconds`."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + seconds, "it did not come true in time"
        time.sleep(0.01)
    return time.monotonic() - began
