"""Confidence sequences: intervals that hold at every moment at once, so that a test may be looked
at, and stopped, whenever somebody likes.

- Asymptotic, for the difference of two means: Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas,
  "Time-uniform central limit theory and asymptotic confidence sequences" (Annals of Statistics 52,
  2024), equations 9, 155 and 161 of its seventh version. From about 100 units an arm on.
- Exact, for the mean of values within [0, 1]: predictable plug-in empirical Bernstein, theorem 2 of
  Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting" (JRSS B 86,
  2024). It learns the spread, so that few and skewed values are no danger.
- Exact, for the difference of two bounded means under probabilities that are written down: Howard,
  Ramdas, McAuliffe and Sekhon, "Time-uniform, nonparametric, nonasymptotic confidence sequences"
  (Annals of Statistics 49, 2021), with the gamma-exponential mixture as boundary (proposition 9).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from thumbwheel.core.errors import InputError
from thumbwheel.stats.types import TUNED_FOR, Interval

Array = NDArray[np.float64]
TRUNCATION = 0.5
"""Largest bet of the empirical Bernstein sequence."""


@dataclass(frozen=True)
class Sample:
    """The units of one arm."""

    n: int
    mean: float
    variance: float
    """With n - 1 as divisor; 0 for fewer than two units."""

    @classmethod
    def of(cls, values: Array) -> Sample:
        """The sample of these values; mean 0 where there are none."""
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
        """The difference of two means; of unknown variance (infinite) where an arm has fewer than
        two units."""
        n = control.n + treatment.n
        if min(control.n, treatment.n) < 2:
            return cls(treatment.mean - control.mean, math.inf, n)
        variance = control.variance / control.n + treatment.variance / treatment.n
        return cls(treatment.mean - control.mean, variance, n)

    def interval(self, alpha: float, tuned_for: float = TUNED_FOR) -> Interval:
        """The asymptotic confidence sequence at this moment, two-sided; infinite where the variance
        is unknown."""
        _check_alpha(alpha)
        if not math.isfinite(self.variance) or self.n == 0:
            return Interval(-math.inf, math.inf, 1 - alpha)
        half = math.sqrt(self.variance) * boundary(self.n, alpha, tuned_for)
        return Interval(self.value - half, self.value + half, 1 - alpha)

    def p_value(self, alpha: float, tuned_for: float = TUNED_FOR) -> float:
        """The p value that may be read at any moment, of a sequence that is tuned for `alpha`; it
        is below `alpha` exactly where the interval excludes zero."""
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
    """How many standard errors wide half the asymptotic interval is after `n` units.

    >>> round(boundary(5000, 0.05), 3), round(boundary(100, 0.05), 3)
    (3.035, 6.694)
    """
    growth = n * _rate(alpha, tuned_for) ** 2 + 1
    return math.sqrt(2 * growth / (growth - 1) * math.log(math.sqrt(growth) / alpha))


def _rate(alpha: float, tuned_for: float) -> float:
    """The paper's rho, for the tightest interval at `tuned_for` units."""
    evidence = -2 * math.log(alpha)
    return math.sqrt((evidence + math.log(evidence + 1)) / tuned_for)


def combined(differences: list[Difference]) -> Difference:
    """The difference over strata with other shares of the arms, each weighed by its units.

    A stratum in which an arm has fewer than two units has no difference and is left out.
    """
    usable = [stratum for stratum in differences if math.isfinite(stratum.variance)]
    n = sum(stratum.n for stratum in usable)
    if n == 0:
        return Difference(0.0, math.inf, 0)
    value = sum(stratum.n / n * stratum.value for stratum in usable)
    variance = sum((stratum.n / n) ** 2 * stratum.variance for stratum in usable)
    return Difference(value, variance, n)


def empirical_bernstein(
    values: Array, alpha: float, truncation: float = TRUNCATION
) -> tuple[Array, Array]:
    """Lower and upper ends of the mean after each of `values` (within [0, 1], in the order in which
    they came). Raises InputError for other values."""
    _check_alpha(alpha)
    if len(values) and not (values.min() >= 0 and values.max() <= 1):
        raise InputError(
            f"values from {values.min()!r} to {values.max()!r}",
            "the sequence is for values within [0, 1]",
            "Scale them by their known bounds",
        )
    low = _empirical_bernstein_low(values, alpha / 2, truncation)
    high = 1 - _empirical_bernstein_low(1 - values, alpha / 2, truncation)
    return low, high


