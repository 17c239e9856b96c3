"""A fixture that holds the clock of rate limits, so that a test may take longer than a minute, and
begin at the end of one."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest


@pytest.fixture
def still_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """For rate limits it is the middle of this minute."""
    middle = time.time() // 60 * 60 + 30
    clock = SimpleNamespace(time=lambda: middle)
    monkeypatch.setattr("limits.storage.memory.time", clock)
    monkeypatch.setattr("limits.strategies.time", clock)
