"""Intervals of a single rate (k of n), and the area under the ROC curve.

Sources: Wilson (1927), Clopper and Pearson (1934); vectors of Newcombe, Statistics in Medicine 17
(1998) 857-872. The area under the ROC curve is the Mann-Whitney statistic with ties at one half.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from thumbwheel.core.errors import InputError
from thumbwheel.stats.types import Interval

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def wilson(successes: int, n: int, level: float = 0.95) -> Interval:
    """Return the score interval: close to its level on average, never of zero width."""
    from scipy import special

    _check(successes, n, level)
    if n == 0:
        return Interval(0.0, 1.0, level)
    z = -float(special.ndtri((1 - level) / 2))
    rate, denominator = successes / n, 1 + z * z / n
    centre = (rate + z * z / (2 * n)) / denominator
    half = z / denominator * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == n else centre + half
    return Interval(low, high, level)


def clopper_pearson(successes: int, n: int, level: float = 0.95) -> Interval:
    """Return the exact binomial interval: it covers at least at its level for every true rate."""
    from scipy import stats

    _check(successes, n, level)
    tail = (1 - level) / 2
    low = 0.0 if successes == 0 else float(stats.beta.ppf(tail, successes, n - successes + 1))
    high = 1.0 if successes == n else float(stats.beta.isf(tail, successes + 1, n - successes))
    return Interval(low, high, level)


def ranking_area(scores: Sequence[float], good: Sequence[bool]) -> float | None:
    """Return P(score of a good item > score of a bad item), ties one half; None if one class is
    missing."""
    import numpy as np
    from scipy import stats

    values, is_good = np.asarray(scores, dtype=float), np.asarray(good, dtype=bool)
    positives, negatives = int(is_good.sum()), int((~is_good).sum())
    if not positives or not negatives:
        return None
    ranks = stats.rankdata(values)
    return float((ranks[is_good].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def areas_without_each(
    scores: Sequence[float], good: Sequence[bool], clusters: Sequence[Hashable]
) -> list[float | None]:
    """Return `ranking_area` without each cluster in turn, in the order in which they first appear;
    None for an area that does not exist.

    An area counts won pairs. The pairs that a cluster takes part in are subtracted from all, so it
    takes no longer than sorting once.
    """
    import numpy as np

    values, is_good = np.asarray(scores, dtype=float), np.asarray(good, dtype=bool)
    won = _pairs_won(values, is_good)
    positives, negatives = int(is_good.sum()), int((~is_good).sum())
    members: dict[Hashable, list[int]] = {}
    for index, cluster in enumerate(clusters):
        members.setdefault(cluster, []).append(index)

    areas: list[float | None] = []
    total = float(won[is_good].sum())
    for indices in members.values():
        inside_good = is_good[indices]
        n_good = positives - int(inside_good.sum())
        n_bad = negatives - len(indices) + int(inside_good.sum())
        left_won = total - float(won[indices].sum())
        if n_good < positives and n_bad < negatives:
            # a pair with both sides in the cluster was subtracted twice
            left_won += float(_pairs_won(values[indices], inside_good)[inside_good].sum())
        areas.append(left_won / (n_good * n_bad) if n_good and n_bad else None)
    return areas


def _pairs_won(values: NDArray[np.float64], is_good: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return for each item the number of its pairs of a good and a bad item that the good one wins;
    a tie counts half."""
    import numpy as np

    goods, bads = np.sort(values[is_good]), np.sort(values[~is_good])
    won = np.empty(len(values))
    below = np.searchsorted(bads, values[is_good], "left")
    won[is_good] = (below + np.searchsorted(bads, values[is_good], "right")) / 2
    not_above = np.searchsorted(goods, values[~is_good], "right")
    won[~is_good] = len(goods) - (not_above + np.searchsorted(goods, values[~is_good], "left")) / 2
    return won


def _check(successes: int, n: int, level: float) -> None:
    if not 0 <= successes <= n:
        raise InputError(
            f"{successes!r} successes of {n!r}",
            "a count must be between 0 and its total",
            "Count again",
        )
    check_level(level)


def check_level(level: float) -> None:
    """Raise InputError for a confidence level outside (0, 1)."""
    if not 0 < level < 1:
        raise InputError(
            f"confidence level {level!r}", "it must be strictly between 0 and 1", "Use 0.95"
        )
