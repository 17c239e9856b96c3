"""Rows of a training as a file of our own lines, imported as one agent's, and what an import left
out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thumbwheel.core import log
from thumbwheel.core.errors import InputError
from thumbwheel.db.workspace import Workspace

if TYPE_CHECKING:
    from thumbwheel.capture.ingest import ImportReport


def import_rows(
    ws: Workspace,
    agent: str,
    lines: Iterable[Mapping[str, Any]],
    path: Path,
) -> None:
    """Write the lines to `path` and import them. Raises InputError where one is refused, so that no
    row is left out in silence.
    """
    from thumbwheel.capture.ingest import ingest

    with path.open("w", encoding="utf-8") as stream:
        for line in lines:
            stream.write(json.dumps(line) + "\n")
    report = ingest(ws, agent, "jsonl", path)
    if report.refused:
        first = report.refusals[0]
        what = f"line {first['number']} of {str(path)!r}"
        fix = "Correct this row, or leave it out"
        if report.refused > 1:
            fix = f"Correct this row and {report.refused - 1} more that are refused"
        raise InputError(what, first["reason"], fix)


def tell_refused(report: ImportReport) -> None:
    """Say how many lines of somebody's files were refused, and why the first one was."""
    if report.refused:
        count = f"{report.refused} lines are" if report.refused > 1 else "1 line is"
        reason = report.refusals[0]["reason"]
        log.say(f"{count} left out, the first for this reason: {reason}")
