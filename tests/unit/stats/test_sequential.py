"""Confidence sequences equal those of gbstats 0.8.0 and confseq 0.0.11
(`tests/others/programs/statistics_vectors.py` made the numbers of `peer_vectors.json`), and keep
their promise under looks at every moment."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from thumbwheel.core.errors import InputError
from thumbwheel.stats.sequential import (
    Difference,
    GammaExponential,
    Sample,
    bounded_difference,
    combined,
    empirical_bernstein,
)

VECTORS = json.loads((Path(__file__).parent / "peer_vectors.json").read_text())
# the first 60 units of confseq's demo of an average treatment effect, and its results
DEMO_OUTCOMES = "100101000100001010001111101000010110010000001001000000000010"
DEMO_TREATED = "100001001110010010110110010001010111100111101001110010110011"


def test_the_asymptotic_sequence_is_that_of_gbstats() -> None:
    for row in VECTORS["sequential"]:
        difference = Difference.between(Sample(**row["control"]), Sample(**row["treatment"]))
        interval = difference.interval(row["alpha"], row["tuned_for"])
        assert interval.low == pytest.approx(row["low"], abs=1e-9)
        assert interval.high == pytest.approx(row["high"], abs=1e-9)
        p_value = difference.p_value(row["alpha"], row["tuned_for"])
        assert p_value == pytest.approx(row["p"], abs=1e-9)


def test_the_empirical_bernstein_sequence_is_that_of_confseq() -> None:
    random = np.random.RandomState(3)
    draws = {rate: (random.random_sample(600) < rate).astype(float) for rate in (0.5, 0.05)}
    for row in VECTORS["empirical_bernstein"]:
        low, high = empirical_bernstein(draws[row["rate"]], row["alpha"])
        for n, ends in row["ends"].items():
            assert [low[int(n) - 1], high[int(n) - 1]] == pytest.approx(ends, abs=1e-9)


def test_the_gamma_exponential_mixture_is_that_of_confseq() -> None:
    for variance, scale, tuned_for, bound, evidence in VECTORS["gamma_exponential"]:
        mixture = GammaExponential(scale, tuned_for, 0.025)
        assert mixture.bound(variance, 0.025) == pytest.approx(bound, abs=1e-9)
        assert mixture.log_evidence(30.0, variance) == pytest.approx(evidence, abs=1e-9)


@pytest.mark.parametrize(
    ("n", "low", "high"),
    [
        (42, -0.762955935604901, 0.991453251801244),
        (50, -0.62217549773304, 0.915602270253082),
        (60, -0.506530209997351, 0.820691817489557),
    ],
)
def test_the_bounds_of_confseqs_demo(n: int, low: float, high: float) -> None:
    outcomes = np.array([float(digit) for digit in DEMO_OUTCOMES[:n]])
    treated = np.array([digit == "1" for digit in DEMO_TREATED[:n]])
    interval = bounded_difference(
        treated, outcomes, np.full(n, 0.5), 0.05, noise=0.2 * 0.8, tuned_for=50
    )
    assert [interval.low, interval.high] == pytest.approx([low, high], abs=1e-9)


def test_fewer_than_two_units_know_nothing() -> None:
    lone = Difference.between(Sample.of(np.array([1.0])), Sample.of(np.array([0.0, 1.0])))
    assert lone.interval(0.05).low == -math.inf
    assert lone.p_value(0.05) == 1.0
    assert bounded_difference(np.array([], bool), np.array([]), np.array([]), 0.05).width == 2.0
    assert combined([lone]).n == 0
    certain = Difference.between(Sample(50, 0.0, 0.0), Sample(50, 0.0, 0.0))
    assert certain.p_value(0.05) == 1.0


def test_strata_count_by_their_units_and_one_alone_is_itself() -> None:
    first = Difference(0.1, 0.01, 100)
    second = Difference(0.3, 0.02, 300)
    assert combined([first]) == first
    both = combined([first, second])
    assert both.value == pytest.approx(0.25)
    assert both.variance == pytest.approx(0.0625 * 0.01 + 0.5625 * 0.02)


def test_values_beyond_their_bounds_and_impossible_alphas_are_refused() -> None:
    with pytest.raises(InputError, match="within"):
        empirical_bernstein(np.array([0.5, 1.5]), 0.05)
    with pytest.raises(InputError, match="between 0 and 1"):
        Difference(0.0, 1.0, 10).interval(0.0)


@pytest.mark.parametrize("rate", [0.5, 0.05])
def test_looking_at_every_moment_claims_a_gain_in_at_most_alpha_of_all_cases(rate: float) -> None:
    random = np.random.default_rng(8)
    rounds, n = 400, 2000
    outcomes = (random.random((rounds, 2, n)) < rate).astype(float)
    count = np.arange(1, n + 1)
    means = outcomes.cumsum(axis=2) / count
    variances = means * (1 - means) * count / np.maximum(count - 1, 1)
    false_alarms = 0
    for control, treatment, before, after in zip(
        means[:, 0], means[:, 1], variances[:, 0], variances[:, 1], strict=True
    ):
        for look in range(99, n, 10):
            samples = [
                Sample(look + 1, values[look], spread[look])
                for values, spread in ((control, before), (treatment, after))
            ]
            interval = Difference.between(*samples).interval(0.05)
            if interval.low > 0 or interval.high < 0:
                false_alarms += 1
                break
    # 20 of 400 are allowed
    assert 0 < false_alarms <= 20


def test_the_exact_sequence_is_never_wrong_about_skewed_values() -> None:
    random = np.random.default_rng(4)
    wrong = 0
    for _ in range(200):
        values = (random.random(300) < 0.02).astype(float)
        low, high = empirical_bernstein(values, 0.05)
        wrong += bool((low > 0.02).any() or (high < 0.02).any())
    assert wrong <= 10


def test_the_exact_difference_holds_under_uneven_probabilities_and_sees_a_large_effect() -> None:
    random = np.random.default_rng(6)
    shares = np.where(np.arange(800) < 400, 0.2, 0.5)
    wrong = 0
    for _ in range(40):
        treated = random.random(800) < shares
        outcomes = (random.random(800) < 0.3).astype(float)
        interval = bounded_difference(treated, outcomes, shares, 0.1)
        wrong += not interval.low <= 0 <= interval.high
    assert wrong <= 4
    treated = random.random(800) < shares
    outcomes = (random.random(800) < np.where(treated, 0.9, 0.1)).astype(float)
    assert bounded_difference(treated, outcomes, shares, 0.1).low > 0
