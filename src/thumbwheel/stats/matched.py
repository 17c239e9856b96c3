"""The same items with a yes or no before and after: exact second opinions beside `paired.compare`,
for items that stand alone.

McNemar's test conditions on the items that changed (exact: binomial; mid-p: half the probability of
what was seen, which Fagerland, Lydersen and Laake, BMC Medical Research Methodology 13, 2013,
recommend). The interval is method 10 of Newcombe, Statistics in Medicine 17 (1998) 2635-2650:
Wilson's score intervals, squared and added, with the correlation corrected for continuity.
"""

from __future__ import annotations

import math

from scipy import stats

from thumbwheel.core.errors import InputError
from thumbwheel.stats.rates import check_level, wilson
from thumbwheel.stats.types import Interval


def mcnemar(better: int, worse: int, *, mid: bool = False) -> float:
    """Two-sided p value of `better` changes for the better and `worse` for the worse; 1 where
    nothing changed.

    >>> round(mcnemar(7, 1), 4), round(mcnemar(7, 1, mid=True), 4)
    (0.0703, 0.0391)
    """
    _check(better, worse)
    changed, fewer = better + worse, min(better, worse)
    tail = float(stats.binom.cdf(fewer, changed, 0.5))
    seen = float(stats.binom.pmf(fewer, changed, 0.5))
    return min(1.0, 2 * tail - (seen if mid and changed else 0.0))


def newcombe(both: int, better: int, worse: int, neither: int, level: float = 0.95) -> Interval:
    """Interval of rate after - rate before, of `both` right before and after, only after, only
    before, and never."""
    _check(both, better, worse, neither)
    check_level(level)
    n = both + better + worse + neither
    if not n:
        return Interval(-1.0, 1.0, level)
    first, second = wilson(both + worse, n, level), wilson(both + better, n, level)
    before, after = (both + worse) / n, (both + better) / n
    phi = _correlation(both, better, worse, neither)

    def reach(up: float, down: float) -> float:
        return math.sqrt(max(up**2 - 2 * phi * up * down + down**2, 0.0))

    gain = after - before
    low = gain - reach(after - second.low, first.high - before)
    return Interval(low, gain + reach(second.high - after, before - first.low), level)


def _correlation(both: int, better: int, worse: int, neither: int) -> float:
    """Of before and after; a positive one is corrected for continuity, and 0 where a side is
    constant."""
    n = both + better + worse + neither
    scale = (both + worse) * (better + neither) * (both + better) * (worse + neither)
    product = both * neither - better * worse
    return (
        (max(product - n / 2, 0.0) if product > 0 else product) / math.sqrt(scale) if scale else 0.0
    )


def _check(*counts: int) -> None:
    if any(one < 0 for one in counts):
        raise InputError(f"counts {counts!r}", "a count is not negative", "Count again")
