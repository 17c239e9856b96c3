"""Kappa and alpha against published figures, and what must hold of them for any verdicts."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thumbwheel.core.errors import InputError
from thumbwheel.stats.agreement import alpha, cohen_kappa, kappa, krippendorff_alpha

N = None
KRIPPENDORFF_2011 = [
    [1, 2, 3, 3, 2, 1, 4, 1, 2, N, N, N],
    [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, N, 3],
    [N, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, N],
    [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, N],
]
"""Section C of the paper: four observers, twelve units."""
UNITS = [list(unit) for unit in zip(*KRIPPENDORFF_2011, strict=True)]


def table(*rows):
    """Verdicts of two raters from their table of counts."""
    cells = [
        (row, column)
        for row, counts in enumerate(rows)
        for column, count in enumerate(counts)
        for _ in range(count)
    ]
    return [row for row, _ in cells], [column for _, column in cells]


@pytest.mark.parametrize(
    ("metric", "published"), [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849)]
)
def test_alpha_of_krippendorffs_own_example(metric, published):
    assert krippendorff_alpha(UNITS, metric) == pytest.approx(published, abs=5e-4)


def test_alpha_of_krippendorffs_binary_and_nominal_examples():
    binary = list(zip([0, 1, 0, 0, 0, 0, 0, 0, 1, 0], [1, 1, 1, 0, 0, 1, 0, 0, 0, 0], strict=True))
    nominal = list(zip("aabbdcccedda", "babbbccceddd", strict=True))
    assert krippendorff_alpha(binary) == pytest.approx(0.095, abs=5e-4)
    assert krippendorff_alpha(nominal) == pytest.approx(0.692, abs=5e-4)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (((20, 5), (10, 15)), 0.4),
        (((45, 15), (25, 15)), 0.1304),
        (((25, 35), (5, 35)), 0.2593),
        (((10, 0), (0, 10)), 1.0),
        (((0, 10), (10, 0)), -1.0),
    ],
)
def test_kappa_of_known_tables(rows, expected):
    assert cohen_kappa(*table(*rows)) == pytest.approx(expected, abs=5e-5)


def test_what_says_nothing_has_no_value():
    assert cohen_kappa([], []) is None
    assert cohen_kappa([1, 1], [1, 1]) is None
    assert krippendorff_alpha([[1, None], [2]]) is None
    assert krippendorff_alpha([[1, 1], [1, 1]]) is None
    assert alpha([[1, 1]]).as_dict() == {
        "value": None,
        "low": None,
        "high": None,
        "units": 1,
        "share": 1.0,
    }
    with pytest.raises(InputError, match="same items"):
        cohen_kappa([1], [1, 2])
    with pytest.raises(InputError, match="not numbers"):
        krippendorff_alpha([["a", "b"]], "ordinal")


def test_intervals_hold_the_value_and_are_the_same_every_time():
    first, second = table((40, 10), (10, 40))
    agreement = kappa(first, second)
    assert agreement.value == pytest.approx(0.6)
    assert agreement.interval.low < 0.6 < agreement.interval.high
    assert 0.2 < agreement.interval.width < 0.45
    assert agreement.share == 0.8
    assert agreement == kappa(first, second)
    of_units = alpha(UNITS, "ordinal")
    assert of_units.interval.low < of_units.value <= of_units.interval.high
    assert of_units.units == 11


VERDICTS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), min_size=1, max_size=30
)


@given(VERDICTS)
def test_kappa_is_symmetric_bounded_and_blind_to_names_and_order(pairs):
    first, second = zip(*pairs, strict=True)
    coefficient = cohen_kappa(first, second)
    assert coefficient == cohen_kappa(second, first) == cohen_kappa(first[::-1], second[::-1])
    assert coefficient is None or -1 <= coefficient <= 1
    assert coefficient == cohen_kappa(
        [verdict.upper() for verdict in first], [verdict.upper() for verdict in second]
    )
    assert (coefficient == 1) == (first == second and coefficient is not None)


@given(
    st.lists(st.lists(st.none() | st.integers(1, 5), max_size=5), max_size=12),
    st.sampled_from(["nominal", "ordinal", "interval"]),
)
def test_alpha_is_blind_to_order_missing_values_and_scale(units, metric):
    coefficient = krippendorff_alpha(units, metric)
    assert coefficient is None or coefficient <= 1
    again = krippendorff_alpha(
        [[*unit[::-1], None] for unit in units[::-1]] + [[None], [3]], metric
    )
    moved = krippendorff_alpha(
        [[None if value is None else value * 2 + 1 for value in unit] for unit in units], metric
    )
    for other in (again, moved):
        assert (coefficient is None and other is None) or math.isclose(
            coefficient, other, abs_tol=1e-9
        )


@given(
    st.lists(st.lists(st.integers(0, 4), max_size=5), max_size=8),
    st.sampled_from(["nominal", "ordinal", "interval"]),
)
def test_alpha_is_that_of_the_coincidence_matrix(units, metric):
    comparable = [unit for unit in units if len(unit) > 1]
    coincidences = np.zeros((5, 5))
    for unit in comparable:
        for first in range(len(unit)):
            for second in range(len(unit)):
                if first != second:
                    coincidences[unit[first], unit[second]] += 1 / (len(unit) - 1)
    totals = coincidences.sum(0)
    positions = np.cumsum(totals) - totals / 2 if metric == "ordinal" else np.arange(5.0)
    distance = (positions[:, None] - positions[None, :]) ** 2
    if metric == "nominal":
        distance = 1 - np.eye(5)
    expected = (np.outer(totals, totals) * distance).sum()
    value = krippendorff_alpha(units, metric)
    if np.count_nonzero(totals) < 2:
        assert value is None
    else:
        observed = (coincidences * distance).sum()
        assert value == pytest.approx(1 - (totals.sum() - 1) * observed / expected)
