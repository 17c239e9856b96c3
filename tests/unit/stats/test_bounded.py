"""Gaffke's bound against what is known exactly, against draws, and as properties."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thumbwheel.stats.bounded import (
    chance_below,
    is_graded,
    lower_bound,
    negated,
    p_above,
    units_of,
)
from thumbwheel.stats.paired import compare
from thumbwheel.stats.rates import clopper_pearson

CHANGES = st.lists(st.floats(-1, 1).map(lambda value: round(value, 3)), min_size=2, max_size=40)


@pytest.mark.parametrize(("right", "n"), [(40, 50), (3, 20), (299, 300), (0, 10)])
def test_for_right_or_wrong_it_is_the_exact_binomial_bound(right, n):
    units = units_of(np.array([1.0] * right + [0.0] * (n - right)), np.ones(n))
    shifted = tuple(
        (2 * total - 1, size, count) for total, size, count in units
    )  # from -1 to 1, whose worst is -1
    for level in (0.95, 0.9998):
        exact = clopper_pearson(right, n, level).low
        assert (1 + lower_bound(shifted, 1.0, (1 - level) / 2)) / 2 == pytest.approx(
            exact, abs=2e-3
        )


def test_it_is_the_quantile_of_random_partitions():
    random = np.random.default_rng(0)
    sums, sizes = random.normal(0.3, 0.8, 25), random.integers(1, 6, 25).astype(float)
    weights = random.exponential(size=(200_000, 25))
    means = (weights @ sums) / (weights @ sizes)
    for threshold in (0.02, 0.06, 0.15):
        assert chance_below(threshold, sums, sizes, np.ones(25)) == pytest.approx(
            float((means <= threshold).mean()), abs=0.004
        )


@given(CHANGES, st.sampled_from([0.8, 0.95, 0.999]))
def test_the_interval_holds_the_mean_and_grows_with_the_level(changes, level):
    estimate = compare(np.zeros(len(changes)), changes, span=1.0).estimate
    interval, wider = estimate.interval(level), estimate.interval(1 - (1 - level) / 4)
    assert -1 <= wider.low <= interval.low <= estimate.value <= interval.high <= wider.high <= 1
    assert bool(estimate.units) == is_graded(changes, 1.0)


@given(CHANGES)
def test_the_p_value_is_the_level_at_which_the_interval_touches_zero(changes):
    estimate = compare(np.zeros(len(changes)), changes, span=1.0).estimate
    if estimate.units and 1e-6 < estimate.p_value < 0.99:
        inside, outside = (
            estimate.interval(1 - estimate.p_value * factor) for factor in (0.98, 1.02)
        )
        assert inside.low <= 0 <= inside.high
        assert outside.low > 0 or outside.high < 0


@given(CHANGES)
def test_losses_are_gains_turned_round(changes):
    estimate = compare(np.zeros(len(changes)), changes, span=1.0).estimate
    mirrored = compare(changes, np.zeros(len(changes)), span=1.0).estimate
    assert mirrored.interval(0.95).high == pytest.approx(-estimate.interval(0.95).low, abs=1e-7)


@given(CHANGES)
def test_alike_clusters_are_counted_and_order_is_nothing(changes):
    units = units_of(np.array(changes), np.ones(len(changes)))
    assert units == units_of(np.array(changes[::-1]), np.ones(len(changes)))
    assert sum(count for *_, count in units) == len(changes)
    assert 0 <= p_above(units, 1.0) <= 1 and 0 <= p_above(negated(units), 1.0) <= 1
