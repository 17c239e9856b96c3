"""Several runs beside each other: their curves, what they came to, and the settings that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thumbwheel.core import figures
from thumbwheel.core.config import Config
from thumbwheel.report.formatting import compact, number
from thumbwheel.server.pages.models import version_rows
from thumbwheel.server.pages.page import PageRequest
from thumbwheel.server.pages.training import METRICS, TONES
from thumbwheel.training.run_list import SECONDS, compare_runs
from thumbwheel.training.types import ComparedValues, ListedRun


class ComparisonQuery(Config):
    """Which runs are compared."""

    runs: str = ""
    """Their ids, with commas between them"""


@dataclass(frozen=True)
class ComparedLine:
    """A property of the runs as people read it, with its value for each."""

    label: str
    values: Sequence[str]
    differs: bool


def load_comparison(asked: PageRequest) -> Mapping[str, Any]:
    """Load the runs of the query. Raises InputError for too few or too many, NotFound for an
    unknown one."""
    names = [name for name in asked.parsed(ComparisonQuery).runs.split(",") if name]
    comparison = compare_runs(asked.ws, asked.agent, names)
    return {
        "title": f"{len(comparison.runs)} runs compared",
        "runs": comparison.runs,
        "results": [
            *(_result(line) for line in comparison.results),
            *_judged(asked, comparison.runs),
        ],
        "methods_differ": len({run.algorithm for run in comparison.runs}) > 1,
        "differing": [_setting(line) for line in comparison.settings],
        "equal": [_setting(line) for line in comparison.same],
        "metrics": list(METRICS.items()),
        "tones": TONES,
    }


def _judged(asked: PageRequest, runs: Sequence[ListedRun]) -> list[ComparedLine]:
    """Return the evaluations of the versions that the runs gave, what the gate decided, and what
    people wrote about the runs."""
    rows = {row.version.name: row for row in version_rows(asked, asked.agent)}
    gains, verdicts = [], []
    for run in runs:
        row = rows.get(run.version or "")
        gain = verdict = "–"
        if row and row.evaluation:
            gain = f"{figures.gain(row.evaluation.primary.gain)} over {row.evaluation.against}"
        if row and row.decision:
            verdict = str(row.decision["decision"]).replace("_", " ")
        gains.append(gain)
        verdicts.append(verdict)
    return [
        _words("gain in the evaluation", gains),
        _words("the gate", verdicts),
        _words("note", [run.note or "–" for run in runs]),
        _words("tags", [", ".join(run.tags) or "–" for run in runs]),
    ]


def _words(label: str, values: Sequence[str]) -> ComparedLine:
    return ComparedLine(label, values, len(set(values)) > 1)


def _result(line: ComparedValues) -> ComparedLine:
    if line.name == SECONDS:
        return ComparedLine(
            "time", [figures.duration(value) for value in line.values], line.differs
        )
    return ComparedLine(line.name, [number(value) for value in line.values], line.differs)


def _setting(line: ComparedValues) -> ComparedLine:
    values = ["–" if value is None else compact(value) for value in line.values]
    return ComparedLine(line.name, values, line.differs)
