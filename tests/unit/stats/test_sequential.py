"""Confidence sequences equal those of gbstats 0.8.0 (`tests/others/programs/statistics_vectors.py`
made the numbers of `peer_vectors.json`), and keep their promise under looks at every moment."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from thumbwheel.core.errors import InputError
from thumbwheel.stats.sequential import (
    Difference,
    Sample,
    combined,
)

VECTORS = json.loads((Path(__file__).parent / "peer_vectors.json").read_text())


def test_the_asymptotic_sequence_is_that_of_gbstats() -> None:
    for row in VECTORS["sequential"]:
        difference = Difference.between(Sample(**row["control"]), Sample(**row["treatment"]))
        interval = difference.interval(row["alpha"], row["tuned_for"])
        assert interval.low == pytest.approx(row["low"], abs=1e-9)
        assert interval.high == pytest.approx(row["high"], abs=1e-9)
        p_value = difference.p_value(row["alpha"], row["tuned_for"])
        assert p_value == pytest.approx(row["p"], abs=1e-9)


def test_fewer_than_two_units_know_nothing() -> None:
    lone = Difference.between(Sample.of(np.array([1.0])), Sample.of(np.array([0.0, 1.0])))
    assert lone.interval(0.05).low == -math.inf
    assert lone.p_value(0.05) == 1.0
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


def test_impossible_alphas_are_refused() -> None:
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
