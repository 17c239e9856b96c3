"""The homes of scripts: beside an output folder, or named in a call.

A user types the command of an error into a shell, which does not know the script's home. So the
commands that an error names get the option `--home`. An option that it advises outside of a command
becomes a setting of the script.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from thumbwheel.app.open import opener
from thumbwheel.core.config import Home
from thumbwheel.core.errors import ThumbwheelError

if TYPE_CHECKING:
    from thumbwheel.db.workspace import Workspace

COMMAND = re.compile(r"(?<![\w./-])thumbwheel (?=[a-z])")
"""The beginning of a command that names no home yet."""
OPTION = re.compile(r"--([a-z]+(?:-[a-z]+)*) (\d+|nf4)\b")
"""An option with its value, where an error advises one."""


@contextmanager
def open_home(home: str | Path | None, log_level: str = "warning") -> Iterator[Workspace]:
    """Open a home, the default one for None; it is closed at the end. Errors name it."""
    with errors_of(home), opener(Path(home) if home else None, None, log_level)() as ws:
        yield ws


@contextmanager
def errors_of(home: str | Path | None) -> Iterator[None]:
    """Add `--home` to the commands that an error names, unless it is the default home."""
    try:
        yield
    except ThumbwheelError as error:
        error.why = with_home(as_settings(error.why), home)
        error.fix = with_home(as_settings(error.fix), home)
        error.args = (f"{error.what}: {error.why}. {error.fix}",)
        raise


def with_home(text: str, home: str | Path | None) -> str:
    """Return a text whose commands name a home; the default one needs no name.

    >>> with_home("Run: thumbwheel runs list --agent a", "out/home")
    'Run: thumbwheel --home out/home runs list --agent a'
    >>> with_home("Run: thumbwheel runs list --agent a", None)
    'Run: thumbwheel runs list --agent a'
    """
    if home is None or Home.at(home).path == Home.at().path:
        return text
    command = f"thumbwheel --home {shlex.quote(str(home))} "
    return COMMAND.sub(lambda match: command, text)


def as_settings(text: str) -> str:
    """Return a text that names no command with its options as settings.

    >>> as_settings("Collect more feedback, or train anyway: --min-rows 1")
    'Collect more feedback, or train anyway: min_rows=1'
    """
    if COMMAND.search(text):
        return text
    return OPTION.sub(lambda match: f"{match[1].replace('-', '_')}={match[2]}", text)


def log_of(ws: Workspace, run_id: str) -> str:
    """Return the advice to read the log of a run."""
    return f"See its log: {ws.home.runs / run_id / 'log.txt'}"
