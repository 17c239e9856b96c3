"""The processes of a run on one host: one for each rank that is placed there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from thumbwheel.core.hardware import resident_gb
from thumbwheel.core.private import UMASK
from thumbwheel.engine.ranks import LOST
from thumbwheel.training.placement import RANK_VARIABLES
from thumbwheel.training.rundir import RunDir
from thumbwheel.training.types import RunState, Status

GRACE = 10.0
"""Seconds in which the other ranks have to end once the first one has."""
PRIMITIVE_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", "LRU_CACHE_CAPACITY": "64"}
"""Primitives that oneDNN keeps: batches have many shapes, and the library's thousand took as much
memory as all else in a run."""


class Children:
    """The processes of a run, one for each rank. The first one speaks for all: it is asked to stop,
    and its end is that of the run. Where another one fails, all are ended."""

    def __init__(self, members: Sequence[subprocess.Popen[bytes]]) -> None:
        self._members = members
        self._failed: int | None = None
        self._killed: set[int] = set()
        self._first_ended_at: float | None = None

    def poll(self) -> int | None:
        """Return the exit code of the rank by which the run ended, or None while any is there."""
        codes = [member.poll() for member in self._members]
        for rank, code in enumerate(codes):
            fails = rank and code not in (None, 0, LOST) and rank not in self._killed
            if fails and self._failed is None:
                self._failed = rank
                self.kill()
        if None not in codes:
            return codes[self.last_rank]
        if codes[0] is not None:
            # The others end at the same time, or find out that they are alone.
            now = time.monotonic()
            self._first_ended_at = self._first_ended_at or now
            if now - self._first_ended_at > GRACE:
                self.kill()
        return None

    @property
    def last_rank(self) -> int:
        """The process by which the run ended: the first, unless that only followed another."""
        first_followed = 0 in self._killed or self._members[0].returncode == LOST
        return self._failed if self._failed is not None and first_followed else 0

    def interrupt(self) -> None:
        """Ask the run to stop at a checkpoint."""
        self._members[0].send_signal(signal.SIGINT)

    def kill(self) -> None:
        """Kill every process that is still there."""
        for rank, member in enumerate(self._members):
            if member.poll() is None:
                self._killed.add(rank)
                member.kill()

    def end(self) -> int:
        """Kill what is left, and return the exit code of the run."""
        self.kill()
        for member in self._members:
            member.wait()
        return self._members[self.last_rank].returncode

    def memory_gb(self) -> float | None:
        """Return the main memory that the processes hold now, or None where that is unknown."""
        held = [resident_gb(member.pid) for member in self._members]
        present = [gigabytes for gigabytes in held if gigabytes is not None]
        return sum(present) if present else None


def start_rank(
    member: RunDir,
    lock: int,
    variables: Mapping[str, str] | None = None,
    handles: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start the process of one rank with these further `variables` and open `handles`."""
    member.write_status(Status(RunState.RUNNING))
    command = [sys.executable, "-P", "-m", "thumbwheel.training.process", str(member.path)]
    with member.log.open("ab") as out:
        return subprocess.Popen(
            [*command, "--lock-fd", str(lock), "--parent", str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=environment(os.environ) | dict(variables or {}),
            pass_fds=(lock, *handles),
            umask=UMASK,
            process_group=0,  # Ctrl-C reaches the parent only, which hands it on
        )


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a child: `inherited`, offline and quiet, and of no other ranks."""
    inherited = {name: value for name, value in inherited.items() if name not in RANK_VARIABLES}
    quiet = {
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return PRIMITIVE_CACHES | dict(inherited) | quiet | {"PYTHONUNBUFFERED": "1"}


def status_of(run: RunDir, rank: int, code: int, interrupts: int, *, was_asked: bool) -> Status:
    """Return the status at the end of a run that ended by this rank, with this exit code."""
    if rank == 0:
        return _ended(run, code, interrupts, was_asked=was_asked)
    member = RunDir(run.path, rank)
    status = _ended(member, code, 0, was_asked=False)
    reason = f"rank {rank}: {status.reason}; its log: {member.log}"
    return replace(status, step=run.last_step(), reason=reason)


def _ended(run: RunDir, code: int, interrupts: int, *, was_asked: bool) -> Status:
    """Return the child's last status, or what its exit code says if it left none.

    `interrupts` counts Ctrl-C; `was_asked`: SIGINT was sent to the child.
    """
    status = run.status() or Status(RunState.RUNNING)
    if status.state is not RunState.RUNNING:
        return status
    # A signal that comes before the child can listen ends it; while Python itself starts, with 1.
    is_deaf = "planned_steps" not in status.result
    if code == -signal.SIGINT or (was_asked and is_deaf and code == 1):
        return replace(status, state=RunState.STOPPED, reason="interrupted before the first step")
    if interrupts > 1 and code == -signal.SIGKILL:
        return replace(status, state=RunState.STOPPED, reason="killed by a second Ctrl-C")
    how = f"exit code {code}" if code >= 0 else f"killed by signal {-code}"
    if code == -signal.SIGKILL:
        how += " (out of memory?)"
    reason = f"the training process ended without a word: {how}"
    return replace(status, state=RunState.FAILED, reason=reason)
