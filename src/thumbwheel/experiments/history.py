"""How the interval of an experiment narrowed: its analysis at moments since the start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from thumbwheel.db.workspace import Workspace
from thumbwheel.experiments.analysis import analyse, in_order
from thumbwheel.experiments.metrics import figures
from thumbwheel.experiments.types import ArmComparison, Experiment, Figures, UnitFigures

MOST_WORK = 400_000
"""Units that all moments together may look at; beyond it there are fewer moments."""
FEWEST_MOMENTS = 4


@dataclass(frozen=True)
class Moment:
    """The comparisons as they were when so many units had an outcome."""

    as_of: datetime
    answered: int
    comparisons: tuple[ArmComparison, ...]


def history(ws: Workspace, experiment: Experiment, moments: int = 24) -> list[Moment]:
    """Return the comparisons of every arm at so many moments, evenly over the outcomes that came
    in.

    Feedback that was retracted or corrected since counts in its present form; guards are not looked
    at.
    """
    units = figures(ws, experiment).units
    ordered = in_order(unit for unit in units if unit.answered_at is not None)
    if not ordered:
        return []
    unguarded = replace(experiment, plan=experiment.plan.model_copy(update={"guards": ()}))
    most = max(FEWEST_MOMENTS, min(moments, MOST_WORK // len(units)))
    return [_moment(unguarded, units, ordered[:count]) for count in _counts(len(ordered), most)]


def _counts(total: int, most: int) -> list[int]:
    """Return at most so many numbers up to `total`, evenly spaced.

    >>> _counts(100, 4), _counts(2, 4)
    ([25, 50, 75, 100], [1, 2])
    """
    return sorted({max(1, round(total * number / most)) for number in range(1, most + 1)})


def _moment(
    experiment: Experiment, units: Sequence[UnitFigures], answered: Sequence[UnitFigures]
) -> Moment:
    as_of = answered[-1].answered_at or experiment.recorded_at
    names = {unit.unit for unit in answered}
    seen = []
    for unit in units:
        if unit.unit in names:
            seen.append(unit)
        elif unit.exposed_at <= as_of:
            seen.append(replace(unit, outcome=None, answered_at=None))
    inputs = analyse(experiment, Figures(tuple(seen)), as_of)
    return Moment(as_of, len(answered), inputs.comparisons)
