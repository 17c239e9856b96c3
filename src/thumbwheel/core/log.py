"""The terminal, and what goes to standard error: log, remarks and progress.

Standard output carries the answer of a command and nothing else, so that `--json` can be piped;
core/present.py writes it. Everything that reaches a terminal goes through these two files, because
imported texts may hold control characters, which can clear the screen, change colours or hide other
text. They are shown as escapes, such as \\x1b.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from traceback import extract_tb
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from rich.console import Console

logger = logging.getLogger("thumbwheel")
CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters, marks that change the direction of writing, and surrogates."""


def visible(text: str) -> str:
    r"""Return `text` with control characters as escapes; newlines and tabs stay.

    >>> visible("\x1b[2Jgone")
    '\\x1b[2Jgone'
    """
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


class _Formatter(logging.Formatter):
    """Lines of the log without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


class _JsonFormatter(logging.Formatter):
    """A JSON object a line: time, level, logger, message, and what `extra={"fields": ...}` adds.

    Of an exception it has the kind and where it was raised. Its text and its lines of source stay
    out: they may quote what somebody wrote to a model.
    """

    def format(self, record: logging.LogRecord) -> str:
        content: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": visible(record.getMessage()),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[0] is not None:
            kind, _, traceback = record.exc_info
            frames = extract_tb(traceback)
            content["exception"] = kind.__name__
            content["raised_at"] = [f"{entry.filename}:{entry.lineno}" for entry in frames]
        return json.dumps(content, ensure_ascii=False, default=str)


Form = Literal["text", "json"]

EVERY = 10.0
"""Seconds between two lines of progress, where standard error is no terminal."""


def configure(level: str = "info", form: Form = "text") -> None:
    """Send the log to standard error at `level` (debug, info, warning, error). In the form `json`
    all that is said goes through the log, too."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if form == "json" else _Formatter("%(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for noisy, least in (
        ("httpx", "WARNING"),
        ("httpx2", "WARNING"),
        ("httpcore", "WARNING"),
        ("httpcore2", "WARNING"),
        ("alembic", "WARNING"),
        ("filelock", "WARNING"),
        ("bitsandbytes", "ERROR"),
    ):
        logging.getLogger(noisy).setLevel(least)


@cache
def console(stderr: bool = True) -> Console:
    """Return the terminal: standard error by default, because standard output is for answers."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class Terminal(Console):
        """Shows the control characters of printed texts; those of rich itself (colours, cursor
        movement) pass."""

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                harmless = segment.control is not None or not CONTROL.search(segment.text)
                yield segment if harmless else Segment(visible(segment.text), segment.style)

    return Terminal(stderr=stderr, highlight=False, soft_wrap=True)


def is_structured() -> bool:
    """Return whether the log has one JSON object per line."""
    handlers = logging.getLogger().handlers
    return any(isinstance(handler.formatter, _JsonFormatter) for handler in handlers)


class Sink(Protocol):
    """Gets what is said and how far the work has come, beside standard error. Any thread calls
    it."""

    def line(self, text: str) -> None:
        """Receive one line for a person."""

    def progress(self, what: str, done: float, total: float | None, unit: str, note: str) -> None:
        """Receive the progress of the innermost work."""


_SINK: Sink | None = None
"""Of the process and not of the thread: work is spread over threads, and a worker does one job at a
time."""


@contextmanager
def sent_to(sink: Sink) -> Iterator[None]:
    """Send lines and progress to `sink`, too, until the end of the block."""
    global _SINK
    previous, _SINK = _SINK, sink
    try:
        yield
    finally:
        _SINK = previous


def say(text: str) -> None:
    """Print one line for a person on standard error, and send it to the sink."""
    if _SINK is not None:
        _SINK.line(text)
    _print(text)


def _print(text: str) -> None:
    _TICKER.spoke_at = time.monotonic()
    if is_structured():
        logger.info("%s", text)
    else:
        console().print(text, markup=False)


def complain(text: str) -> None:
    """Write a plain line to standard error, at the end of a command or in a process without a
    terminal; log it as an error if the log is structured."""
    if is_structured():
        logger.error("%s", text)
    else:
        sys.stderr.write(visible(text) + "\n")


class Advance(Protocol):
    """Moves a progress bar by `steps` and shows `note` beside it; `total` sets or changes the
    total."""

    def __call__(self, steps: float = 1, note: str = "", total: float | None = None) -> None:
        """Advance."""


@contextmanager
def progress(what: str, total: float | None, unit: str = "") -> Iterator[Advance]:
    """Show the progress of the work inside on standard error: a bar on a terminal, elsewhere a line
    every ten seconds."""
    if _has_bars():
        with _bar(what, total, unit) as advance:
            yield advance
        return
    work = _Work(what, total, unit)
    with _TICKER.watching(work):
        work.report()
        yield work.advance


@contextmanager
def step(what: str) -> Iterator[None]:
    """Log the beginning of a step, and at its end how long it took."""
    say(f"> {what}")
    started = time.monotonic()
    yield
    say(f"  {time.monotonic() - started:.0f} s")


@contextmanager
def working(what: str) -> Iterator[None]:
    """Print a line for every ten seconds without other output, unless standard error is a
    terminal."""
    if _has_bars():
        yield
        return
    with _TICKER.watching(_Work(what, None, "")):
        yield


def _has_bars() -> bool:
    return sys.stderr.isatty() and not is_structured()


@contextmanager
def _bar(what: str, total: float | None, unit: str) -> Iterator[Advance]:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = [
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    ]
    with Progress(*columns, console=console(), transient=True) as bar:
        task = bar.add_task(what, total=total, note="")
        work = _Work(what, total, unit)

        def advance(steps: float = 1, note: str = "", total: float | None = None) -> None:
            work.advance(steps, note, total)
            bar.update(task, advance=steps)
            if total is not None:
                bar.update(task, total=total)
            if note:
                bar.update(task, note=note)

        yield advance


@dataclass
class _Work:
    """Work in progress."""

    what: str
    total: float | None
    unit: str
    done: float = 0
    note: str = ""
    began: float = field(default_factory=time.monotonic)

    def advance(self, steps: float = 1, note: str = "", total: float | None = None) -> None:
        """Advance, as the protocol says."""
        self.done += steps
        self.note = note or self.note
        self.total = self.total if total is None else total
        self.report()

    def report(self) -> None:
        """Tell the sink."""
        if _SINK is not None:
            _SINK.progress(self.what, self.done, self.total, self.unit, self.note)

    def line(self) -> str:
        """Return a line such as `training: 12 of 100 steps, 1:05 passed, about 7:56 left; loss
        0.52`."""
        passed = time.monotonic() - self.began
        parts = []
        if self.total:
            parts.append(f"{self.done:.0f} of {self.total:.0f} {self.unit}".rstrip())
        elif self.done:
            parts.append(f"{self.done:.0f} {self.unit}".rstrip())
        parts.append(f"{_clock(passed)} passed")
        if self.total and 0 < self.done < self.total:
            parts.append(f"about {_clock(passed * (self.total - self.done) / self.done)} left")
        return f"{self.what}: {', '.join(parts)}{'; ' if self.note else ''}{self.note}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class _Ticker:
    """Logs the progress of the innermost work whenever there was no output for EVERY seconds. Its
    thread runs while there is any work."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._works: list[_Work] = []
        self._ended = threading.Event()
        self.spoke_at = 0.0

    @contextmanager
    def watching(self, work: _Work) -> Iterator[None]:
        """Report on `work` until the end of the block."""
        with self._lock:
            self._works.append(work)
            if len(self._works) == 1:
                self.spoke_at = time.monotonic()
                self._ended = threading.Event()
                threading.Thread(
                    target=self._run, args=(self._ended,), name="progress", daemon=True
                ).start()
        try:
            yield
        finally:
            with self._lock:
                self._works.remove(work)
                if not self._works:
                    self._ended.set()

    def _run(self, ended: threading.Event) -> None:
        while not ended.wait(max(0.01, self.spoke_at + EVERY - time.monotonic())):
            if time.monotonic() < self.spoke_at + EVERY:
                continue
            with self._lock:
                innermost = self._works[-1] if self._works else None
            if innermost is not None:
                try:
                    _print(innermost.line())
                except (OSError, ValueError):
                    return  # nobody reads any more, but the work goes on


_TICKER = _Ticker()
