"""Training rows of a caller, imported as traces and feedback of an agent."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thumbwheel.core import log
from thumbwheel.core.errors import InputError
from thumbwheel.datasets.dataplan import plural
from thumbwheel.datasets.types import Dataset, DatasetConfig
from thumbwheel.db.workspace import Workspace

if TYPE_CHECKING:
    from thumbwheel.importers.import_report import ImportReport


FEW = 10
"""Examples below which none is held out."""


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


def everything_trains(ws: Workspace) -> DatasetConfig:
    """Return the rules of the home's datasets, with nothing held out."""
    return ws.settings(DatasetConfig, "dataset").model_copy(update={"dev": 0.0, "gate": 0.0})


def dataset_of_few(ws: Workspace, agent: str, shape: str, examples: int) -> Dataset | None:
    """Return a dataset of all rows if there are fewer than `FEW` examples: a part of them would
    tell nothing, and might be all of them. Of more examples some are held out, and the training
    builds that dataset: None. Raises DataError where there is nothing to train on."""
    from thumbwheel.datasets.build import build

    if examples >= FEW:
        return None
    log.say(f"note: {plural(examples, 'example')}: from {FEW} on some are held out")
    return build(ws, agent, shape, everything_trains(ws))


def report_refused(report: ImportReport) -> None:
    """Say how many lines an import refused, and why the first one."""
    if report.refused:
        count = f"{report.refused} lines are" if report.refused > 1 else "1 line is"
        reason = report.refusals[0]["reason"]
        log.say(f"{count} left out, the first for this reason: {reason}")
