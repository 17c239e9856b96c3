"""Whether Ctrl-C was pressed while a step ran that uses it for itself.

Training stops at its next checkpoint on Ctrl-C. When its last step is over by then, it ends as if
nothing had happened, and the cycle has to hear of the Ctrl-C by itself.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class Interrupts:
    """Whether Ctrl-C was pressed since recording began."""

    received: bool = False


@contextmanager
def recorded_interrupts() -> Iterator[Interrupts]:
    """Record Ctrl-C while the context is open, without changing its effect. Only the main thread
    receives signals, so in other threads nothing is recorded."""
    interrupts = Interrupts()
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(previous):
        yield interrupts
        return

    def record(number: int, frame: FrameType | None) -> None:
        interrupts.received = True
        previous(number, frame)

    signal.signal(signal.SIGINT, record)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, previous)
