"""Starts worker processes and starts them again when they end, until it is told to stop."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from thumbwheel.core import log

LOOK_EVERY = 0.5
"""Seconds between two looks at the workers."""
SHORT_LIFE = 10.0
"""A worker that ended sooner is started again after a pause that doubles, up to LONGEST_PAUSE."""
LONGEST_PAUSE = 30.0
SHORT_LIVES = 3
"""Short lives in a row after which a worker is a problem also while it runs."""
SPENT = 76
"""Exit code of a worker that did its work and asks for a fresh process to go on: it is started at
once."""


@dataclass
class _Slot:
    """One of the workers."""

    process: subprocess.Popen[bytes]
    started_at: float
    pause: float = 0.0
    short_lives: int = 0
    """Ends in a row that came sooner than SHORT_LIFE after a start."""
    last_code: int | None = None
    """Exit code of the last of them."""
    start_at: float | None = None
    """When to start it again."""


@dataclass
class Supervisor:
    """Use as a context manager. Enter it in the main thread: workers end with the thread that
    started them, so restarts come from a thread that lives as long."""

    command: Sequence[str]
    n_workers: int
    grace: float
    """Seconds that workers have to stop at a checkpoint."""
    _slots: list[_Slot] = field(default_factory=list)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _leaving: list[_Slot] = field(default_factory=list)
    """Workers that are too many, and stop at their next checkpoint."""
    _resizing: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Supervisor:
        self.resize(self.n_workers)
        return self

    def resize(self, n_workers: int) -> None:
        """Run this many workers from now on. One that is too many stops at its next checkpoint."""
        with self._resizing:
            self.n_workers = n_workers
            if n_workers and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="workers", daemon=True)
                self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def retire(self) -> None:
        """Tell the workers to stop at their next checkpoint, without waiting for that."""
        self._stopped.set()

    def problem(self) -> str | None:
        """Return a message if workers do not run or keep ending early, else None."""
        ended = [slot for slot in self._slots if slot.process.poll() not in (None, SPENT)]
        if ended:
            return f"{len(ended)} of {self.n_workers} workers do not run, and are started again"
        for slot in self._slots:
            # One that was started again may end like those before it.
            is_young = time.monotonic() - slot.started_at < SHORT_LIFE
            if slot.short_lives >= SHORT_LIVES and is_young:
                return (
                    f"a worker ended {slot.short_lives} times in a row within {SHORT_LIFE:.0f} s "
                    f"(exit code {slot.last_code}); the log of the server says why"
                )
        return None

    def _run(self) -> None:
        self._fit()
        while not self._stopped.wait(LOOK_EVERY):
            for index, slot in enumerate(self._slots):
                self._slots[index] = self._looked_after(slot)
            self._fit()
        self._stop()

    def _fit(self) -> None:
        """Start the workers that are missing, and tell those that are too many to stop."""
        while len(self._slots) < self.n_workers:
            self._slots.append(self._started())
        while len(self._slots) > self.n_workers:
            slot = self._slots.pop()
            with suppress(ProcessLookupError):
                slot.process.send_signal(signal.SIGTERM)
            self._leaving.append(slot)
        self._leaving = [slot for slot in self._leaving if slot.process.poll() is None]

    def _started(self) -> _Slot:
        command = [*self.command, "--parent", str(os.getpid())]
        # A group of its own: Ctrl-C reaches the server, which stops the workers.
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)
        return _Slot(process, time.monotonic())

    def _looked_after(self, slot: _Slot) -> _Slot:
        code, now = slot.process.poll(), time.monotonic()
        if code is None:
            return slot
        if code == SPENT:
            return self._started()
        if slot.start_at is None:
            is_short = now - slot.started_at < SHORT_LIFE
            slot.pause = min(LONGEST_PAUSE, 2 * slot.pause or 1.0) if is_short else 0.0
            slot.short_lives = slot.short_lives + 1 if is_short else 0
            log.say(f"a worker ended (exit code {code}); it is started again in {slot.pause:.0f} s")
            slot.last_code, slot.start_at = code, now + slot.pause
        if now < slot.start_at:
            return slot
        started = self._started()
        started.pause, started.short_lives = slot.pause, slot.short_lives
        started.last_code = slot.last_code
        return started

    def _stop(self) -> None:
        slots = [*self._slots, *self._leaving]
        deadline = time.monotonic() + self.grace
        for slot in slots:
            with suppress(ProcessLookupError):
                slot.process.send_signal(signal.SIGTERM)
        for slot in slots:
            try:
                slot.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                slot.process.kill()
                slot.process.wait()
