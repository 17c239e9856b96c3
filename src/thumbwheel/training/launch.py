"""The parent's side of a run: have a launcher start its processes, follow its metrics, hand Ctrl-C
on, and say how it ended."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thumbwheel.core import log
from thumbwheel.core.figures import size
from thumbwheel.training.activity import activity
from thumbwheel.training.children import Children, status_of
from thumbwheel.training.launchers import LAUNCHERS
from thumbwheel.training.placement import HERE, Placement, PlacementLostError
from thumbwheel.training.rundir import RunDir
from thumbwheel.training.types import Status

POLL = 0.1
"""Seconds between two looks at the child."""
BETWEEN_REQUESTS = 1.0
"""Seconds between two looks at whether the run is to stop."""
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


def launch(run: RunDir, lock: int, placement: Placement = HERE) -> Status:
    """Run the folder's run in processes that inherit the lock, until it ends; Ctrl-C asks it to
    stop at a checkpoint, twice kills it.

    Raises PlacementLostError if the place where it ran is gone: the run goes on from its last
    checkpoint when it is launched again.
    """
    launcher = LAUNCHERS.get(placement.settings.launcher)
    children = launcher.start(run, lock, placement)
    try:
        interrupts = _until_done(children, run)
    finally:
        code = children.end()
    request = _request.get()
    was_asked = interrupts > 0 or (request is not None and request.sent)
    status = status_of(run, children.last_rank, code, interrupts, was_asked=was_asked)
    if not was_asked and launcher.is_lost(code, run.status()):
        raise PlacementLostError(status.reason or f"exit code {code}")
    return status


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
