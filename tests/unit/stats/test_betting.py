"""The bet on a gain: its expectation is counted out over all that may happen, it holds where no
variance was seen yet, arm by arm, and over time, and it is narrower than confseq's sequence."""

import math
from itertools import product

import numpy as np
import pytest

from thumbwheel.core.errors import InputError
from thumbwheel.stats.betting import (
    CENTRE_PART,
    Arrivals,
    Bets,
    centre_interval,
    difference_p,
    gain_interval,
    log_evidence,
    lower_end,
    wealth,
)

# the first 60 units of confseq's demo of an average treatment effect
DEMO_OUTCOMES = "100101000100001010001111101000010110010000001001000000000010"
DEMO_TREATED = "100001001110010010110110010001010111100111101001110010110011"
BETS = Bets(0.05, 50.0)


def arrivals_of(treated: list[bool], outcomes: list[float], share: float = 0.5) -> Arrivals:
    return Arrivals(
        np.array(treated, bool), np.array(outcomes, float), np.full(len(treated), share)
    )


def expected_stake(share: float, control: float, treatment: float, gain: float = 0.0) -> float:
    """The mean of the stake over all that six units may be drawn to and say."""
    cases = np.array(list(product((0, 1), repeat=12)))
    treated, happy = cases[:, :6] == 1, cases[:, 6:].astype(float)
    rates = np.where(treated, treatment, control)
    chances = np.where(treated, share, 1 - share) * np.where(happy == 1, rates, 1 - rates)
    arrivals = Arrivals(treated, happy, np.full(treated.shape, share))
    return float((chances.prod(-1) * np.exp(wealth(arrivals, BETS, gain)[:, -1])).sum())


@pytest.mark.parametrize(
    ("share", "rate"), [(0.5, 0.5), (0.05, 0.99), (0.05, 0.02), (0.9, 0.3), (0.01, 1.0)]
)
def test_the_stake_is_one_on_average_where_nothing_is_gained(share: float, rate: float) -> None:
    assert expected_stake(share, rate, rate) == pytest.approx(1.0, abs=1e-9)


def test_the_stake_shrinks_where_something_is_lost_and_grows_where_it_is_gained() -> None:
    assert expected_stake(0.2, 0.6, 0.5) < 1.0 < expected_stake(0.2, 0.5, 0.6)
    assert expected_stake(0.2, 0.5, 0.6, gain=0.1) == pytest.approx(1.0, abs=1e-9)
    assert expected_stake(0.2, 0.5, 0.3, gain=-0.2) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("rate", [0.02, 0.5, 0.9])
@pytest.mark.parametrize("first", [0, 4], ids=["v0 first", "v1 first"])
def test_evidence_is_at_most_one_on_average_where_outcomes_come_arm_by_arm(
    rate: float, first: int
) -> None:
    """All units of one arm, then those of the other: the draw was not as written down."""
    order = [False] * 5 + [True] * 3 if first == 0 else [True] * 3 + [False] * 5
    mean_stake = mean_evidence = 0.0
    for happy in product((0.0, 1.0), repeat=8):
        good = sum(happy)
        chance = rate**good * (1 - rate) ** (8 - good)
        arrivals = arrivals_of(order, list(happy))
        mean_stake += chance * math.exp(float(wealth(arrivals, BETS)[-1]))
        mean_evidence += chance * math.exp(log_evidence(arrivals, BETS))
    assert mean_evidence <= 1.0
    assert mean_evidence < mean_stake


def test_equal_arms_seldom_show_a_gain_though_one_shows_no_variance() -> None:
    """The promise is 2.5 % each; the asymptotic sequence breaks it fifteen to twenty times over."""
    random = np.random.default_rng(5)
    runs, people = 300, 2000
    for rate in (0.99, 0.02):
        treated = random.random((runs, people)) < 0.05
        outcomes = (random.random((runs, people)) < rate).astype(float)
        arrivals = Arrivals(treated, outcomes, np.full(treated.shape, 0.05))
        for side in (arrivals, arrivals.flipped()):
            bets = Bets(0.025)
            wrong = (wealth(side, bets).max(-1) >= bets.threshold).sum()
            assert wrong <= 16  # 7.5 are expected at most, with a deviation of 2.7


def test_people_who_become_happier_over_time_and_a_ramp_show_no_gain() -> None:
    random = np.random.default_rng(6)
    runs, people = 300, 2000
    shares = np.broadcast_to(np.where(np.arange(people) < 1000, 0.05, 0.5), (runs, people))
    treated = random.random((runs, people)) < shares
    rates = np.where(np.arange(people) < 1000, 0.9, 0.3)
    outcomes = (random.random((runs, people)) < rates).astype(float)
    arrivals = Arrivals(treated, outcomes, shares)
    for side in (arrivals, arrivals.flipped()):
        bets = Bets(0.05, 1000.0)
        assert (wealth(side, bets).max(-1) >= bets.threshold).sum() <= 26


def test_evidence_is_never_more_than_the_stake_and_is_hardly_less_in_an_ordinary_experiment() -> (
    None
):
    random = np.random.default_rng(7)
    bets, losses = Bets(0.025, 1000.0), []
    for _ in range(40):
        treated = random.random(1000) < 0.5
        outcomes = (random.random(1000) < np.where(treated, 0.7, 0.6)).astype(float)
        arrivals = arrivals_of(list(treated), list(outcomes))
        losses.append(float(wealth(arrivals, bets)[-1]) - log_evidence(arrivals, bets))
    assert min(losses) >= -1e-9
    assert np.mean(losses) < 0.5


