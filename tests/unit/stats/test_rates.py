"""Single rates against the published table of Newcombe (1998, Table I), against scipy, and by exact
coverage."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from thumbwheel.core.errors import InputError
from thumbwheel.stats.rates import (
    areas_without_each,
    clopper_pearson,
    ranking_area,
    wilson,
)

NEWCOMBE = [  # successes, n, Wilson, Clopper-Pearson
    (81, 263, (0.2553, 0.3662), (0.2527, 0.3676)),
    (15, 148, (0.0624, 0.1605), (0.0578, 0.1617)),
    (0, 20, (0.0000, 0.1611), (0.0000, 0.1684)),
    (1, 29, (0.0061, 0.1718), (0.0009, 0.1776)),
]


@pytest.mark.parametrize(("successes", "n", "score", "exact"), NEWCOMBE)
def test_published_intervals(successes, n, score, exact):
    for interval, expected in (
        (wilson(successes, n), score),
        (clopper_pearson(successes, n), exact),
    ):
        assert (round(interval.low, 4), round(interval.high, 4)) == pytest.approx(
            expected, abs=1e-9
        )


@pytest.mark.parametrize(("method", "name"), [(wilson, "wilson"), (clopper_pearson, "exact")])
@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
def test_equals_scipy(method, name, level):
    for n in (1, 7, 100):
        for successes in range(n + 1):
            expected = stats.binomtest(successes, n).proportion_ci(level, name)
            interval = method(successes, n, level)
            assert (interval.low, interval.high) == pytest.approx(
                (expected.low, expected.high), abs=1e-12
            )


def test_clopper_pearson_covers_for_every_rate():
    for n in (1, 5, 23):
        intervals = [clopper_pearson(k, n) for k in range(n + 1)]
        for rate in np.linspace(0.001, 0.999, 97):
            inside = [interval.low <= rate <= interval.high for interval in intervals]
            assert stats.binom.pmf(range(n + 1), n, rate)[inside].sum() >= 0.95 - 1e-12


def test_nothing_known_is_the_whole_range():
    assert (wilson(0, 0).low, wilson(0, 0).high) == (0, 1)
    assert (clopper_pearson(0, 0).low, clopper_pearson(0, 0).high) == (0, 1)


@pytest.mark.parametrize("arguments", [(3, 2), (-1, 2), (1, 2, 1.0), (1, 2, 0.0)])
def test_impossible_counts_and_levels_are_refused(arguments):
    with pytest.raises(InputError):
        wilson(*arguments)


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=30))
def test_ranking_area_is_the_mann_whitney_statistic(rows):
    scores, good = [float(score) for score, _ in rows], [is_good for _, is_good in rows]
    first, second = [s for s, g in rows if g], [s for s, g in rows if not g]
    area = ranking_area(scores, good)
    if not first or not second:
        assert area is None
        return
    direct = np.mean([[1.0 if a > b else 0.5 if a == b else 0.0 for b in second] for a in first])
    assert area == pytest.approx(direct)
    assert area == pytest.approx(
        stats.mannwhitneyu(first, second).statistic / (len(first) * len(second))
    )


def test_the_area_without_each_cluster_is_that_of_the_other_items():
    random = np.random.default_rng(3)
    scores = random.integers(0, 12, 90) / 4  # with ties
    good = random.random(90) < 0.4
    clusters = random.integers(0, 30, 90).tolist()
    without = areas_without_each(scores, good, clusters)
    assert len(without) == len(dict.fromkeys(clusters))
    for cluster, area in zip(dict.fromkeys(clusters), without, strict=True):
        others = [index for index in range(90) if clusters[index] != cluster]
        assert area == pytest.approx(ranking_area(scores[others], good[others]), abs=1e-12)
    # without its only good item there is no area
    assert areas_without_each([1.0, 0.0, 0.5], [True, False, False], "abb") == [None, None]
    assert areas_without_each([1.0, 0.0, 0.5], [True, False, False], "abc") == [None, 1.0, 1.0]
