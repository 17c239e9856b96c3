"""The metrics of runs as curves that a page can draw: down-sampled, so that a hundred long runs
over each other stay a few hundred kilobytes.

A curve keeps the lowest and the highest value of every stretch, so a spike is never lost.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pydantic_core

from thumbwheel.db.workspace import Workspace
from thumbwheel.training.train import run_dir
from thumbwheel.training.types import Run

EVAL = "eval_"
"""What the names of figures of the dev rows begin with."""
NO_CURVES = frozenset({"step", "epoch", "time", "seconds", "tokens"})
"""Fields of a line that say where it belongs, and are no metrics."""
FILES_IN_MEMORY = 200
"""Sampled files that are remembered; one that has grown is read anew."""
REMEMBERED_POINTS = 500
"""A curve with more points, or of a part of a run, is not remembered."""
DIGITS = 5


@dataclass(frozen=True)
class Curve:
    """One metric of a run, on its training batches or on the dev rows."""

    metric: str
    """Name of the metric."""
    split: str
    """`train` or `dev`."""
    steps: Sequence[int]
    """Optimiser steps at which it was measured."""
    values: Sequence[float]
    """Its value at each of these steps."""


@dataclass(frozen=True)
class RunCurves:
    """The curves of a run. `lines`: lines of metrics that are in them; what comes later is behind
    the event of that number."""

    run_id: str
    """Id of the run."""
    lines: int
    """Lines of metrics that the curves are made of; the next event of the run has a higher
    number."""
    curves: Sequence[Curve]
    """One curve a metric and split."""


@dataclass(frozen=True)
class StepRange:
    """The steps that curves show, both ends included; None is no bound."""

    first: int | None = None
    last: int | None = None

    def around(self, steps: Sequence[int]) -> slice:
        """Return the part of the ascending `steps` that draws the range: those in it, and the next
        one on either side, from which a line goes on. Empty if no line is in the range.

        >>> StepRange(20, 30).around([0, 10, 25, 40, 50]), StepRange(20, 30).around([0, 40])
        (slice(1, 4, None), slice(0, 2, None))
        >>> StepRange(20, 30).around([0, 10])
        slice(0, 0, None)
        """
        begin = 0 if self.first is None else bisect_left(steps, self.first)
        end = len(steps) if self.last is None else bisect_right(steps, self.last)
        if begin == end and not 0 < begin < len(steps):
            return slice(0, 0)
        return slice(max(0, begin - 1), end + 1)


EVERY_STEP = StepRange()


def curves(
    ws: Workspace,
    run: Run,
    points: int,
    metrics: Collection[str] = (),
    steps: StepRange = EVERY_STEP,
) -> RunCurves:
    """Return the curves of a run, for these metrics or for all, with at most `points` points each
    in `steps` and next to them."""
    path = run_dir(ws, run).metrics
    try:
        status = path.stat()
    except FileNotFoundError:
        return RunCurves(run.id, 0, ())
    if points <= REMEMBERED_POINTS and steps == EVERY_STEP:
        lines, every_curve = _remembered(path, status.st_size, status.st_mtime_ns, points)
    else:
        lines, every_curve = _sampled(path, status.st_size, points, steps)
    chosen = [curve for curve in every_curve if not metrics or curve.metric in metrics]
    return RunCurves(run.id, lines, chosen)


@lru_cache(maxsize=FILES_IN_MEMORY)
def _remembered(path: Path, size: int, written: int, points: int) -> tuple[int, tuple[Curve, ...]]:
    """Return (complete lines, curves) of a file of this size and modification time; both are part
    of the cache key."""
    return _sampled(path, size, points, EVERY_STEP)


def _sampled(
    path: Path, size: int, points: int, within: StepRange
) -> tuple[int, tuple[Curve, ...]]:
    """Return (complete lines, curves) of the first `size` bytes of a file."""
    content = path.read_bytes()[:size]
    complete = content[: content.rfind(b"\n") + 1].rstrip()
    if not complete:
        return 0, ()
    # One document is parsed several times faster than a thousand lines.
    lines = pydantic_core.from_json(b"[" + complete.replace(b"\n", b",") + b"]")
    names: dict[str, None] = {}  # in the order in which they came first
    for line in lines:
        names.update(dict.fromkeys(line))
    sampled = []
    for name in names:
        steps, values = _series(lines, name)
        part = within.around(steps)
        steps, values = steps[part], values[part]
        if steps and name not in NO_CURVES:
            split = "dev" if name.startswith(EVAL) else "train"
            sampled.append(_curve(name.removeprefix(EVAL), split, steps, values, points))
    return len(lines), tuple(sampled)


def _series(lines: Sequence[Mapping[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """Return (steps, values) of a metric from the lines where it is a number."""
    numbers = [line for line in lines if type(line.get(name)) in (float, int)]
    return [line["step"] for line in numbers], [line[name] for line in numbers]


def _curve(
    metric: str, split: str, steps: Sequence[int], values: Sequence[float], points: int
) -> Curve:
    indices = extremes(np.array(values, float), points)
    return Curve(
        metric,
        split,
        tuple(steps[index] for index in indices),
        tuple(_rounded(values[index]) for index in indices),
    )


def extremes(values: np.ndarray[Any, Any], points: int) -> list[int]:
    """Return indices of at most `points` values that show the course of all: the lowest and the
    highest of every equally long stretch, and the two ends.

    >>> extremes(np.array([0.0, 9.0, 1.0, 1.0, 1.0, 1.0, -5.0, 1.0]), 6)
    [0, 1, 4, 6, 7]
    """
    if len(values) <= points:
        return list(range(len(values)))
    chosen = {0, len(values) - 1}
    borders = np.linspace(0, len(values), max(1, (points - 2) // 2) + 1).astype(int)
    for begin, end in pairwise(borders):
        stretch = values[begin:end]
        chosen.add(int(begin + np.argmin(stretch)))
        chosen.add(int(begin + np.argmax(stretch)))
    return sorted(chosen)


def _rounded(value: float) -> float:
    """Round to five significant digits: more cannot be seen."""
    if value == 0 or not math.isfinite(value):
        return value
    return round(value, DIGITS - 1 - math.floor(math.log10(abs(value))))
