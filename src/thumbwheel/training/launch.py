"""The parent's side of a run: start the child, or one for each rank, follow its metrics, hand
Ctrl-C on, and say how it ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from thumbwheel.core import log
from thumbwheel.core.figures import size
from thumbwheel.core.hardware import device, resident_gb
from thumbwheel.core.private import UMASK
from thumbwheel.engine.ranks import LOST
from thumbwheel.training.activity import activity
from thumbwheel.training.placement import RANK_VARIABLES, free_listener, rank_variables
from thumbwheel.training.rundir import RunDir
from thumbwheel.training.types import RunState, Status

POLL = 0.1
"""Seconds between two looks at the child."""
GRACE = 10.0
"""Seconds in which the other ranks have to end once the first one has."""
BETWEEN_REQUESTS = 1.0
"""Seconds between two looks at whether the run is to stop."""
PRIMITIVE_CACHES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", "LRU_CACHE_CAPACITY": "64"}
"""Primitives that oneDNN keeps: batches have many shapes, and the library's thousand took as much
memory as all else in a run."""
SHOWN = {
    "loss": "loss",
    "rewards/margins": "margin",
    "rewards/accuracies": "accuracy",
    "nll/good": "nll",
}


@dataclass
class StopRequest:
    """Somebody's wish that the run which trains stops at a checkpoint: `is_due` is asked about once
    a second, and `sent` says whether it was passed on."""

    is_due: Callable[[], bool]
    sent: bool = False
    _asked_at: float = 0.0

    def pass_on(self, child: Children) -> None:
        """Ask the child to stop, once, if it is time to."""
        now = time.monotonic()
        if self.sent or now - self._asked_at < BETWEEN_REQUESTS:
            return
        self._asked_at = now
        if self.is_due():
            child.interrupt()
            self.sent = True


_request: ContextVar[StopRequest | None] = ContextVar("stop request", default=None)


@contextmanager
def stop_when(is_due: Callable[[], bool]) -> Iterator[StopRequest]:
    """Inside, a run stops at a checkpoint as soon as `is_due()`, and can be resumed then."""
    request = StopRequest(is_due)
    token = _request.set(request)
    try:
        yield request
    finally:
        _request.reset(token)


@dataclass
class Tail:
    """Reads the complete lines that are new in a file that grows, or is replaced."""

    path: Path
    _inode: int = 0
    _offset: int = 0

    def new(self) -> list[dict[str, Any]]:
        """Return the complete lines since the last call; empty if there is no file."""
        try:
            with self.path.open("rb") as stream:
                inode = os.fstat(stream.fileno()).st_ino
                if inode != self._inode:
                    self._inode, self._offset = inode, 0
                stream.seek(self._offset)
                data = stream.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [json.loads(line) for line in whole.splitlines()]


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
        """The rank by which the run ended: the first one, unless that only followed another."""
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


def launch(run: RunDir, lock: int) -> Status:
    """Run the folder's run in children that inherit the lock, until it ends; Ctrl-C asks it to stop
    at a checkpoint, twice kills it."""
    children = _started(run, lock)
    try:
        interrupts = _until_done(children, run)
    finally:
        code = children.end()
    request = _request.get()
    was_asked = interrupts > 0 or (request is not None and request.sent)
    rank = children.last_rank
    if rank == 0:
        return _ended(run, code, interrupts, was_asked=was_asked)
    member = RunDir(run.path, rank)
    status = _ended(member, code, 0, was_asked=False)
    reason = f"rank {rank}: {status.reason}; its log: {member.log}"
    return replace(status, step=run.last_step(), reason=reason)


def _started(run: RunDir, lock: int) -> Children:
    """Start a process for each rank of the run."""
    config = run.spec().config
    ranks = int(config.get("ranks", 1))
    if ranks == 1:
        return Children([_start(run, lock)])
    where = device(config.get("device", "auto"))
    members: list[subprocess.Popen[bytes]] = []
    try:
        with free_listener() as listener:
            for rank, variables in enumerate(rank_variables(ranks, where, listener, os.environ)):
                handles = () if rank else (listener.fileno(),)
                members.append(_start(RunDir(run.path, rank), lock, variables, handles))
    except BaseException:
        Children(members).kill()
        raise
    return Children(members)


def _start(
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


def _until_done(child: Children, run: RunDir) -> int:
    """Follow the child to its end; how often Ctrl-C came before that."""
    interrupts = 0
    while True:
        try:
            _follow(child, run)
            return interrupts
        except KeyboardInterrupt:
            if interrupts:
                log.say("killing it")
                child.kill()
            else:
                log.say("stopping at a checkpoint; Ctrl-C again kills it")
                child.interrupt()
            interrupts += 1


def _follow(child: Children, run: RunDir) -> None:
    """Show the progress until the child has ended."""
    request = _request.get()
    shown = ""
    with log.progress("preparing the run", None) as advance:
        while child.poll() is None and not _planned(run):
            shown = _show_activity(run, shown, advance)
            if request is not None:
                request.pass_on(child)
            time.sleep(POLL)
    for note in _opening_notes(run):
        log.say(note)
    tail, done, pace = Tail(run.metrics), 0, Pace()
    with log.progress("training", _planned(run), "steps") as advance:
        while True:
            ended = child.poll() is not None
            lines = tail.new()
            for line in lines:
                note = "  ".join(filter(None, (_note(line), pace.note(line), _memory(child))))
                advance(max(0, line["step"] - done), note)
                done = max(done, line["step"])
            if not lines:
                shown = _show_activity(run, shown, advance)
            if ended:
                return
            if request is not None:
                request.pass_on(child)
            time.sleep(POLL)


def _show_activity(run: RunDir, shown: str, advance: Callable[[float, str], None]) -> str:
    """Show what the child does beside its steps, if that is not what was shown; return what is
    shown now."""
    current = activity(run)
    if current is None or current.in_words() == shown:
        return shown
    advance(0, current.in_words())
    return current.in_words()


def _planned(run: RunDir) -> int | None:
    status = run.status()
    return status.result.get("planned_steps") if status else None


def _opening_notes(run: RunDir) -> list[str]:
    """Return what a run that has not begun its steps says before the first one."""
    status = run.status()
    if status is None or status.step or run.last_step():
        return []
    return list(status.result.get("opening_notes", ()))


def _note(line: Mapping[str, Any]) -> str:
    prefix = "eval_" if "eval_loss" in line else ""
    figures: list[str] = []
    for name, short in SHOWN.items():
        value = line.get(prefix + name)
        if value is not None:
            figures.append(f"{short} {value:.3f}")
    return ("dev: " if prefix else "") + "  ".join(figures)


@dataclass
class Pace:
    """How fast a run reads tokens, by its lines of metrics."""

    step: int = 0
    tokens: float = 0.0

    def note(self, line: Mapping[str, Any]) -> str:
        """Return the pace since the line before, or nothing for an evaluation.

        >>> pace = Pace()
        >>> pace.note({"step": 1, "num_tokens": 600.0, "step_seconds": 2.0})
        '300 tokens/s'
        >>> pace.note({"step": 3, "num_tokens": 8600.0, "step_seconds": 2.0})
        '2,000 tokens/s'
        """
        tokens, seconds = line.get("num_tokens"), line.get("step_seconds")
        if not tokens or not seconds or line["step"] <= self.step:
            return ""
        rate = (tokens - self.tokens) / (seconds * (line["step"] - self.step))
        self.step, self.tokens = line["step"], tokens
        return f"{rate:,.0f} tokens/s"


def _memory(child: Children) -> str:
    """Return the main memory that a run holds now; nothing where that is unknown."""
    held = child.memory_gb()
    return "" if held is None else size(1e9 * held)


def _ended(run: RunDir, code: int, interrupts: int, *, was_asked: bool) -> Status:
    """Return the child's last status, or what its exit code says if it left none.

    `interrupts` counts Ctrl-C; `was_asked`: SIGINT was sent to the child.
    """
    status = run.status() or Status(RunState.RUNNING)
    if status.state is not RunState.RUNNING:
        return status
    # A signal that comes before the child can listen ends it; while Python itself starts, with 1.
    is_deaf = _planned(run) is None
    if code == -signal.SIGINT or (was_asked and is_deaf and code == 1):
        return replace(status, state=RunState.STOPPED, reason="interrupted before the first step")
    if interrupts > 1 and code == -signal.SIGKILL:
        return replace(status, state=RunState.STOPPED, reason="killed by a second Ctrl-C")
    how = f"exit code {code}" if code >= 0 else f"killed by signal {-code}"
    if code == -signal.SIGKILL:
        how += " (out of memory?)"
    reason = f"the training process ended without a word: {how}"
    return replace(status, state=RunState.FAILED, reason=reason)
