"""Nouns of this stage: an interval, and a paired comparison."""

from __future__ import annotations

from dataclasses import dataclass


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
class Comparison:
    """`after` against `before` on the same items; `gain` is the mean of after - before."""

    before: float
    after: float
    gain: float
    interval: Interval
    n: int
    clusters: int
    degrees: float
    """Degrees of freedom of the t reference (Bell and McCaffrey), which fall as clusters get few or unequal."""
    changed: int
    """Items on which the two differ."""

    @property
    def low(self) -> float:
        """Lower end of the interval."""
        return self.interval.low

    @property
    def high(self) -> float:
        """Upper end of the interval."""
        return self.interval.high
