"""Paired yes-or-no outcomes of independent items: exact tests and intervals beside
`paired.compare`.

McNemar's test conditions on the items that changed (exact: binomial; mid-p: half the probability of
the observed counts, which Fagerland, Lydersen and Laake, BMC Medical Research Methodology 13,
2013, recommend). The interval is method 10 of Newcombe, Statistics in Medicine 17 (1998) 2635-2650:
Wilson's score intervals, squared and added, with the correlation corrected for continuity.
"""

from __future__ import annotations

import math

from thumbwheel.core.errors import InputError
from thumbwheel.stats.rates import check_level, wilson
from thumbwheel.stats.types import Interval


def mcnemar(better: int, worse: int, *, mid: bool = False) -> float:
    """Return the two-sided p value of `better` changes for the better and `worse` for the worse; 1
    if nothing changed.

    >>> round(mcnemar(7, 1), 4), round(mcnemar(7, 1, mid=True), 4)
    (0.0703, 0.0391)
    """
    from scipy import stats

    _check(better, worse)
    changed, fewer = better + worse, min(better, worse)
    p_value = 2 * float(stats.binom.cdf(fewer, changed, 0.5))
    if mid and changed:
        p_value -= float(stats.binom.pmf(fewer, changed, 0.5))
    return min(1.0, p_value)


def newcombe(both: int, better: int, worse: int, neither: int, level: float = 0.95) -> Interval:
    """Return the interval of rate after - rate before. `both`: items right before and after;
    `better`: only after; `worse`: only before; `neither`: at no time."""
    _check(both, better, worse, neither)
    check_level(level)
    n = both + better + worse + neither
    if not n:
        return Interval(-1.0, 1.0, level)
    first, second = wilson(both + worse, n, level), wilson(both + better, n, level)
    before, after = (both + worse) / n, (both + better) / n
    phi = _correlation(both, better, worse, neither)

    def distance(toward: float, away: float) -> float:
        return math.sqrt(max(toward**2 - 2 * phi * toward * away + away**2, 0.0))

    gain = after - before
    low = gain - distance(after - second.low, first.high - before)
    return Interval(low, gain + distance(second.high - after, before - first.low), level)


def _correlation(both: int, better: int, worse: int, neither: int) -> float:
    """Return the correlation of before and after. A positive one is corrected for continuity; it is
    0 if one of the two is constant."""
    n = both + better + worse + neither
    scale = (both + worse) * (better + neither) * (both + better) * (worse + neither)
    if not scale:
        return 0.0
    product: float = both * neither - better * worse
    if product > 0:
        product = max(product - n / 2, 0.0)
    return product / math.sqrt(scale)


def _check(*counts: int) -> None:
    if any(count < 0 for count in counts):
        raise InputError(f"counts {counts!r}", "a count is not negative", "Count again")
