"""Results of statistics: an interval, an estimate with an interval at every level, and a paired
comparison."""

from __future__ import annotations

import math
from dataclasses import dataclass

FEWEST = 30
"""With fewer groups of items no interval decides anything."""
TUNED_FOR = 5000.0
"""Units at which an asymptotic confidence sequence is tightest; at others it is wider, never
invalid."""


@dataclass(frozen=True)
class Interval:
    """A two-sided interval at confidence `level`."""

    low: float
    high: float
    level: float

    @property
    def width(self) -> float:
        return self.high - self.low


@dataclass(frozen=True)
class Estimate:
    """A value with its t interval at any level: `centre` +- quantile * `error`, widened to hold
    `value`, within +-`limit`.

    `error` None: the interval is +-`limit`. `units`: the clusters of graded values, whose sample
    may have missed rare large losses; their interval is widened to that of `bounded`.
    """

    value: float
    centre: float
    error: float | None
    degrees: float
    limit: float = math.inf
    drawn: float = 1.0
    """The factor by which the pseudo-clusters of `paired.mean` pull the centre towards zero."""
    units: tuple[tuple[float, float, int], ...] = ()
    """(total, size, count) of the clusters of graded values; empty for values that are right or
    wrong, or without a limit."""

    def interval(self, level: float) -> Interval:
        """Return the two-sided interval at confidence `level`."""
        from scipy import special

        if self.error is None:
            return Interval(-self.limit, self.limit, level)
        half = -float(special.stdtrit(self.degrees, (1 - level) / 2)) * self.error
        low, high = min(self.centre - half, self.value), max(self.centre + half, self.value)
        if self.units:
            from thumbwheel.stats import bounded

            tail = (1 - level) / 2
            low = min(low, bounded.lower_bound(self.units, self.limit, tail))
            high = max(high, -bounded.lower_bound(bounded.negated(self.units), self.limit, tail))
        return Interval(max(low, -self.limit), min(high, self.limit), level)

    @property
    def p_value(self) -> float:
        """The smallest 1 - level at which the interval excludes zero; 1 where the error is
        unknown."""
        from scipy import special

        if self.error is None or self.centre * self.value <= 0:
            return 1.0
        p_value = 0.0
        if self.error:
            p_value = float(2 * special.stdtr(self.degrees, -abs(self.centre) / self.error))
        if self.units:
            from thumbwheel.stats import bounded

            units = self.units if self.value > 0 else bounded.negated(self.units)
            p_value = max(p_value, min(1.0, 2 * bounded.p_above(units, self.limit)))
        return p_value

    def detectable(self, level: float, power: float) -> float | None:
        """Return the true value whose interval at `level` lies above zero with probability `power`,
        at this error; None beyond the limit or without an error."""
        from scipy import special

        if not self.error:
            return None
        half = -float(special.stdtrit(self.degrees, (1 - level) / 2)) * self.error
        if self.units:
            half = max(half, self.value - self.interval(level).low)
        gain = (half - float(special.stdtrit(self.degrees, 1 - power)) * self.error) * self.drawn
        return gain if gain <= self.limit else None


@dataclass(frozen=True)
class Comparison:
    """`after` against `before` on the same items; `gain` is the mean of after - before, and
    `estimate` has its intervals at every level."""

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
        """Degrees of freedom of the t distribution (Bell and McCaffrey); the fewer or the more
        unequal the clusters, the lower."""
        return self.estimate.degrees

    @property
    def low(self) -> float:
        return self.interval.low

    @property
    def high(self) -> float:
        return self.interval.high
