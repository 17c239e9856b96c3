"""What is said while work goes on: the log (standard error), tables, progress bars and JSON (standard output).

Standard output carries the answer and nothing else, so that `--json` can be piped; everything that is said on the way,
progress included, goes to standard error.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.console import Console

logger = logging.getLogger("thumbwheel")


def configure(level: str = "info") -> None:
    """Send the log to standard error at `level` (debug, info, warning, error)."""
    logging.basicConfig(level=level.upper(), format="%(message)s", stream=sys.stderr, force=True)
    for noisy, least in (("httpx", "WARNING"), ("alembic", "WARNING"), ("filelock", "WARNING"), ("bitsandbytes", "ERROR")):
        logging.getLogger(noisy).setLevel(least)


@cache
def console(stderr: bool = True) -> Console:
    """The terminal: standard error by default, because standard output is for answers."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """One line for a person, on standard error."""
    console().print(text, markup=False)


def answer(value: Any) -> None:
    """`value` as JSON on standard output."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table for a person, on standard output."""
    from rich.table import Table
    from rich.text import Text

    drawn = Table(title=Text(title), title_justify="left", header_style="bold")
    for column in columns:
        drawn.add_column(column, overflow="fold")
    for row in rows:
        drawn.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    console(stderr=False).print(drawn)


class Advance(Protocol):
    """Moves a progress bar by `steps` and shows `note` beside it."""

    def __call__(self, steps: float = 1, note: str = "") -> None:
        """Advance."""


@contextmanager
def progress(what: str, total: float | None, unit: str = "") -> Iterator[Advance]:
    """A progress bar with elapsed and remaining time on standard error; silent where that is no terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = [
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    ]
    with Progress(*columns, console=console(), transient=True, disable=not console().is_terminal) as bar:
        task = bar.add_task(what, total=total, note="")

        def advance(steps: float = 1, note: str = "") -> None:
            bar.update(task, advance=steps)
            if note:
                bar.update(task, note=note)

        yield advance
