"""How far raters agree beyond chance: Cohen's kappa for two raters, Krippendorff's alpha for any
number of raters with missing values.

Sources: Cohen, Educational and Psychological Measurement 20 (1960); Krippendorff, Computing
Krippendorff's Alpha-Reliability (2011), whose examples are in the tests. Coefficients are 1 for
perfect agreement, 0 for agreement by chance, below 0 for less than that. Intervals resample units.
Where a coefficient cannot be computed (no unit has two values, or all values are the same) it is
None, never 0 or 1.

Units on which the same was said are one to a coefficient. They are counted once, and a resample
draws how often each kind of unit occurs. Of a million thumbs there are a handful of kinds. Where
nearly all units differ, fewer resamples are drawn (`MOST_WORK`), so that an interval takes seconds
whatever somebody sends.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from thumbwheel.core.errors import InputError
from thumbwheel.stats.paired import bootstrap
from thumbwheel.stats.rates import check_level
from thumbwheel.stats.types import Interval

Array = NDArray[np.float64]
Level = Literal["nominal", "ordinal", "interval"]
Statistic = Callable[[Array], float | None]
"""How often each kind of unit occurs -> a coefficient."""

MOST_WORK = 20_000_000
"""Values that the resamples of an interval go over, all together, unless `FEWEST` need more."""
FEWEST = 100
"""Resamples of an interval."""


@dataclass(frozen=True)
class Agreement:
    """A coefficient over `units` units with its interval; both None where there is none. `share`:
    how often pairs of values are equal."""

    value: float | None
    interval: Interval | None
    units: int
    share: float | None

    def as_dict(self) -> dict[str, Any]:
        low = self.interval.low if self.interval else None
        high = self.interval.high if self.interval else None
        return {
            "value": self.value,
            "low": low,
            "high": high,
            "units": self.units,
            "share": self.share,
        }


def cohen_kappa(first: Sequence[Hashable], second: Sequence[Hashable]) -> float | None:
    """Return the kappa of two raters over the same items; None without items, and if both raters
    always give the same single value. Raises InputError for unequal lengths.

    >>> round(cohen_kappa("yyyynn", "yyynnn") or 0, 4)
    0.6667
    """
    if len(first) != len(second):
        raise InputError(
            f"{len(first)} and {len(second)} verdicts",
            "two raters are compared on the same items",
            "Pair them",
        )
    n = len(first)
    first_counts, second_counts = Counter(first), Counter(second)
    # scaled by n^2: whole numbers, so that "nothing but chance" is an exact comparison
    chance = sum(first_counts[value] * second_counts[value] for value in first_counts)
    agreed: int = n * sum(map(operator.eq, first, second))
    if n * n == chance:
        return None
    return (agreed - chance) / (n * n - chance)


def kappa(
    first: Sequence[Hashable],
    second: Sequence[Hashable],
    clusters: Sequence[Hashable] | None = None,
    *,
    level: float = 0.95,
    rounds: int = 1000,
    seed: int = 0,
) -> Agreement:
    """Return Cohen's kappa with its bootstrap interval over items, or over their `clusters`."""
    value = cohen_kappa(first, second)
    n = len(first)
    share = sum(map(operator.eq, first, second)) / n if n else None
    if value is None:
        return Agreement(None, None, n, share)
    verdicts = {**dict.fromkeys(first), **dict.fromkeys(second)}
    codes = {verdict: code for code, verdict in enumerate(verdicts)}
    kinds: dict[tuple[int, int], int] = {}
    kind_of_item = np.empty(n, dtype=np.intp)
    for item, (one_verdict, other_verdict) in enumerate(zip(first, second, strict=True)):
        pair = codes[one_verdict], codes[other_verdict]
        kind_of_item[item] = kinds.setdefault(pair, len(kinds))
    first_codes = np.array([pair[0] for pair in kinds])
    second_codes = np.array([pair[1] for pair in kinds])
    is_agreed = first_codes == second_codes

    def kappa_of(times: Array) -> float | None:
        size = float(times.sum())
        first_totals = _sums(first_codes, times, len(codes))
        second_totals = _sums(second_codes, times, len(codes))
        chance = float(first_totals @ second_totals)
        if size * size == chance:
            return None
        return (size * float(times[is_agreed].sum()) - chance) / (size * size - chance)

    if clusters is None:
        times = np.bincount(kind_of_item, minlength=len(kinds))
        interval = _interval(kappa_of, times, len(kinds), level, rounds, seed)
    else:

        def kappa_of_items(items: NDArray[np.intp]) -> float | None:
            return kappa_of(np.bincount(kind_of_item[items], minlength=len(kinds)).astype(float))

        try:
            few = _affordable(rounds, n)
            interval = bootstrap(kappa_of_items, n, clusters, level=level, rounds=few, seed=seed)
        except InputError:
            interval = None
    return Agreement(value, interval, n, share)


