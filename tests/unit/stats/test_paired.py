"""The paired comparison against closed forms, another library's figures, and its properties."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from thumbwheel.core.errors import InputError
from thumbwheel.stats.paired import bootstrap, compare, jackknife, mean
from thumbwheel.stats.power import detectable_area, detectable_gain
from thumbwheel.stats.rates import ranking_area

BITS = st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 8)), min_size=2, max_size=60)


def cr2_by_matrices(values, clusters, level):
    """The textbook definition of CR2 with Bell-McCaffrey degrees of freedom, for a mean, by
    matrices."""
    values, clusters = np.asarray(values, float), np.asarray(clusters)
    n = len(values)
    ones = np.ones((n, 1))
    annihilator = np.eye(n) - ones @ ones.T / n
    residuals, columns, total = annihilator @ values, [], 0.0
    for name in np.unique(clusters):
        members = clusters == name
        block = annihilator[np.ix_(members, members)]
        eigenvalues, vectors = np.linalg.eigh(block)
        root = vectors @ np.diag(eigenvalues**-0.5) @ vectors.T
        weights = root @ ones[members] / n
        total += (residuals[members] @ weights).item() ** 2
        columns.append((annihilator[:, members] @ weights)[:, 0])
    gram = np.array(columns) @ np.array(columns).T
    degrees = np.trace(gram) ** 2 / (gram**2).sum()
    half = stats.t.isf((1 - level) / 2, degrees) * np.sqrt(total)
    return values.mean() - half, values.mean() + half, degrees


@pytest.mark.parametrize(
    "sizes", [[1, 1, 1, 1, 1], [4, 4, 4], [1, 2, 3, 9], [30, 1, 1, 1], [2] * 20]
)
def test_without_a_span_it_is_cr2_with_bell_mccaffrey_degrees(sizes):
    random = np.random.default_rng(len(sizes))
    clusters = np.repeat(range(len(sizes)), sizes)
    before, after = (
        random.normal(size=len(clusters)),
        random.normal(size=len(clusters)) + random.normal(size=len(sizes))[clusters],
    )
    comparison = compare(before, after, clusters.tolist(), span=None)
    low, high, degrees = cr2_by_matrices(after - before, clusters, 0.95)
    assert (comparison.low, comparison.high, comparison.degrees) == pytest.approx(
        (low, high, degrees), rel=1e-9
    )


def test_single_items_without_a_span_are_the_t_interval():
    before, after = np.random.default_rng(0).normal(size=(2, 17))
    comparison = compare(before, after, span=None)
    expected = stats.ttest_rel(after, before).confidence_interval(0.95)
    assert (comparison.low, comparison.high) == pytest.approx((expected.low, expected.high))
    assert comparison.degrees == pytest.approx(16)


@pytest.mark.parametrize(
    ("better", "worse", "n"), [(0, 0, 100), (5, 0, 800), (6, 0, 800), (59, 6, 1600), (24, 7, 161)]
)
def test_over_single_items_it_is_bonett_price(better, worse, n):
    """(b - c) / (n + 2) +- z sqrt(var / (n + 2)) with one added to b and c; ours has t for z, CR2's
    n - 1, the raw gain inside."""
    before = [0.0] * better + [1.0] * worse + [1.0] * (n - better - worse)
    after = [1.0] * better + [0.0] * worse + [1.0] * (n - better - worse)
    comparison = compare(before, after)
    up, down = (better + 1) / (n + 2), (worse + 1) / (n + 2)
    half = stats.norm.isf(0.025) * np.sqrt((up + down - (up - down) ** 2) / (n + 2))
    assert (comparison.low, comparison.high) == pytest.approx(
        (up - down - half, up - down + half), rel=0.02, abs=2e-4
    )
    assert comparison.gain == pytest.approx((better - worse) / n)


def test_two_pseudo_clusters_of_typical_size_widen_the_interval_and_ask_for_a_larger_gain():
    """Clusters of 5, 4 and 3 items, of which 3, 1 and none became right; the typical item is in a
    cluster of 50 / 12 items."""
    estimate = mean(np.array([3.0, 1.0, 0.0]), np.array([5.0, 4.0, 3.0]), span=1.0)
    typical = 50 / 12
    items = 12 + 2 * typical
    centre = 4 / items
    squares = 0.0
    for total, size in ((3, 5), (1, 4), (0, 3), (typical, typical), (-typical, typical)):
        squares += (total - centre * size) ** 2 / (1 - size / items)
    assert estimate.value == pytest.approx(4 / 12)
    assert estimate.centre == pytest.approx(centre)
    assert estimate.error == pytest.approx(np.sqrt(squares) / items)

    # A gain is drawn towards zero by the two, so one that is to be seen has to be larger.
    alone = mean(np.array([1.0] * 10 + [0.0] * 30), np.ones(40), span=1.0)
    half = stats.t.isf(0.025, 39) * alone.error
    wanted = (half + stats.t.isf(0.2, 39) * alone.error) * 42 / 40
    assert alone.detectable(0.95, 0.8) == pytest.approx(wanted)


def test_five_changes_for_the_better_do_not_exclude_zero_but_six_do():
    def low(better):
        return compare([0.0] * better + [1.0] * 795, [1.0] * better + [1.0] * 795).low

    assert low(5) < 0 < low(6)
    assert (
        stats.binomtest(5, 5).pvalue > 0.05 > stats.binomtest(6, 6).pvalue
    )  # the exact test agrees


def test_no_discordance_is_not_certainty():
    comparison = compare([1.0, 0.0] * 50, [1.0, 0.0] * 50)
    assert comparison.gain == 0 and comparison.changed == 0
    assert comparison.low < -0.02 and comparison.high > 0.02
    whole = compare([1.0] * 1000, [1.0] * 1000, [item // 100 for item in range(1000)])
    assert (
        whole.high - whole.low > 0.2
    )  # ten clusters that may move as one know much less than a thousand items


def test_one_cluster_knows_nothing():
    comparison = compare([0.0] * 50, [1.0] * 50, ["a"] * 50)
    assert (comparison.low, comparison.high, comparison.gain) == (-1, 1, 1)


def test_copies_of_an_item_in_its_cluster_add_no_certainty():
    random = np.random.default_rng(3)
    before, after = random.integers(0, 2, (2, 60)).astype(float)
    alone = compare(before, after, list(range(60)))
    copied = compare(np.repeat(before, 10), np.repeat(after, 10), np.repeat(range(60), 10).tolist())
    assert (copied.low, copied.high) == pytest.approx((alone.low, alone.high))


@given(BITS)
def test_properties(rows):
    before, after = [float(a) for a, *_ in rows], [float(b) for _, b, _ in rows]
    groups = [group for *_, group in rows]
    comparison = compare(before, after, groups)
    assert -1 <= comparison.low <= comparison.gain <= comparison.high <= 1
    assert comparison.gain == pytest.approx(comparison.after - comparison.before)
    assert comparison.low < comparison.high
    swapped = compare(after, before, groups)
    assert (swapped.low, swapped.high) == pytest.approx((-comparison.high, -comparison.low))
    wider = compare(before, after, groups, level=0.99)
    assert wider.low <= comparison.low + 1e-12 and comparison.high <= wider.high + 1e-12


def test_order_of_items_does_not_matter():
    random = np.random.default_rng(1)
    before, after = random.integers(0, 2, (2, 50)).astype(float)
    groups = random.integers(0, 9, 50)
    order = random.permutation(50)
    forward, backward = (
        compare(before, after, groups.tolist()),
        compare(before[order], after[order], groups[order].tolist()),
    )
    assert (forward.low, forward.high) == pytest.approx((backward.low, backward.high))


@pytest.mark.parametrize(
    ("before", "after", "options"),
    [
        ([], [], {}),
        ([1.0], [1.0, 0.0], {}),
        ([float("nan")], [0.0], {}),
        ([0.0], [2.0], {}),
        ([0.0, 1.0], [0.0, 1.0], {"clusters": ["a"]}),
    ],
)
def test_what_cannot_be_compared_is_refused(before, after, options):
    with pytest.raises(InputError):
        compare(before, after, **options)


def test_bootstrap_is_seeded_and_agrees_with_the_t_interval_on_many_clusters():
    random = np.random.default_rng(5)
    groups = np.repeat(range(200), 3).tolist()
    before, after = random.integers(0, 2, (2, 600)).astype(float)
    difference = after - before

    def mean(indices):
        return float(difference[indices].mean())

    first = bootstrap(mean, 600, groups)
    assert first == bootstrap(mean, 600, groups)
    assert first != bootstrap(mean, 600, groups, seed=1)
    exact = compare(before, after, groups)
    assert (first.low, first.high) == pytest.approx((exact.low, exact.high), abs=0.012)


def test_bootstrap_takes_whole_clusters():
    groups = np.repeat(range(30), 20).tolist()
    value = np.repeat(np.random.default_rng(2).normal(size=30), 20)
    alone = bootstrap(lambda indices: float(value[indices].mean()), 600)
    whole = bootstrap(lambda indices: float(value[indices].mean()), 600, groups)
    assert (
        whole.width > 3 * alone.width
    )  # sqrt(20) times: copies of 30 values know no more than 30 values


SPATIAL = [
    48,
    36,
    20,
    29,
    42,
    42,
    20,
    42,
    22,
    41,
    45,
    14,
    6,
    0,
    33,
    28,
    34,
    4,
    32,
    24,
    47,
    41,
    24,
    26,
    30,
    41,
]
"""Measurement A of 26 children: Efron and Tibshirani, An Introduction to the Bootstrap (1993),
table 14.1."""


def test_bca_finds_the_published_interval_of_a_variance():
    """Table 14.2: variance 171.5; 90 % percentile interval (100.8, 233.9), BCa (115.8, 259.6), each
    from 2,000 rounds of theirs."""
    values = np.array(SPATIAL, float)

    def variance(indices):
        return float(values[indices].var())

    interval = bootstrap(variance, 26, level=0.9, rounds=8000, corrected=True)
    plain = bootstrap(variance, 26, level=0.9, rounds=8000)
    assert values.var() == pytest.approx(171.5, abs=0.05)
    assert (plain.low, plain.high) == pytest.approx((100.8, 233.9), rel=0.05)
    assert (interval.low, interval.high) == pytest.approx((115.8, 259.6), rel=0.03)
    library = stats.bootstrap(
        (values,), np.var, confidence_level=0.9, n_resamples=8000, rng=np.random.default_rng(1)
    ).confidence_interval
    assert (interval.low, interval.high) == pytest.approx((library.low, library.high), rel=0.03)


def test_jackknife_of_a_mean_is_the_t_interval_and_respects_clusters():
    values = np.random.default_rng(4).normal(size=40)
    estimate = jackknife(lambda indices: float(values[indices].mean()), 40)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.9)
    assert estimate.interval(0.9).low == pytest.approx(expected.low) and estimate.interval(
        0.9
    ).high == pytest.approx(expected.high)
    assert estimate.p_value == pytest.approx(stats.ttest_1samp(values, 0).pvalue)
    copied, groups = np.repeat(values, 5), np.repeat(range(40), 5).tolist()
    assert jackknife(
        lambda indices: float(copied[indices].mean()), 200, groups
    ).error == pytest.approx(estimate.error)
    alone = jackknife(
        lambda indices: 0.0 if len(indices) > 30 else None,
        40,
        np.repeat(range(4), 10).tolist(),
        limit=1.0,
    )
    assert (alone.error, alone.interval(0.95).low, alone.p_value) == (
        None,
        -1.0,
        1.0,
    )  # without one group there is no value


@given(BITS, st.floats(0.5, 0.999))
def test_the_p_value_is_where_the_interval_begins_to_exclude_zero(rows, level):
    comparison = compare(
        [float(a) for a, *_ in rows],
        [float(b) for _, b, _ in rows],
        [group for *_, group in rows],
        level=level,
    )
    excluded = comparison.low > 0 or comparison.high < 0
    if abs(comparison.estimate.p_value - (1 - level)) > 1e-9:
        assert excluded == (comparison.estimate.p_value < 1 - level)


@pytest.mark.parametrize(("n", "discordance"), [(60, 0.3), (150, 0.6), (600, 0.1)])
def test_a_true_value_as_large_as_the_detectable_one_is_seen_four_times_out_of_five(n, discordance):
    random, ones = np.random.default_rng(n), np.ones(n)

    def drawn(gain):
        up, down = (discordance + gain) / 2, (discordance - gain) / 2
        return mean(
            np.repeat([1.0, -1.0, 0.0], random.multinomial(n, [up, down, 1 - up - down])), ones, 1.0
        )

    stated = [drawn(0.0).detectable(0.95, 0.8) for _ in range(200)]
    seen = [drawn(gain).interval(0.95).low > 0 for gain in stated if gain <= discordance]
    assert 0.8 - 3 * np.sqrt(0.16 / 200) <= np.mean(seen) <= 0.9


def test_bootstrap_refuses_a_statistic_that_mostly_has_no_value():
    with pytest.raises(InputError, match="groups"):
        bootstrap(lambda indices: None, 10)
    with pytest.raises(InputError, match="every sample"):
        bootstrap(lambda indices: 0.3, 10, ["one"] * 10)


def test_power_is_what_a_simulation_finds():
    discordance, n = 0.2, 620
    gain = detectable_gain(n, discordance)
    random = np.random.default_rng(7)
    up, down = (discordance + gain) / 2, (discordance - gain) / 2
    drawn = random.multinomial(n, [up, down, 1 - up - down], size=3000)
    z = (drawn[:, 0] - drawn[:, 1]) / np.sqrt(drawn[:, 0] + drawn[:, 1])
    assert np.mean(z > stats.norm.isf(0.025)) == pytest.approx(0.8, abs=0.025)
    ours = [
        mean(np.repeat([1.0, -1.0, 0.0], row), np.ones(n), 1.0).interval(0.95).low > 0
        for row in drawn[:500]
    ]
    assert np.mean(ours) == pytest.approx(0.8, abs=0.05)


def test_detectable_gain_by_the_published_formula():
    """Miettinen (1968) by hand: gain 0.1 at discordance 0.3, 5 %, power 80 %: ((1.96 sqrt .3 +
    .8416 sqrt .29) / .1)^2 = 233.1."""
    assert detectable_gain(234, 0.3) < 0.1 < detectable_gain(233, 0.3)
    assert detectable_gain(5, 0.05) is None
    with pytest.raises(InputError):
        detectable_gain(500, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize(("good", "bad"), [(60, 60), (150, 40)])
def test_a_gain_of_area_as_large_as_foreseen_is_seen_four_times_out_of_five(good, bad):
    """Normal scores whose correlation makes that of the areas a third; the interval is the
    evaluation's."""
    random, labels = np.random.default_rng(1), np.arange(good + bad) < good
    gain = detectable_area(good, bad)
    means = np.outer(np.sqrt(2) * stats.norm.ppf([0.7, 0.7 + gain]), labels)
    seen = 0
    for _ in range(200):
        scores = means + np.linalg.cholesky([[1, 0.37], [0.37, 1]]) @ random.standard_normal(
            (2, good + bad)
        )

        def gained(indices, scores=scores):
            return ranking_area(scores[1, indices], labels[indices]) - ranking_area(
                scores[0, indices], labels[indices]
            )

        seen += (
            jackknife(gained, good + bad, limit=1.0, telling=min(good, bad)).interval(0.95).low > 0
        )
    assert 0.74 < seen / 200 < 0.9


def test_too_few_show_no_area_and_many_a_small_gain():
    assert detectable_area(10, 10) is None and detectable_area(3000, 3000) < 0.03
