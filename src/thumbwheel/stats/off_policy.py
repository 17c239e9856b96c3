"""The value of a policy from the log of another one, before anybody is exposed to it.

The log has the probability of each choice. IPS weighs each outcome by how much more often the new
policy would have made the choice; SNIPS divides by the sum of these weights; DR (Dudik, Langford
and Li, ICML 2011) corrects a model of the outcomes by them. All three speak about choices that the
log holds, so a log with a small effective sample size is refused instead of guessed from.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from thumbwheel.core.errors import DataError, InputError
from thumbwheel.stats.types import Interval

Array = NDArray[np.float64]
FEWEST_EFFECTIVE = 100.0
"""Effective sample size (Kish) below which nothing is estimated."""


@dataclass(frozen=True)
class PolicyValue:
    """An estimate of the mean outcome under the new policy."""

    method: str
    value: float
    interval: Interval
    n: int
    effective: float
    """(sum of weights)^2 / sum of squared weights."""


def effective_size(weights: Array) -> float:
    """Return Kish's effective sample size; 0 without any weight."""
    squares = float((weights**2).sum())
    return float(weights.sum()) ** 2 / squares if squares else 0.0


def ips(
    outcomes: Array, weights: Array, level: float = 0.95, fewest: float = FEWEST_EFFECTIVE
) -> PolicyValue:
    """Estimate the policy's value by inverse propensity scoring. `weights`: probability of the
    logged choice under the new policy over its probability under the logging policy. Raises
    DataError below `fewest` effective rows."""
    _check(outcomes, weights, fewest)
    return _estimate("ips", weights * outcomes, weights, level)


def snips(
    outcomes: Array, weights: Array, level: float = 0.95, fewest: float = FEWEST_EFFECTIVE
) -> PolicyValue:
    """Estimate the policy's value by self-normalised IPS: slightly biased, with much less variance.
    Raises as `ips` does."""
    _check(outcomes, weights, fewest)
    value = float((weights * outcomes).sum() / weights.sum())
    # The delta method for a ratio of means.
    contributions = value + weights * (outcomes - value) / weights.mean()
    return _estimate("snips", contributions, weights, level)


def doubly_robust(
    outcomes: Array,
    weights: Array,
    predicted: Array,
    expected: Array,
    level: float = 0.95,
    fewest: float = FEWEST_EFFECTIVE,
) -> PolicyValue:
    """Estimate the policy's value from outcomes, weights and a model. `predicted`: the model's
    outcome of the logged choice; `expected`: its mean outcome under the new policy. The estimate is
    right if either the probabilities or the model are. Raises as `ips` does."""
    _check(outcomes, weights, fewest)
    contributions = expected + weights * (outcomes - predicted)
    return _estimate("dr", contributions, weights, level)


def _estimate(method: str, contributions: Array, weights: Array, level: float) -> PolicyValue:
    from scipy import special

    n = len(contributions)
    value = float(contributions.mean())
    error = float(contributions.std(ddof=1)) / math.sqrt(n)
    half = -float(special.ndtri((1 - level) / 2)) * error
    interval = Interval(value - half, value + half, level)
    return PolicyValue(method, value, interval, n, effective_size(weights))


def _check(values: Array, weights: Array, fewest: float) -> None:
    if len(values) != len(weights) or (len(weights) and weights.min() < 0):
        raise InputError(
            f"{len(values)} outcomes with {len(weights)} weights",
            "each outcome needs one weight, from 0 on",
            "Divide the two policies' probabilities of each logged choice",
        )
    effective = effective_size(weights)
    if len(values) < 2 or effective < fewest:
        raise DataError(
            f"{len(values)} logged choices",
            f"they are worth {effective:.1f} of the new policy's own, and at least {fewest:g} are "
            "needed to judge it",
            "Log more choices, or a policy that makes them more often",
        )
