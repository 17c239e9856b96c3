"""The mean of bounded values of which a rare great loss may not have been met: Gaffke's bound.

A t interval learns the spread from the sample. Where a few items in a hundred may lose everything
and the others gain a little, a sample that happened to meet few of the losses shows a gain and
hardly any spread: at n = 300 with 2 % such losses it errs twice as often as it says, and five times
over twenty looks. Gaffke's bound (Mathematical Methods of Statistics 14, 2005) adds one item at the
worst possible value and weighs all items by a random partition of 1, uniform over all partitions;
its quantile is the lower end. For values that are right or wrong it is the exact bound of Clopper
and Pearson. That it covers for every distribution is proved for special cases only (see Phan,
Thomas and Learned-Miller, ICML 2021), so `tests/unit/stats/test_coverage.py` and
`benchmarks/graded.py` simulate it.

The partition is (E_0, ..., E_n) / sum with independent exponential E, so the quantile asks for
P(sum a_i E_i <= 0). The saddlepoint formula of Lugannani and Rice (Advances in Applied Probability
12, 1980) gives it at every level without a draw.

Items that come in clusters are weighed by cluster, of which the ratio of totals to sizes is the
mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Units = tuple[tuple[float, float, int], ...]
"""(total, size, how many) of clusters that are alike."""
FLAT = 1e-4
"""Below it the saddlepoint formula divides zero by zero, and its limit is taken."""


def units_of(sums: Array, sizes: Array) -> Units:
    """Clusters by total and size."""
    pairs, counts = np.unique(
        np.stack([np.round(sums, 9), sizes], axis=1), axis=0, return_counts=True
    )
    return tuple(
        (float(total), float(size), int(count))
        for (total, size), count in zip(pairs, counts, strict=True)
    )


def lowest(units: Units, limit: float, error: float) -> float:
    """The lower end of the mean of values within +-`limit` that is above the true one with
    probability `error` at most."""
    from scipy import optimize

    sums, sizes, counts = _with_the_worst(units, limit)
    value = float((sums[1:] * counts[1:]).sum() / (sizes[1:] * counts[1:]).sum())
    if value <= -limit or chance_below(value, sums, sizes, counts) <= error:
        return value
    return float(
        optimize.brentq(
            lambda mean: chance_below(mean, sums, sizes, counts) - error, -limit, value, xtol=1e-12
        )
    )


def p_above(units: Units, limit: float) -> float:
    """The smallest `error` at which the lower end is zero or more."""
    return chance_below(0.0, *_with_the_worst(units, limit))


def turned(units: Units) -> Units:
    """The same with losses for gains."""
    return tuple((-total, size, count) for total, size, count in units)


def chance_below(mean: float, sums: Array, sizes: Array, counts: Array) -> float:
    """P(weighted mean <= `mean`) over the random partitions."""
    return _chance(sums - mean * sizes, counts)


def _with_the_worst(units: Units, limit: float) -> tuple[Array, Array, Array]:
    """Totals, sizes and counts, with one cluster of typical size at the worst value in front."""
    sums, sizes, counts = (np.array(column, float) for column in zip(*units, strict=True))
    typical = float((counts * sizes**2).sum() / (counts * sizes).sum())
    return np.append(-limit * typical, sums), np.append(typical, sizes), np.append(1.0, counts)


def _chance(slopes: Array, counts: Array) -> float:
    """P(sum of slope x E <= 0) with independent exponential E, `counts` of each slope."""
    from scipy import optimize

    least, most = float(slopes.min()), float(slopes.max())
    if least >= 0 or most <= 0:
        return 0.0 if least >= 0 else 1.0

    def first(at: float) -> float:
        return float((counts * slopes / (1 - slopes * at)).sum())

    low, high = (1 / least) * (1 - 1e-9), (1 / most) * (1 - 1e-9)
    if first(low) >= 0 or first(high) <= 0:  # one side weighs less than a billionth of the other
        return 0.0 if first(low) >= 0 else 1.0
    saddle = float(optimize.brentq(first, low, high, xtol=1e-300, rtol=1e-12))
    tilted = slopes / (1 - slopes * saddle)
    generating = -float((counts * np.log1p(-slopes * saddle)).sum())
    second, third = float((counts * tilted**2).sum()), 2 * float((counts * tilted**3).sum())
    signed = math.copysign(math.sqrt(max(-2 * generating, 0.0)), saddle)
    if abs(signed) < FLAT:
        return 0.5 + third / (6 * math.sqrt(2 * math.pi) * second * math.sqrt(second))
    scaled = saddle * math.sqrt(second)
    return min(
        1.0, max(0.0, _normal_cdf(signed) + _normal_density(signed) * (1 / signed - 1 / scaled))
    )


def _normal_cdf(at: float) -> float:
    return 0.5 * math.erfc(-at / math.sqrt(2))


def _normal_density(at: float) -> float:
    return math.exp(-at * at / 2) / math.sqrt(2 * math.pi)


def graded(differences: Sequence[float] | Array, span: float) -> bool:
    """Whether values lie between no change and the largest one, so that a few large ones may hide
    behind many small ones."""
    sizes = np.abs(np.asarray(differences, float))
    return bool(((sizes > 1e-9) & (sizes < span * (1 - 1e-9))).any())