def krippendorff_alpha(units: Sequence[Sequence[Any]], metric: Level = "nominal") -> float | None:
    """Return alpha over the values of each unit. A None among the values is a missing one; a unit
    with fewer than two values is ignored.

    The values are numbers for the metrics ordinal and interval. The result is None if no unit has
    two values, or all values are equal.

    >>> krippendorff_alpha([[1, 1], [2, 2], [1, None]])
    1.0
    """
    verdicts = _Verdicts.of(units)
    return _alpha(verdicts, metric, verdicts.times)


def alpha(
    units: Sequence[Sequence[Any]],
    metric: Level = "nominal",
    *,
    level: float = 0.95,
    rounds: int = 1000,
    seed: int = 0,
) -> Agreement:
    """Krippendorff's alpha with its bootstrap interval over units; the result's `units` counts
    those with at least two values."""
    verdicts = _Verdicts.of(units)
    value = _alpha(verdicts, metric, verdicts.times)
    n_units = int(verdicts.times.sum())
    counts = verdicts.counts
    sizes = verdicts.per_kind(np.ones(len(counts)))
    pairs = float((verdicts.times * sizes * (sizes - 1)).sum())
    equal_pairs = float((verdicts.times[verdicts.kinds] * counts * (counts - 1)).sum())
    share = equal_pairs / pairs if pairs else None
    if value is None:
        return Agreement(None, None, n_units, share)

    def alpha_of(times: Array) -> float | None:
        return _alpha(verdicts, metric, times)

    interval = _interval(alpha_of, verdicts.times, len(counts), level, rounds, seed)
    return Agreement(value, interval, n_units, share)


@dataclass(frozen=True)
class _Verdicts:
    """How often each kind of unit got each value, without the zeros: ratings may have as many
    values as there are verdicts."""

    times: Array
    """[kinds], how many units got just these values. Units with one value are left out."""
    values: Sequence[Any]
    """In order."""
    kinds: NDArray[np.intp]
    """[entries], the kind of unit of each."""
    columns: NDArray[np.intp]
    """[entries], the index of its value."""
    counts: Array
    """[entries], how often such a unit got the value."""
    numbers: Array | None
    """[values], the values as numbers; None if they are no numbers."""

    @classmethod
    def of(cls, units: Sequence[Sequence[Any]]) -> _Verdicts:
        """Count the values of each unit; None is a missing one."""
        present = ([value for value in unit if value is not None] for unit in units)
        comparable = [unit for unit in present if len(unit) > 1]
        distinct = {value for unit in comparable for value in unit}
        numeric = all(isinstance(value, int | float) for value in distinct)
        values = sorted(distinct) if numeric else sorted(distinct, key=str)
        position = {value: column for column, value in enumerate(values)}
        times_of_kind: Counter[tuple[tuple[int, int], ...]] = Counter()
        for unit in comparable:
            counts_of_unit = Counter(position[value] for value in unit)
            times_of_kind[tuple(sorted(counts_of_unit.items()))] += 1
        # in an order of their own, so that the order of the units changes no interval
        in_order = sorted(times_of_kind)
        kinds, columns, counts = list[int](), list[int](), list[int]()
        for kind, entries in enumerate(in_order):
            for column, count in entries:
                kinds.append(kind)
                columns.append(column)
                counts.append(count)
        return cls(
            np.array([times_of_kind[entries] for entries in in_order], dtype=float),
            values,
            np.array(kinds, dtype=np.intp),
            np.array(columns, dtype=np.intp),
            np.array(counts, dtype=float),
            np.array(values, dtype=float) if numeric else None,
        )

    def per_kind(self, weights: Array) -> Array:
        """[kinds], the sum over the verdicts of each kind, weighed by the entry's weight."""
        return _sums(self.kinds, self.counts * weights, len(self.times))


