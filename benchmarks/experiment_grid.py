"""Wrong verdicts of experiments over shares, rates, ramps, arms and looks; and the power beside it.

Each cell plays many experiments at once. `betting.wealth` gives the stake after every person for
all of them, and `betting.log_evidence` is never more than it. So only where the stake passes the
threshold is the rule itself asked: `analyse` and `decide` over the people who came so far, as the
controller asks them. A verdict counts if they give it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import product
from multiprocessing import get_context
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thumbwheel.experiments.analysis import analyse, decide, stopping_bets, winning_bets
from thumbwheel.experiments.types import (
    Arm,
    Collected,
    Experiment,
    ExperimentConfig,
    Figures,
    Plan,
    State,
    Stratum,
    UnitFigures,
)
from thumbwheel.stats.betting import Arrivals, Bets, log_evidence, wealth
from thumbwheel.stats.duration import expected_units
from thumbwheel.stats.sequential import boundary

Array = NDArray[np.float64]
START = datetime(2026, 1, 5, tzinfo=UTC)
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
RATES = (0.01, 0.02, 0.05, 0.2, 0.5, 0.8, 0.95, 0.98, 0.99, 0.999)
RAMP = ((0.1, 0.25), (0.4, 0.25))
"""Two steps before the share itself: the part of it, and for which part of the people."""
ARMS = (2, 3, 6)
LOOKS = (1, 50)
PEOPLE = 4000
CHUNK = 250
"""Experiments that are played at once."""
POWER_RUNS = 100
"""Of each cell, with one arm that is better."""
POWER_CELLS = tuple(
    (share, rate, gain)
    for share, (rate, gain) in product(
        (0.5, 0.05),
        ((0.3, 0.1), (0.6, 0.05), (0.6, 0.1), (0.6, 0.2), (0.9, 0.05), (0.98, 0.015)),
    )
)
POWER_PEOPLE = {0.5: 6000, 0.05: 16_000}


@dataclass(frozen=True)
class Cell:
    """An experiment whose arms are equal, but for the gain of the last one."""

    share: float
    rate: float
    has_ramp: bool = False
    arms: int = 2
    every: int = 1
    """People between two looks."""
    gain: float = 0.0
    people: int = PEOPLE
    tuned_for: float = 5000.0

    @property
    def shares(self) -> list[tuple[float, int]]:
        """(share of all arms but the control, people) of each stratum."""
        if not self.has_ramp:
            return [(self.share, self.people)]
        steps = [(part * self.share, int(time * self.people)) for part, time in RAMP]
        return [*steps, (self.share, self.people - sum(count for _, count in steps))]


def cells() -> list[Cell]:
    """All corners, and each share with each rate; ramp, arms and looks of those in turn."""
    chosen = [
        Cell(share, rate, has_ramp, arms, every)
        for share, rate, has_ramp, arms, every in product(
            (SHARES[0], SHARES[-1]),
            (RATES[0], RATES[-1]),
            (False, True),
            (ARMS[0], ARMS[-1]),
            LOOKS,
        )
    ]
    others = [
        pair
        for pair in product(SHARES, RATES)
        if not (pair[0] in (SHARES[0], SHARES[-1]) and pair[1] in (RATES[0], RATES[-1]))
    ]
    for number, (share, rate) in enumerate(others):
        # Every second pair is left out of the middle, so that about sixty cells are played.
        if number % 2 == 0:
            turn = number // 2
            cell = Cell(share, rate, turn % 2 == 1, ARMS[turn % 3], LOOKS[turn // 2 % 2])
            chosen.append(cell)
    return chosen


def experiment_of(cell: Cell) -> Experiment:
    """Return the experiment of a cell, with the default settings but for the floor of time: the
    error has to be kept by the rule, not by a day without looks."""
    names = [f"v{number}" for number in range(cell.arms)]
    arms = tuple(Arm(name=name, version_id=name, weights=name) for name in names)
    plan = Plan(arms=arms, config=ExperimentConfig(min_hours=0), tuned_for=cell.tuned_for)
    strata = []
    for number, (share, _) in enumerate(cell.shares):
        shares = dict.fromkeys(names, share / (cell.arms - 1)) | {names[0]: 1 - share}
        strata.append(Stratum(number, shares, "", START))
    return Experiment(
        "exp_grid", "grid", "live", plan, "salt", State.RUNNING, "", Collected(), START, None,
        tuple(strata),
    )  # fmt: skip


@dataclass(frozen=True)
class Crowd:
    """The people of one experiment, in the order in which they come."""

    arms: NDArray[np.int64]
    outcomes: Array
    strata: NDArray[np.int64]

    def figures(self, count: int) -> Figures:
        """The figures after so many people."""
        units = []
        for number in range(count):
            moment = START + timedelta(minutes=number)
            arm, stratum = f"v{self.arms[number]}", int(self.strata[number])
            outcome = float(self.outcomes[number])
            units.append(
                UnitFigures(
                    f"u{number:05d}"[::-1], arm, stratum, moment, outcome, 1.0, moment, calls=1
                )
            )
        return Figures(tuple(units))


def crowd(random: np.random.Generator, cell: Cell) -> Crowd:
    """People who all answer at once."""
    strata = np.repeat(np.arange(len(cell.shares)), [count for _, count in cell.shares])
    shares = np.array([share for share, _ in cell.shares])[strata]
    is_treated = random.random(cell.people) < shares
    arms = np.where(is_treated, random.integers(1, cell.arms, cell.people), 0)
    rates = np.where(arms == cell.arms - 1, cell.rate + cell.gain, cell.rate)
    return Crowd(arms, (random.random(cell.people) < rates).astype(float), strata)


@dataclass
class Verdicts:
    """How an experiment that went on whatever was decided would have been decided first."""

    won_at: int | None = None
    """People until an arm won."""
    stopped_at: int | None = None


def play(cell: Cell, runs: int, seed: int) -> list[Verdicts]:
    """So many experiments of a cell."""
    random = np.random.default_rng(seed)
    experiment = experiment_of(cell)
    ends = []
    for begin in range(0, runs, CHUNK):
        crowds = [crowd(random, cell) for _ in range(min(CHUNK, runs - begin))]
        verdicts = [Verdicts() for _ in crowds]
        for arm in range(1, cell.arms):
            _play_arm(cell, experiment, crowds, verdicts, arm)
        ends += verdicts
    return ends


def _play_arm(
    cell: Cell, experiment: Experiment, crowds: list[Crowd], verdicts: list[Verdicts], arm: int
) -> None:
    """Find when this arm wins, and when it is stopped, in each of the experiments."""
    # The people of this arm and the control; rows are filled up at their ends.
    chosen = [np.flatnonzero((crowd.arms == 0) | (crowd.arms == arm)) for crowd in crowds]
    longest = max(map(len, chosen))
    treated = np.zeros((len(crowds), longest), bool)
    outcomes, shares = np.zeros(treated.shape), np.full(treated.shape, 0.5)
    of_two = np.array([
        share / (cell.arms - 1) / (share / (cell.arms - 1) + 1 - share) for share, _ in cell.shares
    ])  # fmt: skip
    for row, (crowd, pair) in enumerate(zip(crowds, chosen, strict=True)):
        treated[row, : len(pair)] = crowd.arms[pair] == arm
        outcomes[row, : len(pair)] = crowd.outcomes[pair]
        shares[row, : len(pair)] = of_two[crowd.strata[pair]]
    arrivals = Arrivals(treated, outcomes, shares)

    for bets, stops in (
        (winning_bets(experiment.plan), False),
        (stopping_bets(experiment.plan), True),
    ):
        side = arrivals.flipped() if stops else arrivals
        stakes = wealth(side, bets)
        for row, pair in enumerate(chosen):
            verdict = verdicts[row]
            earlier = verdict.stopped_at if stops else verdict.won_at
            of_row = Arrivals(side.treated[row], side.outcomes[row], side.shares[row])
            config = experiment.plan.config
            least = config.min_stop if stops else config.min_units
            for people in _looks(stakes[row], pair, of_row, bets, cell, least):
                if earlier is not None and people >= earlier:
                    break
                if is_decided(experiment, crowds[row], people, f"v{arm}", stops):
                    if stops:
                        verdict.stopped_at = people
                    else:
                        verdict.won_at = people
                    break


def _looks(
    stakes: Array,
    pair: NDArray[np.int64],
    arrivals: Arrivals,
    bets: Bets,
    cell: Cell,
    least: int,
) -> Iterator[int]:
    """The looks, as people who came by then, at which the evidence passes its threshold and both
    arms have so many people."""
    treated = np.cumsum(arrivals.treated[: len(pair)])
    fewest = np.minimum(treated, np.arange(1, len(pair) + 1) - treated)
    passes = (stakes[: len(pair)] >= bets.threshold) & (fewest >= least)
    for index in np.flatnonzero(passes):
        came = int(pair[index]) + 1
        people = math.ceil(came / cell.every) * cell.every
        # At a look after more people, the stake is that after the last one of the two arms.
        last = int(np.searchsorted(pair, people)) - 1
        if people > cell.people or last != index:
            continue
        if log_evidence(arrivals.first(int(index) + 1), bets) >= bets.threshold:
            yield people


def is_decided(experiment: Experiment, crowd: Crowd, people: int, arm: str, stops: bool) -> bool:
    """Whether the rule wins or stops this arm after so many people."""
    inputs = analyse(experiment, crowd.figures(people), START + timedelta(minutes=people))
    decision = decide(experiment.plan, inputs)
    if stops:
        return decision.verdict == "lost" or arm in decision.dropped
    return decision.verdict == "won"


def row_of(cell: Cell, runs: int, seed: int) -> dict[str, Any]:
    """A cell with its wrong verdicts, and the power against a gain that is worth having."""
    ends = play(cell, runs, seed)
    gain = min(0.1, (1 - cell.rate) / 2)
    better = play(replace(cell, gain=gain), min(runs, POWER_RUNS), seed + 1)
    return {
        "share": cell.share,
        "rate": cell.rate,
        "ramp": cell.has_ramp,
        "arms": cell.arms,
        "every": cell.every,
        "wrong_wins": sum(end.won_at is not None for end in ends) / runs,
        "wrong_stops": sum(end.stopped_at is not None for end in ends) / runs,
        "gain": round(gain, 4),
        "power": sum(end.won_at is not None for end in better) / len(better),
    }


def power_of(share: float, rate: float, gain: float, runs: int, seed: int) -> dict[str, Any]:
    """People until a gain is shown, with the power that was said before; beside it the asymptotic
    sequence that decided before, from 100 units an arm on."""
    spread = rate * (1 - rate)
    units = expected_units(gain, (spread, spread), 0.05, share=share)
    tuned_for = float(min(max(units or 5000, 200), 50_000))
    cell = Cell(share, rate, gain=gain, people=POWER_PEOPLE[share], tuned_for=tuned_for)
    ends = [end.won_at for end in play(cell, runs, seed)]
    random = np.random.default_rng(seed)
    before = [asymptotic_win(crowd(random, cell), tuned_for) for _ in range(runs)]
    return {
        "share": share,
        "rate": rate,
        "gain": gain,
        "people_forecast": units,
        **_when("", ends, cell.people, units),
        **_when("asymptotic_", before, cell.people, units),
    }


def _when(name: str, ends: list[int | None], people: int, forecast: int | None) -> dict[str, Any]:
    times = np.array([people * 10 if end is None else end for end in ends])
    half, most = (float(np.quantile(times, part)) for part in (0.5, 0.8))
    return {
        f"{name}power": float((times <= people).mean()),
        f"{name}power_at_forecast": float((times <= (forecast or 0)).mean()),
        f"{name}median": half if half <= people else None,
        f"{name}within_80": most if most <= people else None,
    }


def asymptotic_win(people: Crowd, tuned_for: float) -> int | None:
    """People until the asymptotic sequence showed a gain with nine tenths of the error."""
    treated = people.arms == 1
    n = np.arange(1, len(treated) + 1)
    counts = np.stack([n - np.cumsum(treated), np.cumsum(treated)])
    sums = np.stack([np.cumsum(people.outcomes * side) for side in (~treated, treated)])
    means = sums / np.maximum(counts, 1)
    variance = (means * (1 - means) / np.maximum(counts - 1, 1)).sum(0)
    widths = np.array([boundary(int(count), 0.045, tuned_for) for count in n])
    has_won = (means[1] - means[0] > np.sqrt(variance) * widths) & (counts.min(0) >= 100)
    return int(has_won.argmax()) + 1 if has_won.any() else None


def bench_grid(runs: int, processes: int) -> dict[str, Any]:
    """The table of wrong verdicts, and that of the power."""
    all_cells = cells()
    rows, powers = [], []
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        futures = [
            pool.submit(row_of, cell, runs, 1000 * number) for number, cell in enumerate(all_cells)
        ]
        gains = [
            pool.submit(power_of, *cell, min(runs, 200), 7000 + number)
            for number, cell in enumerate(POWER_CELLS)
        ]
        try:
            for future in futures:
                rows.append(future.result())
                print(rows[-1], file=sys.stderr, flush=True)
            for future in gains:
                powers.append(future.result())
                print(powers[-1], file=sys.stderr, flush=True)
        except BaseException:
            pool.shutdown(cancel_futures=True)  # or the other cells are played before this is said
            raise
    config = ExperimentConfig()
    return {
        "runs": runs,
        "people": PEOPLE,
        "cells": len(rows),
        "alpha": config.alpha / 2,
        "stop_alpha": config.stop_alpha,
        "most_wrong_wins": max(row["wrong_wins"] for row in rows),
        "most_wrong_stops": max(row["wrong_stops"] for row in rows),
        "rows": rows,
        "power": powers,
    }
