"""Runs commands of the command line on a home that is open already."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

import pytest
from typer.main import get_command

from thumbwheel.app.job_kinds import job_kind
from thumbwheel.app.served_home import Asking, ServedHome
from thumbwheel.cli.main import show_answers
from thumbwheel.core import log
from thumbwheel.core.present import Answer
from thumbwheel.db.workspace import Workspace
from thumbwheel.jobs.request import JobRequest


class OpenedHome(ServedHome):
    """A home for commands of the command line, which do long operations themselves."""

    def performed(self, request: JobRequest[Any, Any]) -> Answer[Any]:
        """Return the answer of a long operation."""
        return request.show(job_kind(request.kind).handler(self.ws, request.spec))


@dataclass(frozen=True)
class Outcome:
    """How a command ended, and what it wrote to standard output."""

    exit_code: int
    stdout: str


def invoked(ws: Workspace, commands: Any, *arguments: str, columns: int = 80) -> Outcome:
    """Run a command of these on an open home as the command line does; what it raises is raised."""
    command = get_command(commands)
    show_answers(command)
    written = io.StringIO()
    log.console.cache_clear()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(written):
        patch.setenv("COLUMNS", str(columns))
        patch.setattr(sys, "argv", ["thumbwheel", *arguments])
        home = OpenedHome(ws, ws, Asking())
        code = command(list(arguments), standalone_mode=False, obj=home)
    log.console.cache_clear()
    return Outcome(code or 0, written.getvalue())