def _sums(groups: NDArray[np.intp], values: Array, n_groups: int) -> Array:
    """[n_groups], the sum of the values of each group."""
    return np.bincount(groups, values, n_groups).astype(np.float64)


def _alpha(verdicts: _Verdicts, metric: Level, times: Array) -> float | None:
    """Return 1 - observed / expected disagreement, where kind of unit `k` occurs `times[k]` times;
    None if nothing can disagree.

    Both are sums over pairs of verdicts. They are computed from the sums over single verdicts, as
    a variance is, because the matrix of all pairs of values has the square of their number.
    """
    if not len(verdicts.times):
        return None
    entry_times = verdicts.counts * times[verdicts.kinds]
    totals = _sums(verdicts.columns, entry_times, len(verdicts.values))
    if np.count_nonzero(totals) < 2:
        return None
    n = totals.sum()
    sizes = verdicts.per_kind(np.ones(len(verdicts.counts)))
    if metric == "nominal":
        unlike = sizes**2 - verdicts.per_kind(verdicts.counts)
        expected = n**2 - (totals**2).sum()
    else:
        positions = _positions(totals, metric, verdicts)
        # around the mean, so that the difference of the sums below loses no digits
        positions = positions - (totals * positions).sum() / n
        of_entries = positions[verdicts.columns]
        unlike = 2 * (sizes * verdicts.per_kind(of_entries**2) - verdicts.per_kind(of_entries) ** 2)
        expected = 2 * (n * (totals * positions**2).sum() - (totals * positions).sum() ** 2)
    if not expected:
        return None
    observed = (times * unlike / (sizes - 1)).sum()
    return float(1 - (n - 1) * observed / expected)


def _positions(totals: Array, metric: Level, verdicts: _Verdicts) -> Array:
    """Return the places of the values on their scale: their ranks, or the values themselves.
    Raises InputError for values that are no numbers."""
    if verdicts.numbers is None:
        raise InputError(
            f"{metric} values {list(verdicts.values)[:5]!r}",
            "they are not numbers",
            "Use nominal, or give numbers in their order",
        )
    if metric == "ordinal":
        return np.asarray(np.cumsum(totals) - totals / 2)
    return verdicts.numbers


def _affordable(rounds: int, n_values: int) -> int:
    """Return how many resamples of `n_values` values each are drawn where `rounds` are wanted."""
    return min(rounds, max(FEWEST, MOST_WORK // max(n_values, 1)))


def _interval(
    statistic: Statistic,
    times: NDArray[Any],
    n_values: int,
    level: float,
    rounds: int,
    seed: int,
) -> Interval | None:
    """Return the percentile interval of `statistic` over resamples of the units, of which there are
    `times` of each kind; it goes over `n_values` values. None if there is one unit, or if most
    resamples have no value, as with one verdict among many that differs."""
    check_level(level)
    n_units = int(times.sum())
    if n_units < 2:
        return None
    rounds = _affordable(rounds, n_values)
    rng = np.random.default_rng(seed)
    shares = times / n_units
    values = list[float]()
    for _ in range(rounds):
        value = statistic(rng.multinomial(n_units, shares).astype(float))
        if value is not None:
            values.append(value)
    if 2 * len(values) < rounds:
        return None
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high), level)
