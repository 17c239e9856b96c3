"""Nouns of this stage: an interval, an estimate that has one at every level, and a paired
comparison."""

from __future__ import annotations

import math
from dataclasses import dataclass

FEWEST = 30
"""Groups of items below which nothing is decided by an interval."""


@dataclass(frozen=True)
class Interval:
    """A two-sided interval at confidence `level`."""

    low: float
    high: float
    level: float

    @property
    def width(self) -> float:
        """high - low."""
        return self.high - self.low


@dataclass(frozen=True)
class Estimate:
    """A value with its t interval at any level: `centre` +- quantile * `error`, widened to hold
    `value`, within +-`limit`.

    `error` None: nothing is known but the limit. Two estimates that differ by a constant differ in
    nothing else. `units`: of graded values, where a rare great loss may not have been met; their
    interval is widened to that of `bounded`.
    """

    value: float
    centre: float
    error: float | None
    degrees: float
    limit: float = math.inf
    drawn: float = 1.0
    """How much nearer to zero than `value` the centre is drawn, as a factor (the pseudo-clusters of
    `paired.mean`)."""
    units: tuple[tuple[float, float, int], ...] = ()
    """(total, size, how many) of the clusters of graded values; empty for values that are right or
    wrong, or without a limit."""

    def interval(self, level: float) -> Interval:
        """Two-sided, at confidence `level`."""
        from scipy import stats

        if self.error is None:
            return Interval(-self.limit, self.limit, level)
        half = float(stats.t.isf((1 - level) / 2, self.degrees)) * self.error
        low, high = min(self.centre - half, self.value), max(self.centre + half, self.value)
        if self.units:
            from thumbwheel.stats import bounded

            low = min(low, bounded.lowest(self.units, self.limit, (1 - level) / 2))
            high = max(
                high, -bounded.lowest(bounded.turned(self.units), self.limit, (1 - level) / 2)
            )
        return Interval(max(low, -self.limit), min(high, self.limit), level)

    @property
    def p_value(self) -> float:
        """The smallest 1 - level at which the interval excludes zero; 1 where nothing is known."""
        from scipy import stats

        if self.error is None or self.centre * self.value <= 0:
            return 1.0
        found = (
            float(2 * stats.t.sf(abs(self.centre) / self.error, self.degrees))
            if self.error
            else 0.0
        )
        if self.units:
            from thumbwheel.stats import bounded

            units = self.units if self.value > 0 else bounded.turned(self.units)
            found = max(found, min(1.0, 2 * bounded.p_above(units, self.limit)))
        return found

    def detectable(self, level: float, power: float) -> float | None:
        """The true value whose interval at `level` lies above zero with probability `power`, at
        this error; None beyond the limit."""
        from scipy import stats

        if not self.error:
            return None
        reach = float(stats.t.isf((1 - level) / 2, self.degrees)) * self.error
        if self.units:
            reach = max(reach, self.value - self.interval(level).low)
        found = (reach + float(stats.t.isf(1 - power, self.degrees)) * self.error) * self.drawn
        return found if found <= self.limit else None


@dataclass(frozen=True)
class Comparison:
    """`after` against `before` on the same items; `gain` is the mean of after - before, of which
    `estimate` knows the intervals."""

    before: float
    after: float
    gain: float
    interval: Interval
    n: int
    clusters: int
    changed: int
    """Items on which the two differ."""
    estimate: Estimate

    @property
    def degrees(self) -> float:
        """Degrees of freedom of the t reference (Bell and McCaffrey), which fall as clusters get
        few or unequal."""
        return self.estimate.degrees

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.interval.low

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.interval.high