def test_a_gain_is_shown_exactly_where_the_lower_end_is_above_zero() -> None:
    random = np.random.default_rng(8)
    bets, shown = Bets(0.05, 200.0), 0
    for _ in range(40):
        treated = random.random(200) < 0.4
        outcomes = (random.random(200) < np.where(treated, 0.75, 0.5)).astype(float)
        arrivals = arrivals_of(list(treated), list(outcomes), 0.4)
        low = lower_end(arrivals, bets)
        assert (low >= 0) == (log_evidence(arrivals, bets) >= bets.threshold)
        assert -1 <= low <= outcomes[treated].mean() - outcomes[~treated].mean()
        if low > -1:
            assert log_evidence(arrivals, bets, low) >= bets.threshold
            assert log_evidence(arrivals, bets, low + 0.001) < bets.threshold
        shown += low > 0
    assert 10 < shown < 40


def test_the_interval_of_exchanged_outcomes_is_the_mirror_image() -> None:
    random = np.random.default_rng(9)
    treated = random.random(300) < 0.3
    outcomes = random.beta(2, 1, 300)
    arrivals = arrivals_of(list(treated), list(outcomes), 0.3)
    interval, mirrored = gain_interval(arrivals, BETS), gain_interval(arrivals.flipped(), BETS)
    assert (interval.low, interval.high) == pytest.approx((-mirrored.high, -mirrored.low), abs=1e-4)
    assert difference_p(arrivals, BETS) == pytest.approx(
        difference_p(arrivals.flipped(), BETS), rel=1e-9
    )


@pytest.mark.parametrize(("n", "width"), [(42, 1.754), (50, 1.538), (60, 1.327)])
def test_the_interval_is_narrower_than_that_of_confseqs_demo(n: int, width: float) -> None:
    """`width` is that of Howard and others' empirical Bernstein sequence, at level 0.95."""
    outcomes = [float(digit) for digit in DEMO_OUTCOMES[:n]]
    treated = [digit == "1" for digit in DEMO_TREATED[:n]]
    assert gain_interval(arrivals_of(treated, outcomes), Bets(0.025, 50.0)).width < 0.8 * width


def test_values_with_little_spread_and_earlier_data_are_worth_more() -> None:
    random = np.random.default_rng(10)
    treated = random.random(800) < 0.5
    tastes = random.random(800)
    ratings = np.clip(tastes + 0.06 * treated + random.normal(0, 0.1, 800), 0, 1)
    earlier = np.where(random.random(800) < 0.8, tastes, np.nan)
    shares, bets = np.full(800, 0.5), Bets(0.025, 800.0)
    plain = Arrivals(treated, ratings, shares)
    adjusted = log_evidence(Arrivals(treated, ratings, shares, earlier), bets)
    assert adjusted > log_evidence(plain, bets) + 3
    unknown = Arrivals(treated, ratings, shares, np.full(800, np.nan))
    assert log_evidence(unknown, bets) == log_evidence(plain, bets)


def test_earlier_data_change_nothing_of_the_expectation() -> None:
    cases = np.array(list(product((0, 1, 2), (0, 1), (0, 1), repeat=4)))
    before = np.array([math.nan, 0.0, 1.0])[cases[:, 0::3]]
    treated, happy = cases[:, 1::3] == 1, cases[:, 2::3].astype(float)
    # Whoever was happy before is happy again in three of four cases.
    rates = np.where(np.isnan(before), 0.5, 0.25 + 0.5 * before)
    chances = np.where(treated, 0.3, 0.7) * np.where(happy == 1, rates, 1 - rates) / 3
    arrivals = Arrivals(treated, happy, np.full(treated.shape, 0.3), before)
    stakes = np.exp(wealth(arrivals, BETS)[:, -1])
    assert float((chances.prod(-1) * stakes).sum()) == pytest.approx(1.0, abs=1e-9)


def test_the_mean_of_an_arm_is_outside_its_ends_with_the_stated_probability_at_most() -> None:
    for rate in (0.02, 0.5, 0.999):
        random = np.random.default_rng(11)
        outside = 0
        for _ in range(200):
            outcomes = (random.random(300) < rate).astype(float)
            ends = [centre_interval(outcomes[:n], 0.05) for n in (5, 20, 60, 150, 300)]
            outside += any(not low <= rate <= high for low, high in ends)
        assert outside <= 10
    assert centre_interval(np.array([]), 0.05) == (0.0, 1.0)
    low, high = centre_interval(np.ones(100), 0.05)
    assert high == 1.0 and 0.9 < low < 1.0


def test_the_threshold_and_the_sizes_of_the_bets() -> None:
    bets = Bets(0.025, 1000.0)
    assert bets.threshold == pytest.approx(math.log(1 / (0.025 * (1 - CENTRE_PART))))
    assert bets.weights.sum() == pytest.approx(1.0)
    assert bets.sizes[4] == pytest.approx(math.sqrt(2 * (math.log(40) + 1.5) / 1000))


def test_what_cannot_be_bet_on_is_refused_and_an_arm_alone_says_nothing() -> None:
    with pytest.raises(InputError, match=r"within \[0, 1\]"):
        arrivals_of([True], [1.5])
    with pytest.raises(InputError, match="between 0 and 1"):
        Bets(1.0)
    alone = arrivals_of([True, True], [1.0, 1.0])
    assert lower_end(alone, BETS) == -1.0
    assert log_evidence(arrivals_of([], []), BETS) == 0.0
    assert gain_interval(arrivals_of([], []), BETS).width == 2.0
