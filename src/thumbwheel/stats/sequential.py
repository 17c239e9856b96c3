"""Confidence sequences of large samples: intervals that hold at every moment at once, so that a
test may be looked at, and stopped, whenever somebody likes.

Asymptotic, for the difference of two means: Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas,
"Time-uniform central limit theory and asymptotic confidence sequences" (Annals of Statistics 52,
2024), equations 9, 155 and 161 of its seventh version. It is for values without known bounds, from
about 100 units an arm on, and wrong as long as rare values were not seen in both arms. Bounded
values have an exact interval: stats/betting.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from thumbwheel.core.errors import InputError
from thumbwheel.stats.types import TUNED_FOR, Interval

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Sample:
    """The units of one arm."""

    n: int
    mean: float
    variance: float
    """With n - 1 as divisor; 0 for fewer than two units."""

    @classmethod
    def of(cls, values: Array) -> Sample:
        """Return the sample of these values; mean 0 if there are none."""
        if not len(values):
            return cls(0, 0.0, 0.0)
        variance = float(values.var(ddof=1)) if len(values) > 1 else 0.0
        return cls(len(values), float(values.mean()), variance)


@dataclass(frozen=True)
class Difference:
    """An estimate of treatment minus control: `variance` is that of the estimate, `n` counts the
    units of both arms."""

    value: float
    variance: float
    n: int

    @classmethod
    def between(cls, control: Sample, treatment: Sample) -> Difference:
        """Return the difference of two means; its variance is infinite (unknown) if an arm has
        fewer than two units."""
        n = control.n + treatment.n
        if min(control.n, treatment.n) < 2:
            return cls(treatment.mean - control.mean, math.inf, n)
        variance = control.variance / control.n + treatment.variance / treatment.n
        return cls(treatment.mean - control.mean, variance, n)

    def interval(self, alpha: float, tuned_for: float = TUNED_FOR) -> Interval:
        """Return the asymptotic confidence sequence at this moment, two-sided; infinite if the
        variance is unknown."""
        _check_alpha(alpha)
        if not math.isfinite(self.variance) or self.n == 0:
            return Interval(-math.inf, math.inf, 1 - alpha)
        half = math.sqrt(self.variance) * boundary(self.n, alpha, tuned_for)
        return Interval(self.value - half, self.value + half, 1 - alpha)

    def p_value(self, alpha: float, tuned_for: float = TUNED_FOR) -> float:
        """Return the p value that may be read at any moment, for a sequence tuned for `alpha`; it
        is below `alpha` exactly if the interval excludes zero."""
        _check_alpha(alpha)
        if not math.isfinite(self.variance) or self.n == 0:
            return 1.0
        if self.variance == 0:
            return 1.0 if self.value == 0 else 0.0
        squared_rate = _rate(alpha, tuned_for) ** 2
        growth = self.n * squared_rate + 1
        squared_score = self.value**2 * self.n / self.variance
        log_evidence = squared_rate * squared_score / (2 * growth) - math.log(growth) / 2
        return min(1.0, math.exp(-log_evidence))


def boundary(n: float, alpha: float, tuned_for: float = TUNED_FOR) -> float:
    """Return the half-width of the asymptotic interval after `n` units, in standard errors.

    >>> round(boundary(5000, 0.05), 3), round(boundary(100, 0.05), 3)
    (3.035, 6.694)
    """
    growth = n * _rate(alpha, tuned_for) ** 2 + 1
    return math.sqrt(2 * growth / (growth - 1) * math.log(math.sqrt(growth) / alpha))


def _rate(alpha: float, tuned_for: float) -> float:
    """Return the paper's rho, for the tightest interval at `tuned_for` units."""
    evidence = -2 * math.log(alpha)
    return math.sqrt((evidence + math.log(evidence + 1)) / tuned_for)


def combined(differences: list[Difference]) -> Difference:
    """Return the difference over strata with different shares of the arms, each weighted by its
    units.

    A stratum in which an arm has fewer than two units has no difference and is left out.
    """
    usable = [stratum for stratum in differences if math.isfinite(stratum.variance)]
    n = sum(stratum.n for stratum in usable)
    if n == 0:
        return Difference(0.0, math.inf, 0)
    value = sum(stratum.n / n * stratum.value for stratum in usable)
    variance = sum((stratum.n / n) ** 2 * stratum.variance for stratum in usable)
    return Difference(value, variance, n)


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha < 1:
        raise InputError(
            f"alpha {alpha!r}", "a probability of error must be between 0 and 1", "Use 0.05"
        )
