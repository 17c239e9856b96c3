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
    counts, values = _counts(units)
    return _alpha(counts, metric, values)


def alpha(
    units: Sequence[Sequence[Any]],
    metric: Level = "nominal",
    *,
    level: float = 0.95,
    rounds: int = 1000,
    seed: int = 0,
) -> Agreement:
    """Return Krippendorff's alpha with its bootstrap interval over units; the result's `units`
    counts the units with at least two values."""
    counts, values = _counts(units)
    value = _alpha(counts, metric, values)
    sizes = counts.sum(1)
    pairs = float((sizes * (sizes - 1)).sum())
    share = float((counts * (counts - 1)).sum()) / pairs if pairs else None
    if value is None:
        return Agreement(None, None, len(counts), share)
    interval = _interval(
        lambda indices: _alpha(counts[indices], metric, values), len(counts), level, rounds, seed
    )
    return Agreement(value, interval, len(counts), share)


def _counts(units: Sequence[Sequence[Any]]) -> tuple[Array, list[Any]]:
    """Return (how often each unit got each value [units with at least two values, values], the
    values in order)."""
    present = ([value for value in unit if value is not None] for unit in units)
    comparable = [unit for unit in present if len(unit) > 1]
    distinct = {value for unit in comparable for value in unit}
    numeric = all(isinstance(value, int | float) for value in distinct)
    values = sorted(distinct) if numeric else sorted(distinct, key=str)
    columns = {value: column for column, value in enumerate(values)}
    counts = np.zeros((len(comparable), len(values)))
    for row, unit in enumerate(comparable):
        for value in unit:
            counts[row, columns[value]] += 1
    return counts, values


def _alpha(counts: Array, metric: Level, values: Sequence[Any]) -> float | None:
    """Return 1 - observed / expected disagreement over the coincidence matrix; None if it does not
    exist."""
    if not counts.size:
        return None
    sizes = counts.sum(1)
    weighted = counts / (sizes - 1)[:, None]
    coincidences = weighted.T @ counts - np.diag(weighted.sum(0))
    totals = counts.sum(0)
    distance = _distances(totals, metric, values)
    observed = (coincidences * distance).sum()
    expected = float((np.outer(totals, totals) * distance).sum())
    if not expected:
        return None
    return float(1 - (totals.sum() - 1) * observed / expected)


def _distances(totals: Array, metric: Level, values: Sequence[Any]) -> Array:
    """Return the squared differences between values: 0 or 1, of their ranks, or of the values
    themselves. Raises InputError for values that must be numbers and are not."""
    if metric == "nominal":
        return 1 - np.eye(len(values))
    if not all(isinstance(value, int | float) for value in values):
        raise InputError(
            f"{metric} values {list(values)[:5]!r}",
            "they are no numbers",
            "Use nominal, or give numbers in their order",
        )
    if metric == "ordinal":
        positions = np.cumsum(totals) - totals / 2
    else:
        positions = np.asarray(values, dtype=float)
    return np.asarray((positions[:, None] - positions[None, :]) ** 2)


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
