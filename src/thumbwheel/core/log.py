"""All output of commands: log and progress on standard error, tables and JSON on standard output.

Standard output carries the answer and nothing else, so that `--json` can be piped. Everything that
reaches a terminal goes through here, because imported texts may hold control characters, which can
clear the screen, change colours or hide other text. They are shown as escapes, such as \\x1b.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

logger = logging.getLogger("thumbwheel")
CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters, marks that change the direction of writing, and surrogates."""
ROW_ID = re.compile(r"\b[a-z]{3}_[0-9a-v]{22,24}\b")
"""An id made by core/ids.py."""
SHORT_ID = 8
"""At least so many characters of an abbreviated id follow its prefix."""


def visible(text: str) -> str:
    r"""`text` with control characters as escapes; ends of lines and tabs stay.

    >>> visible("\x1b[2Jgone")
    '\\x1b[2Jgone'
    """
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


class _Formatter(logging.Formatter):
    """Lines of the log without control characters."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


EVERY = 10.0
"""Seconds between two lines of progress, where standard error is no terminal."""


def configure(level: str = "info") -> None:
    """Send the log to standard error at `level` (debug, info, warning, error)."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter("%(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for noisy, least in (
        ("httpx", "WARNING"),
        ("alembic", "WARNING"),
        ("filelock", "WARNING"),
        ("bitsandbytes", "ERROR"),
    ):
        logging.getLogger(noisy).setLevel(least)


@cache
def console(stderr: bool = True) -> Console:
    """The terminal: standard error by default, because standard output is for answers."""
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


def say(text: str) -> None:
    """One line for a person, on standard error."""
    _TICKER.spoke_at = time.monotonic()
    console().print(text, markup=False)


def show(text: str) -> None:
    """One line of the answer for a person, on standard output."""
    console(stderr=False).print(text, markup=False)


def complain(text: str) -> None:
    """A plain line on standard error, for the end of a command and for processes without a
    terminal."""
    sys.stderr.write(visible(text) + "\n")


def write(text: str) -> None:
    """Write a text that is the answer itself, such as a file; unchanged where standard output is no
    terminal."""
    sys.stdout.write(visible(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def answer(value: Any, *, indent: int | None = 2) -> None:
    """`value` as JSON on standard output; without `indent` on one line, at once."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=str)

    def escape(match: re.Match[str]) -> str:
        character = match[0]
        return character if character in "\r\n" else f"\\u{ord(character):04x}"

    sys.stdout.write(CONTROL.sub(escape, text) + "\n")
    if indent is None:
        sys.stdout.flush()


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table for a person, on standard output. Where it is too wide, its ids are abbreviated
    before other cells fold."""
    terminal = console(stderr=False)
    cells = [["" if cell is None else visible(str(cell)) for cell in row] for row in rows]
    drawn = _drawn(title, columns, cells)
    unlimited = terminal.options.update(max_width=10_000)
    if terminal.measure(drawn, options=unlimited).maximum > terminal.width:
        drawn = _drawn(title, columns, _with_short_ids(cells))
    terminal.print(drawn)


def _drawn(title: str, columns: Sequence[str], cells: Sequence[Sequence[str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    drawn = Table(title=Text(visible(title)), title_justify="left", header_style="bold")
    for column in columns:
        drawn.add_column(column, overflow="fold")
    for row in cells:
        drawn.add_row(*(Text(cell) for cell in row))
    return drawn


def _with_short_ids(cells: Sequence[Sequence[str]]) -> list[list[str]]:
    """The same cells with abbreviated ids."""
    row_ids: set[str] = set()
    for row in cells:
        for cell in row:
            row_ids.update(ROW_ID.findall(cell))
    short = short_ids(row_ids)

    def abbreviate(cell: str) -> str:
        return ROW_ID.sub(lambda match: short[match.group()], cell)

    return [[abbreviate(cell) for cell in row] for row in cells]


def short_ids(row_ids: Iterable[str]) -> dict[str, str]:
    """Each id with its shortest beginning that no other of them shares."""
    ordered = sorted(set(row_ids))
    short: dict[str, str] = {}
    for before, row_id, after in zip(["", *ordered], ordered, [*ordered[1:], ""], strict=False):
        shared = max(_shared_length(row_id, before), _shared_length(row_id, after))
        kind = row_id.index("_") + 1
        short[row_id] = row_id[: max(kind + SHORT_ID, shared + 1)]
    return short


def _shared_length(first: str, second: str) -> int:
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


class Advance(Protocol):
    """Moves a progress bar by `steps` and shows `note` beside it; `total` sets or changes the
    total."""

    def __call__(self, steps: float = 1, note: str = "", total: float | None = None) -> None:
        """Advance."""


@contextmanager
def progress(what: str, total: float | None, unit: str = "") -> Iterator[Advance]:
    """Show the progress of the work inside on standard error: a bar on a terminal, elsewhere a line
    every ten seconds."""
    if sys.stderr.isatty():
        with _bar(what, total, unit) as advance:
            yield advance
        return
    work = _Work(what, total, unit)
    with _TICKER.watching(work):
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
    """Where standard error is no terminal, a line for every ten seconds without other output."""
    if sys.stderr.isatty():
        yield
        return
    with _TICKER.watching(_Work(what, None, "")):
        yield


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

        def advance(steps: float = 1, note: str = "", total: float | None = None) -> None:
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

    def line(self) -> str:
        """Such as `training: 12 of 100 steps, 1:05 passed, about 7:56 left; loss 0.52`."""
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
                    say(innermost.line())
                except (OSError, ValueError):
                    return  # nobody reads any more, but the work goes on


_TICKER = _Ticker()
