"""How far raters agree beyond chance: Cohen's kappa of two, Krippendorff's alpha of any number,
with values missing.

Sources: Cohen, Educational and Psychological Measurement 20 (1960); Krippendorff, Computing
Krippendorff's Alpha-Reliability (2011), whose examples the tests hold. Coefficients are 1 for
perfect agreement, 0 for what chance would give, below 0 for less. Intervals resample units
(`paired.bootstrap`). What a coefficient cannot be computed from (no two values on a unit, or one
value everywhere) gives None, never 0 or 1.
"""

from __future__ import annotations

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
        """For JSON."""
        ends = (None, None) if self.interval is None else (self.interval.low, self.interval.high)
        return {
            "value": self.value,
            "low": ends[0],
            "high": ends[1],
            "units": self.units,
            "share": self.share,
        }


def cohen_kappa(first: Sequence[Hashable], second: Sequence[Hashable]) -> float | None:
    """Kappa of two raters over the same items; None for no items and where both always say the same
    one thing. Raises InputError for unequal lengths.

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
    ours, theirs = Counter(first), Counter(second)
    chance = sum(ours[value] * theirs[value] for value in ours)
    return (
        None
        if n * n == chance
        else (n * sum(map(_same, first, second)) - chance) / (n * n - chance)
    )


def kappa(
    first: Sequence[Hashable],
    second: Sequence[Hashable],
    clusters: Sequence[Hashable] | None = None,
    *,
    level: float = 0.95,
    rounds: int = 1000,
    seed: int = 0,
) -> Agreement:
    """Cohen's kappa with its bootstrap interval over items, or over the `clusters` that they come
    in."""
    value = cohen_kappa(first, second)
    n = len(first)
    share = sum(map(_same, first, second)) / n if n else None
    if value is None:
        return Agreement(None, None, n, share)
    names = {
        key: place for place, key in enumerate({**dict.fromkeys(first), **dict.fromkeys(second)})
    }
    codes = np.array([[names[one] for one in first], [names[one] for one in second]])

    def of(indices: NDArray[np.intp]) -> float | None:
        table = np.zeros((len(names), len(names)))
        np.add.at(table, (codes[0, indices], codes[1, indices]), 1)
        chance, size = float(table.sum(0) @ table.sum(1)), len(indices)
        return (
            None
            if size * size == chance
            else (size * float(np.trace(table)) - chance) / (size * size - chance)
        )

    return Agreement(value, _interval(of, n, level, rounds, seed, clusters), n, share)


def _same(one: Hashable, other: Hashable) -> bool:
    return one == other


def krippendorff_alpha(units: Sequence[Sequence[Any]], metric: Level = "nominal") -> float | None:
    """Alpha of the values that each unit got; None among them is a missing one, and a unit with
    fewer than two says nothing.

    For ordinal and interval the values are numbers. None where no unit has two values, or all
    values are one.

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
    """Krippendorff's alpha with its bootstrap interval over units; `units` counts those with two
    values at least."""
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
    """How often each unit got each value [units with two at least, values], and the values in
    order."""
    kept = [given for unit in units if len(given := [one for one in unit if one is not None]) > 1]
    seen = {one for unit in kept for one in unit}
    values = (
        sorted(seen) if all(isinstance(one, int | float) for one in seen) else sorted(seen, key=str)
    )
    places = {value: place for place, value in enumerate(values)}
    counts = np.zeros((len(kept), len(values)))
    for row, unit in enumerate(kept):
        for one in unit:
            counts[row, places[one]] += 1
    return counts, values


def _alpha(counts: Array, metric: Level, values: Sequence[Any]) -> float | None:
    """1 - observed / expected disagreement over the coincidence matrix."""
    if not counts.size:
        return None
    sizes = counts.sum(1)
    weighted = counts / (sizes - 1)[:, None]
    coincidences = weighted.T @ counts - np.diag(weighted.sum(0))
    totals = counts.sum(0)
    distance = _distances(totals, metric, values)
    expected = float((np.outer(totals, totals) * distance).sum())
    return (
        None
        if not expected
        else float(1 - (totals.sum() - 1) * (coincidences * distance).sum() / expected)
    )


def _distances(totals: Array, metric: Level, values: Sequence[Any]) -> Array:
    """Squared differences between values: 0 or 1, of their ranks, or of the values themselves."""
    if metric == "nominal":
        return 1 - np.eye(len(values))
    if not all(isinstance(one, int | float) for one in values):
        raise InputError(
            f"{metric} values {list(values)[:5]!r}",
            "they are no numbers",
            "Use nominal, or give numbers in their order",
        )
    places = (
        np.cumsum(totals) - totals / 2 if metric == "ordinal" else np.asarray(values, dtype=float)
    )
    return np.asarray((places[:, None] - places[None, :]) ** 2)


def _interval(
    statistic: Any,
    n: int,
    level: float,
    rounds: int,
    seed: int,
    clusters: Sequence[Hashable] | None = None,
) -> Interval | None:
    """None where most resamples have no value: one verdict among many, so that nothing is known."""
    try:
        return bootstrap(statistic, n, clusters, level=level, rounds=rounds, seed=seed)
    except InputError:
        return None
