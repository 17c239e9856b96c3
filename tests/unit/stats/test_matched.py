"""Matched yes and no against published figures, scipy, and exact coverage."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from thumbwheel.core.errors import InputError
from thumbwheel.stats.matched import mcnemar, newcombe


def test_mcnemar_of_the_published_example():
    """Airway responsiveness of 21 children (Bentur 2009) in Fagerland, Lydersen and Laake (2013):
    exact 0.0703, mid-p 0.0391."""
    assert round(mcnemar(7, 1), 4) == round(mcnemar(1, 7), 4) == 0.0703
    assert round(mcnemar(7, 1, mid=True), 4) == 0.0391


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_is_the_exact_binomial_test(better, worse):
    expected = stats.binomtest(better, better + worse).pvalue if better + worse else 1.0
    assert mcnemar(better, worse) == pytest.approx(expected)
    assert mcnemar(better, worse, mid=True) <= mcnemar(better, worse) <= 1


@pytest.mark.parametrize(
    ("table", "low", "high"),
    [
        (
            (1, 7, 1, 12),
            0.026,
            0.507,
        ),  # Fagerland, Lydersen and Laake (2014), table II: the same children
        ((20, 12, 2, 16), 0.0562, 0.3292),  # Newcombe (1998), table II, method 10
        ((36, 12, 2, 0), 0.0569, 0.3404),
    ],
)
def test_published_intervals_of_a_paired_difference(table, low, high):
    interval = newcombe(*table)
    digits = 3 if low == 0.026 else 4
    assert (round(interval.low, digits), round(interval.high, digits)) == (low, high)
    both, better, worse, neither = table
    swapped = newcombe(both, worse, better, neither)
    assert (swapped.low, swapped.high) == pytest.approx((-interval.high, -interval.low))


def test_the_interval_covers_about_as_often_as_it_says():
    random = np.random.default_rng(0)
    inside = []
    for both, better, worse in ((0.5, 0.2, 0.1), (0.8, 0.02, 0.02), (0.3, 0.3, 0.05)):
        drawn = random.multinomial(60, [both, better, worse, 1 - both - better - worse], size=500)
        intervals = [newcombe(*map(int, row)) for row in drawn]
        inside.append(
            np.mean([interval.low <= better - worse <= interval.high for interval in intervals])
        )
    assert min(inside) > 0.92


def test_nothing_known_and_the_impossible():
    assert (newcombe(0, 0, 0, 0).low, newcombe(0, 0, 0, 0).high) == (-1, 1)
    assert mcnemar(0, 0) == 1
    with pytest.raises(InputError):
        mcnemar(-1, 2)
