"""The wall clock. What decides by the time takes a `Clock`, and tests pass another."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """Return the current time of this machine, in UTC."""
    return datetime.now(UTC)