def _empirical_bernstein_low(values: Array, alpha: float, truncation: float) -> Array:
    count = np.arange(1, len(values) + 1)

    # The bets: each knows only the values before its own, and starts from mean 1/2, variance 1/4.
    mean = np.minimum((0.5 + np.cumsum(values)) / (count + 1), 1)
    variance = (0.25 + np.cumsum((values - mean) ** 2)) / (count + 1)
    earlier_variance = np.append(0.25, variance[:-1])
    bets = np.sqrt(2 * np.log(1 / alpha) / (count * np.log(1 + count) * earlier_variance))
    bets = np.minimum(bets, truncation)

    earlier_mean = np.append(0.0, (np.cumsum(values) / count)[:-1])
    penalties = (values - earlier_mean) ** 2 * (-np.log(1 - bets) - bets)
    margin = (np.log(1 / alpha) + np.cumsum(penalties)) / np.cumsum(bets)
    weighted_mean = np.cumsum(bets * values) / np.cumsum(bets)
    return np.asarray(np.maximum(weighted_mean - margin, 0.0))


@dataclass(frozen=True)
class GammaExponential:
    """The boundary for sums whose increments have scale `scale`: tightest where the variance
    process has reached `tuned_for`, at `alpha`."""

    scale: float
    tuned_for: float
    alpha: float

    def log_evidence(self, total: float, variance: float) -> float:
        """Log of the mixture supermartingale, of a sum and its variance process."""
        from scipy import special

        square = self.scale**2
        prior = self._prior() / square
        shape = variance / square + prior
        rate = self.scale * total / square + shape
        # A sum as far below zero as its variance allows speaks for nothing.
        if rate <= 0:
            return -math.inf
        log_share = math.log(special.gammainc(shape, rate)) if rate < shape + 1e6 else 0.0
        log_constant = (
            prior * math.log(prior)
            - special.gammaln(prior)
            - math.log(special.gammainc(prior, prior))
        )
        return float(
            log_constant
            + special.gammaln(shape)
            + log_share
            - shape * math.log(rate)
            + rate
            - prior
        )

    def bound(self, variance: float, alpha: float) -> float:
        """The sum that is passed with probability `alpha` at most, at any moment."""
        from scipy import optimize

        target = math.log(1 / alpha)

        def excess(total: float) -> float:
            return self.log_evidence(total, variance) - target

        high = max(1.0, self.scale, math.sqrt(variance))
        while excess(high) < 0:
            high *= 2
        return float(optimize.brentq(excess, 0.0, high, xtol=1e-13, rtol=1e-14))

    def _prior(self) -> float:
        """The paper's rho for one side."""
        evidence = 2 * math.log(1 / (2 * self.alpha))
        return self.tuned_for / (evidence + math.log(1 + evidence))


def bounded_difference(
    treated: NDArray[np.bool_],
    outcomes: Array,
    propensities: Array,
    alpha: float,
    *,
    noise: float = 0.25,
    tuned_for: float = 100.0,
) -> Interval:
    """The interval of treatment minus control after all units, in the order in which they came.

    `outcomes` lie within [0, 1]; `propensities` are the probabilities with which each unit got the
    treatment, whatever followed. `noise` is the expected variance of an outcome, `tuned_for` the
    units at which the interval is tightest: both change its width, not its validity.
    """
    _check_alpha(alpha)
    if not len(outcomes):
        return Interval(-1.0, 1.0, 1 - alpha)
    increments, predicted = _increments(treated, outcomes, propensities)
    variance = float(((increments - predicted) ** 2).sum())
    least = float(np.minimum(propensities, 1 - propensities).min())
    spread = noise * (1 / least + 1 / (1 - least))
    sequence = GammaExponential(2 / least, tuned_for * spread, alpha / 2)
    radius = sequence.bound(variance, alpha / 2) / len(outcomes)
    centre = float(increments.mean())
    return Interval(max(-1.0, centre - radius), min(1.0, centre + radius), 1 - alpha)


def _increments(
    treated: NDArray[np.bool_], outcomes: Array, propensities: Array
) -> tuple[Array, Array]:
    """The unbiased estimate of the effect that each unit adds, and what was predicted before it
    from the means of the units before."""
    control_before = _means_before(outcomes, ~treated)
    treatment_before = _means_before(outcomes, treated)
    predicted = treatment_before - control_before
    weights = (treated - propensities) / (propensities * (1 - propensities))
    expected = np.where(treated, treatment_before, control_before)
    return predicted + weights * (outcomes - expected), predicted


def _means_before(outcomes: Array, selected: NDArray[np.bool_]) -> Array:
    """For each unit the mean of the selected units before it; 1/2 for the first unit."""
    counts = np.cumsum(selected)
    means = np.cumsum(outcomes * selected) / np.maximum(1, counts)
    return np.append(0.5, means[:-1])


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha < 1:
        raise InputError(
            f"alpha {alpha!r}", "a probability of error lies between 0 and 1", "Use 0.05"
        )
