"""How far raters agree beyond chance: Cohen's kappa for two raters, Krippendorff's alpha for any
number of raters with missing values.

Sources: Cohen, Educational and Psychological Measurement 20 (1960); Krippendorff, Computing
Krippendorff's Alpha-Reliability (2011), whose examples are in the tests. Coefficients are 1 for
perfect agreement, 0 for agreement by chance, below 0 for less than that. Intervals resample units
(`paired.bootstrap`). Where a coefficient cannot be computed (no unit has two values, or all values
are the same) it is None, never 0 or 1.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from thumbwheel.core.errors import InputError
from thumbwheel.stats.paired import bootstrap
from thumbwheel.stats.types import Interval

Array = NDArray[np.float64]
Level = Literal["nominal", "ordinal", "interval"]


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
    first_codes = np.array([codes[verdict] for verdict in first])
    second_codes = np.array([codes[verdict] for verdict in second])

    def kappa_of(indices: NDArray[np.intp]) -> float | None:
        table = np.zeros((len(codes), len(codes)))
        np.add.at(table, (first_codes[indices], second_codes[indices]), 1)
        size = len(indices)
        chance = float(table.sum(0) @ table.sum(1))
        if size * size == chance:
            return None
        return (size * float(np.trace(table)) - chance) / (size * size - chance)

    return Agreement(value, _interval(kappa_of, n, level, rounds, seed, clusters), n, share)


def krippendorff_alpha(units: Sequence[Sequence[Any]], metric: Level = "nominal") -> float | None:
    """Return alpha over the values of each unit. A None among the values is a missing one; a unit
    with fewer than two values is ignored.

    The values are numbers for the metrics ordinal and interval. The result is None if no unit has
    two values, or all values are equal.

    >>> krippendorff_alpha([[1, 1], [2, 2], [1, None]])
    1.0
    """
    verdicts = _Verdicts.of(units)
    return _alpha(verdicts, metric, np.ones(verdicts.n_units))


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
    n_units = verdicts.n_units
    value = _alpha(verdicts, metric, np.ones(n_units))
    sizes = verdicts.per_unit(np.ones(len(verdicts.counts)))
    pairs = float((sizes * (sizes - 1)).sum())
    counts = verdicts.counts
    share = float((counts * (counts - 1)).sum()) / pairs if pairs else None
    if value is None:
        return Agreement(None, None, n_units, share)

    def alpha_of(indices: NDArray[np.intp]) -> float | None:
        times = np.bincount(indices, minlength=n_units).astype(float)
        return _alpha(verdicts, metric, times)

    interval = _interval(alpha_of, n_units, level, rounds, seed)
    return Agreement(value, interval, n_units, share)


@dataclass(frozen=True)
class _Verdicts:
    """How often each unit got each value, without the zeros: ratings may have as many values as
    there are verdicts."""

    n_units: int
    """Units with at least two values."""
    values: Sequence[Any]
    """In order."""
    units: NDArray[np.intp]
    """[entries], the unit of each."""
    columns: NDArray[np.intp]
    """[entries], the index of its value."""
    counts: Array
    """[entries], how often the unit got the value."""

    @classmethod
    def of(cls, units: Sequence[Sequence[Any]]) -> _Verdicts:
        """Count the values of each unit; None is a missing one."""
        present = ([value for value in unit if value is not None] for unit in units)
        comparable = [unit for unit in present if len(unit) > 1]
        distinct = {value for unit in comparable for value in unit}
        numeric = all(isinstance(value, int | float) for value in distinct)
        values = sorted(distinct) if numeric else sorted(distinct, key=str)
        position = {value: column for column, value in enumerate(values)}
        rows, columns, counts = list[int](), list[int](), list[int]()
        for row, unit in enumerate(comparable):
            for value, count in Counter(unit).items():
                rows.append(row)
                columns.append(position[value])
                counts.append(count)
        return cls(
            len(comparable),
            values,
            np.array(rows, dtype=np.intp),
            np.array(columns, dtype=np.intp),
            np.array(counts, dtype=float),
        )

    def per_unit(self, weights: Array) -> Array:
        """[n_units], the sum over the verdicts of each unit, weighed by the entry's weight."""
        return _sums(self.units, self.counts * weights, self.n_units)


def _sums(groups: NDArray[np.intp], values: Array, n_groups: int) -> Array:
    """[n_groups], the sum of the values of each group."""
    return np.bincount(groups, values, n_groups).astype(np.float64)


def _alpha(verdicts: _Verdicts, metric: Level, times: Array) -> float | None:
    """Return 1 - observed / expected disagreement, where unit `n` counts `times[n]` times; None if
    nothing can disagree.

    Both are sums over pairs of verdicts. They are computed from the sums over single verdicts, as
    a variance is, because the matrix of all pairs of values has the square of their number.
    """
    if not verdicts.n_units:
        return None
    entry_times = verdicts.counts * times[verdicts.units]
    totals = _sums(verdicts.columns, entry_times, len(verdicts.values))
    if np.count_nonzero(totals) < 2:
        return None
    n = totals.sum()
    sizes = verdicts.per_unit(np.ones(len(verdicts.counts)))
    if metric == "nominal":
        unlike = sizes**2 - verdicts.per_unit(verdicts.counts)
        expected = n**2 - (totals**2).sum()
    else:
        positions = _positions(totals, metric, verdicts.values)
        # around the mean, so that the difference of the sums below loses no digits
        positions = positions - (totals * positions).sum() / n
        of_entries = positions[verdicts.columns]
        unlike = 2 * (sizes * verdicts.per_unit(of_entries**2) - verdicts.per_unit(of_entries) ** 2)
        expected = 2 * (n * (totals * positions**2).sum() - (totals * positions).sum() ** 2)
    if not expected:
        return None
    observed = (times * unlike / (sizes - 1)).sum()
    return float(1 - (n - 1) * observed / expected)


def _positions(totals: Array, metric: Level, values: Sequence[Any]) -> Array:
    """Return the places of the values on their scale: their ranks, or the values themselves.
    Raises InputError for values that are no numbers."""
    if not all(isinstance(value, int | float) for value in values):
        raise InputError(
            f"{metric} values {list(values)[:5]!r}",
            "they are not numbers",
            "Use nominal, or give numbers in their order",
        )
    if metric == "ordinal":
        return np.asarray(np.cumsum(totals) - totals / 2)
    return np.asarray(values, dtype=float)


def _interval(
    statistic: Any,
    n: int,
    level: float,
    rounds: int,
    seed: int,
    clusters: Sequence[Hashable] | None = None,
) -> Interval | None:
    """Return the bootstrap interval; None if most resamples have no value, as with one verdict
    among many that differs."""
    try:
        return bootstrap(statistic, n, clusters, level=level, rounds=rounds, seed=seed)
    except InputError:
        return None
