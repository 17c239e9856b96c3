"""Paired comparison of the same items before and after: the mean difference with an interval that
respects clusters.

The default, `compare`, is a cluster-robust t interval: CR2 variance (Bell and McCaffrey 2002;
Pustejovsky and Tipton 2018), which for a mean has a closed form, with their degrees of freedom. For
values of a known span it adds two pseudo-clusters of typical size, one at +span and one at -span;
over single items this is the Laplace adjustment of Bonett and Price (J. Educ. Behav. Stat. 37,
2012), which Fagerland, Lydersen and Laake (Statistics in Medicine 33, 2014) recommend for paired
rates. So an interval without any discordance is narrow but never of zero width, and five changes
for the better with none for the worse do not exclude zero, but six do (as in the exact test). For
graded values the interval is widened to that of `bounded`, which does not trust the sample's
spread. The choice rests on the simulations in `tests/unit/stats/test_coverage.py`.

`bootstrap` resamples whole clusters. It is the second opinion, and the interval of statistics other
than means.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from thumbwheel.core.errors import InputError
from thumbwheel.stats.bounded import is_graded, units_of
from thumbwheel.stats.rates import check_level
from thumbwheel.stats.types import Comparison, Estimate, Interval

Array = NDArray[np.float64]
Statistic = Callable[[NDArray[np.intp]], float | None]


def compare(
    before: Sequence[float],
    after: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    *,
    level: float = 0.95,
    span: float | None = 1.0,
) -> Comparison:
    """Return the mean of after - before over items, with an interval clustered by `clusters`
    (default: each item is its own cluster).

    `span` is the largest possible |difference| of one item (1 for rates and scores in 0..1); None
    for measures without one, whose interval is the plain CR2 t interval. With fewer than two
    clusters the interval is (-span, span), or infinite. Raises InputError for unequal lengths, no
    items, values that are not finite, and differences beyond the span.
    """
    first, second = _checked(before, after, clusters, level, span)
    difference = second - first
    codes, sizes = _clusters(clusters, len(difference))
    sums = np.bincount(codes, weights=difference, minlength=len(sizes)).astype(float)
    estimate = mean(sums, sizes, span)
    if span is not None and estimate.error is not None and is_graded(difference, span):
        estimate = replace(estimate, units=units_of(sums, sizes))
    changed = int((difference != 0).sum())
    before_mean, after_mean = float(first.mean()), float(second.mean())
    return Comparison(
        before_mean,
        after_mean,
        estimate.value,
        estimate.interval(level),
        len(difference),
        len(sizes),
        changed,
        estimate,
    )


def mean(sums: Array, sizes: Array, span: float | None) -> Estimate:
    """Return sum(sums) / sum(sizes), where `sums` [G] are cluster totals over `sizes` [G] items (or
    other weights: tokens)."""
    limit = np.inf if span is None else span
    value = float(sums.sum() / sizes.sum())
    if len(sizes) < 2:
        return Estimate(value, value, None, 0.0, limit)
    degrees, drawn = _degrees(sizes), 1.0
    if span is not None:
        drawn = 1 + 2 / (degrees + 1)
        typical = float((sizes**2).sum() / sizes.sum())
        sums = np.append(sums, [span * typical, -span * typical])
        sizes = np.append(sizes, [typical, typical])
    centre, error = _cr2(sums, sizes)
    return Estimate(value, centre, error, degrees, limit, drawn)


def no_change_halfwidth(groups: float, level: float) -> float:
    """Return half the width of the interval of `compare` (span 1) over `groups` clusters of equal
    size in which nothing changed."""
    from scipy import special

    quantile = -float(special.stdtrit(groups - 1, (1 - level) / 2))
    clusters = groups + 2  # with the two pseudo-clusters
    return quantile * float(np.sqrt(2 / (1 - 1 / clusters))) / clusters


def _cr2(sums: Array, sizes: Array) -> tuple[float, float]:
    """Return the mean and its CR2 standard error: residual totals of clusters, each divided by
    sqrt(1 - share of the cluster)."""
    n = sizes.sum()
    mean = sums.sum() / n
    residuals = (sums - mean * sizes) / np.sqrt(1 - sizes / n)
    return float(mean), float(np.sqrt((residuals**2).sum()) / n)


def _degrees(sizes: Array) -> float:
    """Return the Bell-McCaffrey degrees of freedom of a mean: tr(M)^2 / tr(M^2); G - 1 for equal
    clusters.

    M_gh = a_g a_h (1[g=h] n_g - n_g n_h / n) with a_g = (1 - n_g / n)^(-1/2), so that M_gg = n_g.
    """
    n = sizes.sum()
    scale = 1 / (1 - sizes / n)
    outer = scale * sizes**2 / n
    squares = (sizes**2).sum() + outer.sum() ** 2 - (outer**2).sum()
    return float(n**2 / squares)


def bootstrap(
    statistic: Statistic,
    n: int,
    clusters: Sequence[Hashable] | None = None,
    *,
    level: float = 0.95,
    rounds: int = 2000,
    seed: int = 0,
    corrected: bool = False,
) -> Interval:
    """Return the percentile interval of `statistic(indices)` over resampled clusters; rounds in
    which it is None are left out.

    `corrected`: the bias-corrected and accelerated interval (BCa; Efron, JASA 82, 1987). Too narrow
    below about 40 clusters, and of zero width if nothing differs: use `compare` for a mean. Raises
    InputError for a single cluster, and if the statistic is None in most rounds.
    """
    check_level(level)
    members = _members(clusters, n)
    count = len(members)
    ordered, sizes = np.concatenate(members), np.array([len(items) for items in members])
    starts = np.cumsum(sizes) - sizes
    if count < 2:
        raise InputError(
            f"a bootstrap over {count} group",
            "every sample of it is the same",
            "Collect more groups",
        )
    rng = np.random.default_rng(seed)
    values: list[float] = []
    for _ in range(rounds):
        sample = rng.integers(0, count, size=count)
        # the members of each cluster stand together: from its start on, one after the other
        drawn_sizes = sizes[sample]
        offsets = starts[sample] - (np.cumsum(drawn_sizes) - drawn_sizes)
        positions = np.repeat(offsets, drawn_sizes) + np.arange(drawn_sizes.sum())
        value = statistic(ordered[positions])
        if value is not None:
            values.append(value)
    if 2 * len(values) < rounds:
        raise InputError(
            f"a bootstrap over {count} groups",
            f"the statistic exists in {len(values)} of {rounds} rounds",
            "Collect more groups",
        )
    tails = np.array([(1 - level) / 2, (1 + level) / 2])
    if corrected:
        tails = _accelerated(statistic, members, np.array(values), tails)
    low, high = np.quantile(values, tails)
    return Interval(float(low), float(high), level)


def _accelerated(
    statistic: Statistic, members: Sequence[NDArray[np.intp]], values: Array, tails: Array
) -> Array:
    """Return the quantiles that BCa reads: `tails` shifted by the median bias, and by the skewness
    of the changes from leaving out each cluster."""
    from scipy import special

    whole = statistic(np.concatenate(members)) or 0.0
    left = [value for value in _left_out(statistic, members) if value is not None]
    share = float(((values < whole).sum() + (values == whole).sum() / 2) / len(values))
    if not left or not 0 < share < 1:
        return tails
    pulls = np.mean(left) - np.array(left)
    spread = float((pulls**2).sum())
    acceleration = float((pulls**3).sum()) / (6 * spread**1.5) if spread else 0.0
    bias = special.ndtri(share)
    shifted = bias + special.ndtri(tails)
    return np.asarray(special.ndtr(bias + shifted / (1 - acceleration * shifted)))


def jackknife(
    statistic: Statistic,
    n: int,
    clusters: Sequence[Hashable] | None = None,
    *,
    limit: float = np.inf,
    telling: int | None = None,
) -> Estimate:
    """Estimate any statistic by leaving out one cluster at a time, for statistics other than means;
    the estimate has an interval at every level.

    `telling`: the number of clusters that the error rests on, if it is not all of them; the degrees
    of freedom are one less. The error is None if the statistic does not exist without some cluster.
    Raises InputError if the statistic has no value at all.
    """
    members = _members(clusters, n)
    value = statistic(np.concatenate(members))
    if value is None:
        raise InputError(f"a statistic of {n} items", "it has no value", "Collect more")
    return jackknifed(value, _left_out(statistic, members), limit=limit, telling=telling)


def jackknifed(
    value: float,
    left_out: Sequence[float | None],
    *,
    limit: float = np.inf,
    telling: int | None = None,
) -> Estimate:
    """Estimate as `jackknife` does, from values without each cluster that are computed already."""
    values = [estimate for estimate in left_out if estimate is not None]
    count = len(left_out)
    if not count or len(values) < count:
        return Estimate(value, value, None, 0.0, limit)
    spread = float(((np.array(values) - np.mean(values)) ** 2).sum())
    error = float(np.sqrt(spread * (count - 1) / count))
    return Estimate(value, value, error, (telling or count) - 1.0, limit)


def _left_out(statistic: Statistic, members: Sequence[NDArray[np.intp]]) -> list[float | None]:
    """Return the statistic without each cluster in turn; an empty list for a single cluster."""
    if len(members) < 2:
        return []
    everything = np.concatenate(members)
    sizes = [len(items) for items in members]
    cluster_of_item = np.repeat(np.arange(len(members)), sizes)
    return [statistic(everything[cluster_of_item != out]) for out in range(len(members))]


def _members(clusters: Sequence[Hashable] | None, n: int) -> list[NDArray[np.intp]]:
    """Return the indices of the items of every cluster."""
    codes, sizes = _clusters(clusters, n)
    return np.split(np.argsort(codes, kind="stable"), np.cumsum(sizes.astype(int))[:-1])


def _clusters(clusters: Sequence[Hashable] | None, n: int) -> tuple[NDArray[np.intp], Array]:
    """Return the cluster number of every item [n], and the cluster sizes [G]."""
    if clusters is None:
        return np.arange(n), np.ones(n)
    numbers: dict[Hashable, int] = {}
    codes = np.array([numbers.setdefault(key, len(numbers)) for key in clusters], dtype=np.intp)
    return codes, np.bincount(codes).astype(float)


def _checked(
    before: Sequence[float],
    after: Sequence[float],
    clusters: Sequence[Hashable] | None,
    level: float,
    span: float | None,
) -> tuple[Array, Array]:
    check_level(level)
    before_values, after_values = np.asarray(before, dtype=float), np.asarray(after, dtype=float)
    lengths = {len(before_values), len(after_values)}
    if clusters is not None:
        lengths.add(len(clusters))
    if len(lengths) != 1 or not len(before_values):
        raise InputError(
            f"a comparison of {sorted(lengths)} items",
            "before, after and clusters need the same items, one at least",
            "Pair them",
        )
    if not (np.isfinite(before_values).all() and np.isfinite(after_values).all()):
        raise InputError(
            "a comparison",
            "a value is NaN or infinite",
            "Leave out pairs with a missing value",
        )
    largest = float(np.abs(after_values - before_values).max())
    if span is not None and largest > span * (1 + 1e-9):
        raise InputError(
            f"a comparison with span {span!r}",
            f"one difference is {largest!r}",
            "Give the largest possible difference as `span`, or None where there is none",
        )
    return before_values, after_values
