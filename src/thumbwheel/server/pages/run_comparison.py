"""Several runs beside each other: their curves, what they came to, and the settings that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thumbwheel.core.config import Config
from thumbwheel.core.figures import duration
from thumbwheel.report.formatting import compact, number
from thumbwheel.server.pages.page import PageRequest
from thumbwheel.server.pages.training import METRICS, TONES
from thumbwheel.training.run_list import SECONDS, compare_runs
from thumbwheel.training.types import ComparedValues


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
        "results": [_result(line) for line in comparison.results],
        "differing": [_setting(line) for line in comparison.settings],
        "equal": [_setting(line) for line in comparison.same],
        "metrics": list(METRICS.items()),
        "tones": TONES,
    }


def _result(line: ComparedValues) -> ComparedLine:
    if line.name == SECONDS:
        return ComparedLine("time", [duration(value) for value in line.values], line.differs)
    return ComparedLine(line.name, [number(value) for value in line.values], line.differs)


def _setting(line: ComparedValues) -> ComparedLine:
    values = ["–" if value is None else compact(value) for value in line.values]
    return ComparedLine(line.name, values, line.differs)
