"""The figures of experiments, from few runs: no promotion without a gain, a bad arm ends soon, and
best-arm mode saves units."""

from __future__ import annotations

import pytest

from benchmarks import experiments

pytestmark = pytest.mark.slow


def test_arms_that_are_the_same_do_not_win() -> None:
    result = experiments.bench_aa(runs=40, processes=1, every=4, count=400)
    assert result["wrong_promotions"] <= 0.05
    assert result["units_do_not_arrive"] == 0.0


def test_an_arm_that_is_twenty_points_worse_ends_soon() -> None:
    result = experiments.bench_stoploss(runs=30, processes=1, every=4)
    assert result["lost"] == 1.0
    assert result["median_exposures"] < 200
    assert result["exposures_95"] < 450


def test_best_arm_mode_saves_two_fifths_of_the_units() -> None:
    result = experiments.bench_bandit(8)
    assert result["mean_saved"] >= 0.4
    assert result["easy"]["best_arm"]["errors"] <= result["delta"]


def test_the_whole_controller_promotes_nothing_without_a_gain() -> None:
    result = experiments.bench_whole(runs=2, processes=2)
    assert result["wrong_promotions"] == 0
    assert result["looks"] > 10
