"""Lower bound of the mean of bounded values whose rare large losses a sample can miss: Gaffke's
bound.

A t interval learns the spread from the sample. Suppose a few items in a hundred lose everything and
the others gain a little. A sample with few of the losses then shows a gain and hardly any spread:
at n = 300 with 2 % such losses the t interval errs twice as often as it states, and five times as
often over twenty looks. Gaffke's bound (Mathematical Methods of Statistics 14, 2005) adds one item
at the worst possible value and weighs all items by a random partition of 1, uniform over all
partitions; its quantile is the lower end. For values that are right or wrong it is the exact bound
of Clopper and Pearson. Coverage for every distribution is proved for special cases only (see Phan,
Thomas and Learned-Miller, ICML 2021), so `tests/unit/stats/test_coverage.py` and
`benchmarks/graded.py` simulate it.

The partition is (E_0, ..., E_n) / sum with independent exponential E, so the quantile asks for
P(sum a_i E_i <= 0). The saddlepoint formula of Lugannani and Rice (Advances in Applied Probability
12, 1980) gives it at every level without random draws.

Items that come in clusters are weighed by cluster; the mean is the ratio of totals to sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Units = tuple[tuple[float, float, int], ...]
"""(total, size, count) of clusters with equal total and size."""
FLAT = 1e-4
"""Below it the saddlepoint formula divides zero by zero, and its limit is used."""


def units_of(sums: Array, sizes: Array) -> Units:
    """Group clusters by total and size."""
    clusters = np.stack([np.round(sums, 9), sizes], axis=1)
    pairs, counts = np.unique(clusters, axis=0, return_counts=True)
    return tuple(
        (float(total), float(size), int(count))
        for (total, size), count in zip(pairs, counts, strict=True)
    )


def lower_bound(units: Units, limit: float, error: float) -> float:
    """Return the lower end of the mean of values within +-`limit`; it is above the true mean with
    probability at most `error`."""
    from scipy import optimize

    sums, sizes, counts = _with_worst_case(units, limit)
    value = float((sums[1:] * counts[1:]).sum() / (sizes[1:] * counts[1:]).sum())
    if value <= -limit or chance_below(value, sums, sizes, counts) <= error:
        return value

    def excess(mean: float) -> float:
        return chance_below(mean, sums, sizes, counts) - error

    return float(optimize.brentq(excess, -limit, value, xtol=1e-12))


def p_above(units: Units, limit: float) -> float:
    """Return the smallest `error` at which the lower end is zero or more."""
    return chance_below(0.0, *_with_worst_case(units, limit))


def negated(units: Units) -> Units:
    """Return the units with gains and losses exchanged."""
    return tuple((-total, size, count) for total, size, count in units)


def chance_below(mean: float, sums: Array, sizes: Array, counts: Array) -> float:
    """Return P(weighted mean <= `mean`) over the random partitions."""
    return _chance(sums - mean * sizes, counts)


def _with_worst_case(units: Units, limit: float) -> tuple[Array, Array, Array]:
    """Return totals, sizes and counts, with one cluster of typical size at the worst value in
    front."""
    sums, sizes, counts = (np.array(column, float) for column in zip(*units, strict=True))
    typical = float((counts * sizes**2).sum() / (counts * sizes).sum())
    return np.append(-limit * typical, sums), np.append(typical, sizes), np.append(1.0, counts)


def _chance(slopes: Array, counts: Array) -> float:
    """Return P(sum of slope x E <= 0) with independent exponential E, `counts` of each slope."""
    from scipy import optimize

    least, most = float(slopes.min()), float(slopes.max())
    if least >= 0:
        return 0.0
    if most <= 0:
        return 1.0

    def derivative(point: float) -> float:
        return float((counts * slopes / (1 - slopes * point)).sum())

    # The saddlepoint: the root of the first derivative of the cumulant generating function.
    low, high = (1 / least) * (1 - 1e-9), (1 / most) * (1 - 1e-9)
    # Without a root in between, one side weighs less than a billionth of the other.
    if derivative(low) >= 0:
        return 0.0
    if derivative(high) <= 0:
        return 1.0
    saddle = float(optimize.brentq(derivative, low, high, xtol=1e-300, rtol=1e-12))

    # The function itself there, and its second and third derivative.
    tilted = slopes / (1 - slopes * saddle)
    generating = -float((counts * np.log1p(-slopes * saddle)).sum())
    second = float((counts * tilted**2).sum())
    third = 2 * float((counts * tilted**3).sum())

    # The formula of Lugannani and Rice, or its limit at the mean.
    signed = math.copysign(math.sqrt(max(-2 * generating, 0.0)), saddle)
    if abs(signed) < FLAT:
        return 0.5 + third / (6 * math.sqrt(2 * math.pi) * second * math.sqrt(second))
    scaled = saddle * math.sqrt(second)
    chance = _normal_cdf(signed) + _normal_density(signed) * (1 / signed - 1 / scaled)
    return min(1.0, max(0.0, chance))


def _normal_cdf(value: float) -> float:
    return 0.5 * math.erfc(-value / math.sqrt(2))


def _normal_density(value: float) -> float:
    return math.exp(-value * value / 2) / math.sqrt(2 * math.pi)


def is_graded(differences: Sequence[float] | Array, span: float) -> bool:
    """Return whether some values lie strictly between no change and the largest possible change, so
    that a few large losses can hide behind many small gains."""
    sizes = np.abs(np.asarray(differences, float))
    return bool(((sizes > 1e-9) & (sizes < span * (1 - 1e-9))).any())
