"""The grid of wrong verdicts decides as the controller does that looks after every person."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.experiment_grid import (
    Cell,
    Crowd,
    Verdicts,
    crowd,
    experiment_of,
    is_decided,
    play,
)

pytestmark = pytest.mark.slow

RUNS = 2
SEED = 3


def look_at_each(cell: Cell) -> list[Verdicts]:
    """Ask the rule at every look, without the shortcut by the stake."""
    random = np.random.default_rng(SEED)
    crowds = [crowd(random, cell) for _ in range(RUNS)]
    return [
        Verdicts(
            won_at=first_look(cell, people, stops=False),
            stopped_at=first_look(cell, people, stops=True),
        )
        for people in crowds
    ]


def first_look(cell: Cell, crowd: Crowd, stops: bool) -> int | None:
    """Return after how many people the rule decides about any of the arms."""
    experiment = experiment_of(cell)
    arms = [f"v{arm}" for arm in range(1, cell.arms)]
    for people in range(cell.every, cell.people + 1, cell.every):
        if any(is_decided(experiment, crowd, people, arm, stops) for arm in arms):
            return people
    return None


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(Cell(0.5, 0.5, every=20, gain=0.4, people=400), id="wins"),
        pytest.param(Cell(0.2, 0.7, every=20, gain=-0.6, people=400), id="stops"),
        pytest.param(Cell(0.5, 0.5, every=20, people=200), id="equal"),
        pytest.param(Cell(0.5, 0.4, True, every=50, gain=0.5, people=600), id="wins in a ramp"),
        pytest.param(Cell(0.6, 0.4, arms=3, every=50, gain=0.5, people=400), id="three arms"),
    ],
)
def test_the_grid_decides_as_looks_after_every_few_people_do(cell: Cell) -> None:
    assert play(cell, RUNS, SEED) == look_at_each(cell)
