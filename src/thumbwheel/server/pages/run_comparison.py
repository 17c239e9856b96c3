"""Several runs beside each other: their curves, what they came to, and the settings that differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thumbwheel.core.config import Config
from thumbwheel.core.errors import InputError
from thumbwheel.core.figures import duration
from thumbwheel.report.formatting import compact, number
from thumbwheel.server.pages.page import PageRequest
from thumbwheel.server.pages.training import METRICS, TONES, RunRow, run_rows
from thumbwheel.training.train import run_of

FEWEST, MOST = 2, 8
"""Runs that can be compared; each has a hue of its own."""


class ComparisonQuery(Config):
    """Which runs are compared."""

    runs: str = ""
    """Their ids, with commas between them"""


@dataclass(frozen=True)
class ComparedLine:
    """A property of the runs, with its value for each."""

    label: str
    values: Sequence[str]

    @property
    def differs(self) -> bool:
        """Whether the runs do not all have the same value."""
        return len(set(self.values)) > 1


def load_comparison(asked: PageRequest) -> Mapping[str, Any]:
    """Load the runs of the query. Raises InputError for too few or too many, NotFound for an
    unknown one."""
    names = [name for name in asked.parsed(ComparisonQuery).runs.split(",") if name]
    if not FEWEST <= len(set(names)) <= MOST:
        fix = "Choose them on the page Runs, and press Compare"
        raise InputError("the runs", f"{FEWEST} to {MOST} can be compared", fix)
    runs = [run_of(asked.ws, asked.agent, name) for name in dict.fromkeys(names)]
    rows = run_rows(asked.ws, asked.agent, runs)
    settings = _settings(rows)
    return {
        "title": f"{len(rows)} runs compared",
        "rows": rows,
        "results": [ComparedLine(label, [read(row) for row in rows]) for label, read in RESULTS],
        "differing": [line for line in settings if line.differs],
        "equal": [line for line in settings if not line.differs],
        "metrics": list(METRICS.items()),
        "tones": TONES,
    }


def _settings(rows: Sequence[RunRow]) -> list[ComparedLine]:
    """Return every setting of the runs, in the order of the first run that has it."""
    names = dict.fromkeys(name for row in rows for name in row.run.config)
    lines = [
        ComparedLine("method", [row.run.algorithm for row in rows]),
        ComparedLine("base", [row.run.base for row in rows]),
        ComparedLine("dataset", [row.run.dataset_id for row in rows]),
    ]
    for name in names:
        values = [compact(row.run.config[name]) if name in row.run.config else "–" for row in rows]
        lines.append(ComparedLine(name, values))
    return lines


def _loss(row: RunRow) -> str:
    return f"{number(row.base.get('eval_loss'))} → {number(row.best.get('eval_loss'))}"


RESULTS: tuple[tuple[str, Callable[[RunRow], str]], ...] = (
    ("dev loss, base → best", _loss),
    ("margin on dev rows", lambda row: number(row.best.get("eval_rewards/margins"))),
    ("steps", lambda row: number(row.figures.get("steps"))),
    ("best step", lambda row: number(row.figures.get("best_step"))),
    ("time", lambda row: duration(row.figures.get("seconds"))),
    ("peak memory in GB", lambda row: number(row.figures.get("peak_memory_gb"))),
    ("version", lambda row: row.version.name if row.version else "none"),
)
"""Label -> how a run's value is shown."""
