"""The gain of one arm over another, at any share, at any rate and at every moment: a bet.

Units are drawn to the treatment with a probability that is written down. A gambler bets on each
unit with what was seen before it: unit i multiplies the stake by 1 + bet (T - share) (Y - centre),
with T = 1 under treatment, its outcome Y within [0, 1], and the mean of the units before as centre.
Where the treatment gains nothing, no bet has an expected profit. So by Ville's inequality the stake
ever reaches 1 / alpha with probability alpha at most, for every bounded outcome, with no assumption
about its distribution: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by
betting" (JRSS B 86, 2024), with the increments of inverse probability weighting, as in
Waudby-Smith, Wu, Ramdas, Karampatziakis and Mineiro, "Anytime-valid off-policy inference for
contextual bandits" (ACM/IMS J. Data Sci. 1, 2024).

The bet that wins most is gain / variance. Mean and variance are learned from the units before; the
size of the gain is not known, so the stake is spread over `Bets.sizes` (a mixture).

That needs a random draw of each unit given those before it. It fails where outcomes come arm by
arm, or more people of one arm answer. So each stake is divided by the most that it can be expected
to reach where both arms have one constant mean, in whatever order their units come: the product of
1 + bet (T - share) (mean - centre), at the worst mean that the control's own sequence allows
(`_drift`). What is left over is valid if either holds: units are drawn as written down, in the
order in which they come, whatever happens over time; or each arm's outcomes have a constant mean,
in any order. In an ordinary experiment the division costs next to nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from thumbwheel.core.errors import InputError
from thumbwheel.stats.types import TUNED_FOR, Interval

Array = NDArray[np.float64]
CENTRE_PART = 0.05
"""Of the error, what the sequence of the control's mean spends."""
LARGEST_LOSS = 0.8
"""Of a stake, what one unit may lose."""
SIZE_RATIO, SIZE_DECAY = 1.6, 0.5
"""Of the sizes of the bets: each to the one before; and of their weights, away from the middle."""
SMALLER, LARGER = 4, 6
"""How many sizes there are below and above the middle one."""
SLOPES = ((0.0, 0.5), (0.5, 0.2), (1.0, 0.3))
"""Slopes of the outcome over what the same unit said before, and the part of the stake on each."""
LEAST = 1e-9
TANGENTS = 8
"""At most, in the search for the largest drift."""
STEPS = 24
"""At most, in the search for the end of an interval."""


@dataclass(frozen=True)
class Bets:
    """How the stake is spread: it grows fastest where the error `alpha` is reached after
    `tuned_for` units. That changes the power, never the validity."""

    alpha: float
    tuned_for: float = TUNED_FOR

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise InputError(
                f"alpha {self.alpha!r}",
                "a probability of error must be between 0 and 1",
                "Use 0.05",
            )

    @property
    def threshold(self) -> float:
        """The log evidence that a gain is shown with."""
        return -math.log(self.alpha * (1 - CENTRE_PART))

    @property
    def sizes(self) -> Array:
        """Expected gains in standard deviations, times the root of share (1 - share)."""
        middle = math.sqrt(2 * (math.log(1 / self.alpha) + 1.5) / self.tuned_for)
        return np.asarray(middle * SIZE_RATIO ** _steps())

    @property
    def weights(self) -> Array:
        """The part of the stake on each size."""
        weights = SIZE_DECAY ** np.abs(_steps())
        return np.asarray(weights / weights.sum())


def _steps() -> Array:
    return np.arange(-SMALLER, LARGER + 1, dtype=float)


@dataclass(frozen=True)
class Arrivals:
    """The units of two arms in the order in which they came. Arrays of one dimension; `wealth` also
    takes more, with the units along the last one."""

    treated: NDArray[np.bool_]
    outcomes: Array
    """Within [0, 1]."""
    shares: Array
    """The probability with which each unit was drawn to the treatment, above 0 and below 1."""
    earlier: Array | None = None
    """The same metric before the unit was drawn, within [0, 1]; NaN where it is not known."""

    def __post_init__(self) -> None:
        if not self.outcomes.size:
            return
        least, most = float(self.outcomes.min()), float(self.outcomes.max())
        if not (least >= 0 and most <= 1):
            raise InputError(
                f"outcomes from {least!r} to {most!r}",
                "the bets are for outcomes within [0, 1]",
                "Scale them by their known bounds",
            )

    @property
    def n(self) -> int:
        return int(self.outcomes.shape[-1])

    def first(self, n: int) -> Arrivals:
        """Return the first `n` arrivals."""
        earlier = None if self.earlier is None else self.earlier[..., :n]
        return Arrivals(
            self.treated[..., :n], self.outcomes[..., :n], self.shares[..., :n], earlier
        )

    def flipped(self) -> Arrivals:
        """Return the arrivals with good and bad exchanged, so that a gain is a loss."""
        earlier = None if self.earlier is None else 1 - self.earlier
        return Arrivals(self.treated, 1 - self.outcomes, self.shares, earlier)


@dataclass(frozen=True)
class _View:
    """The outcomes less `slope` times what was said before, which the arms cannot have changed: the
    gain is the same, with less variance (CUPED). The stake is spread over the slopes."""

    weight: float
    outcomes: Array
    low: Array
    """The least value that was possible up to each unit."""
    high: Array


def _views(arrivals: Arrivals) -> list[_View]:
    zeros, ones = np.zeros(arrivals.n), np.ones(arrivals.n)
    if arrivals.earlier is None or np.isnan(arrivals.earlier).all():
        # All slopes come to the same.
        return [_View(1.0, arrivals.outcomes, zeros, ones)]
    centred = np.nan_to_num(arrivals.earlier - 0.5)
    has_begun = np.maximum.accumulate(~np.isnan(arrivals.earlier), -1)
    views = []
    for slope, weight in SLOPES:
        reach = slope / 2 * has_begun
        views.append(_View(weight, arrivals.outcomes - slope * centred, -reach, 1 + reach))
    return views


@dataclass(frozen=True)
class _Predicted:
    """A view and what is known of each unit before it, if the treatment gains `gain`."""

    increments: Array
    """(T - share) (Y - centre), with the supposed gain taken from the outcomes."""
    side: Array
    """T - share."""
    centre: Array
    unit_bet: Array
    """The bet of size 1."""
    largest_bet: Array

    def bets(self, size: float) -> Array:
        """Return the bet on each unit, for a gain of this size."""
        return np.minimum(size * self.unit_bet, self.largest_bet)


def _predicted(arrivals: Arrivals, view: _View, gain: float) -> _Predicted:
    shares, side = arrivals.shares, arrivals.treated - arrivals.shares
    values = view.outcomes - gain * arrivals.treated
    count = np.arange(1, arrivals.n + 1)
    # One unit of mean 1/2 and variance 1/4 comes before the first.
    centre = _before((0.5 + np.cumsum(values, -1)) / (count + 1), 0.5)
    squares = np.cumsum((values - centre) ** 2, -1)
    variance = _before((0.25 + squares) / (count + 1), 0.25)
    # The most that a unit of either arm may be below its prediction, or above it.
    worst_treated = (1 - shares) * np.maximum(centre + gain - view.low, LEAST)
    worst_control = shares * np.maximum(view.high - centre, LEAST)
    return _Predicted(
        increments=side * (values - centre),
        side=side,
        centre=centre,
        unit_bet=1 / np.sqrt(variance * shares * (1 - shares)),
        largest_bet=LARGEST_LOSS / np.maximum(worst_treated, worst_control),
    )


def _before(values: Array, first: float) -> Array:
    """Return for each unit the value at the one before, `first` for the first."""
    shape = (*values.shape[:-1], 1)
    return np.concatenate([np.full(shape, first), values[..., :-1]], -1)


def wealth(arrivals: Arrivals, bets: Bets, gain: float = 0.0) -> Array:
    """Return the log of the stake after each unit, against a gain of at most `gain`, if units are
    drawn with the recorded shares. `log_evidence` is never more than its last value."""
    total = np.full(arrivals.outcomes.shape, -math.inf)
    for view in _views(arrivals):
        predicted = _predicted(arrivals, view, gain)
        for size, weight in zip(bets.sizes, bets.weights, strict=True):
            stake = np.cumsum(np.log1p(predicted.bets(size) * predicted.increments), -1)
            total = np.logaddexp(total, stake + math.log(weight * view.weight))
    return total


def log_evidence(arrivals: Arrivals, bets: Bets, gain: float = 0.0) -> float:
    """Log of the evidence that the treatment gains more than `gain`; `bets.threshold` shows it."""
    views = [(view, _means(arrivals, view, bets)) for view in _views(arrivals)]
    return _log_evidence(arrivals, bets, gain, views)


def _log_evidence(
    arrivals: Arrivals, bets: Bets, gain: float, views: Sequence[tuple[_View, _Means]]
) -> float:
    if not arrivals.n:
        return 0.0
    stakes = []
    for view, means in views:
        predicted = _predicted(arrivals, view, gain)
        # The control's mean is at least the treatment's less the gain. Where no mean is left, the
        # arms' own sequences rule this gain out.
        low, high = max(means.low, means.least_treated - gain), means.high
        for size, weight in zip(bets.sizes, bets.weights, strict=True):
            bet = predicted.bets(size)
            stake = float(np.log1p(bet * predicted.increments).sum())
            drift = 0.0
            if low <= high:
                drift = _drift(bet * predicted.side, predicted.centre, low, high)
            stakes.append(math.log(weight * view.weight) + stake - drift)
    return float(np.logaddexp.reduce(stakes))


@dataclass(frozen=True)
class _Means:
    """Where the means of the arms lie at every moment."""

    low: float
    """Of the control."""
    high: float
    least_treated: float


def _means(arrivals: Arrivals, view: _View, bets: Bets) -> _Means:
    if not arrivals.n:
        return _Means(0.0, 1.0, 0.0)
    part = bets.alpha * CENTRE_PART * view.weight / 2
    least, most = float(view.low.min()), float(view.high.max())
    scaled = (view.outcomes - least) / (most - least)
    ends = centre_interval(scaled[~arrivals.treated], part)
    treated_ends = centre_interval(scaled[arrivals.treated], part)
    low, high, least_treated = (least + (most - least) * end for end in (*ends, treated_ends[0]))
    # A mean that is the same for all units lies where the values of each unit may lie.
    floor, ceiling = float(view.low.max()), float(view.high.min())
    return _Means(max(low, floor), min(high, ceiling), max(least_treated, floor))


def _drift(slopes: Array, centre: Array, low: float, high: float) -> float:
    """Return an upper bound of the log of the product of 1 + slope (mean - centre), over the means
    from `low` to `high`; at least 0. The log is concave, so it lies below its tangents."""

    def tangent(mean: float) -> tuple[float, float]:
        factors = 1 + slopes * (mean - centre)
        return float(np.log(factors).sum()), float((slopes / factors).sum())

    value_low, rise = tangent(low)
    value_high, fall = tangent(high)
    if rise <= 0:
        return max(0.0, value_low)
    if fall >= 0:
        return max(0.0, value_high)
    bound = value_low
    for _ in range(TANGENTS):
        crossing = (value_high - value_low + rise * low - fall * high) / (rise - fall)
        bound = value_low + rise * (crossing - low)
        if bound <= 0:
            break
        value, slope = tangent(crossing)
        if bound - value < 0.01:
            break
        if slope > 0:
            low, value_low, rise = crossing, value, slope
        else:
            high, value_high, fall = crossing, value, slope
    return max(0.0, bound)


def centre_interval(outcomes: Array, alpha: float) -> tuple[float, float]:
    """Return the interval that holds the mean of outcomes within [0, 1] at every moment: the
    mixture of likelihood ratios with Jeffreys' prior. It is exact for outcomes that are 0 or 1, and
    holds for all bounded outcomes, as a likelihood ratio is convex in the outcome."""
    n = len(outcomes)
    good = float(np.clip(outcomes.sum(), 0.0, n))
    bad = n - good
    # The prior is Beta(1/2, 1/2), whose normaliser is pi.
    mixture = math.lgamma(good + 0.5) + math.lgamma(bad + 0.5) - math.lgamma(n + 1.0)
    least = mixture - math.log(math.pi) + math.log(alpha)

    def is_outside(mean: float) -> bool:
        if (mean <= 0 and good > 0) or (mean >= 1 and bad > 0):
            return True
        likelihood = good * math.log(mean) if good else 0.0
        likelihood += bad * math.log1p(-mean) if bad else 0.0
        return likelihood < least

    mean = good / n if n else 0.5
    return _border(is_outside, 0.0, mean), _border(is_outside, 1.0, mean)


def _border(is_outside: Callable[[float], bool], end: float, inside: float) -> float:
    """Return the last value outside on the way from `end` to `inside`, or `end` if none is."""
    if not is_outside(end):
        return end
    outside = end
    for _ in range(20):
        middle = (outside + inside) / 2
        if is_outside(middle):
            outside = middle
        else:
            inside = middle
    return outside


def lower_end(arrivals: Arrivals, bets: Bets) -> float:
    """Return the lower end of the gain, which lies below the gain at all moments except with
    probability `bets.alpha`. It is above zero exactly if a gain above zero is shown."""
    treated = arrivals.treated
    if treated.all() or not treated.any():
        return -1.0

    views = [(view, _means(arrivals, view, bets)) for view in _views(arrivals)]

    def excess(gain: float) -> float:
        return _log_evidence(arrivals, bets, gain, views) - bets.threshold

    outcomes = arrivals.outcomes
    estimate = float(outcomes[treated].mean() - outcomes[~treated].mean())
    # `shown` is a gain that is exceeded for sure, `open_` one of which that is not known.
    at_zero = excess(0.0)
    if at_zero >= 0:
        shown, open_ = 0.0, max(estimate, LEAST)
        excess_shown, excess_open = at_zero, excess(open_)
        if excess_open >= 0:
            shown, open_, excess_shown, excess_open = open_, 1.0, excess_open, -bets.threshold
    else:
        shown, open_ = -1.0, 0.0
        excess_shown, excess_open = excess(-1.0), at_zero
        if excess_shown < 0:
            return -1.0
    return _crossing(excess, shown, open_, excess_shown, excess_open)


def _crossing(
    excess: Callable[[float], float],
    shown: float,
    open_: float,
    excess_shown: float,
    excess_open: float,
) -> float:
    """Narrow the interval from `shown` to `open_`, and return its lower end (by the secant, damped
    if it is stuck on one side: Illinois)."""
    last_side = 0
    for step in range(STEPS):
        if open_ - shown < 1e-5:
            break
        middle = (shown + open_) / 2
        if step % 3 < 2 and excess_shown > excess_open:
            middle = shown + (open_ - shown) * excess_shown / (excess_shown - excess_open)
            margin = (open_ - shown) / 100
            middle = min(max(middle, shown + margin), open_ - margin)
        value = excess(middle)
        if value >= 0:
            shown, excess_shown = middle, value
            excess_open *= 0.5 if last_side > 0 else 1.0
            last_side = 1
        else:
            open_, excess_open = middle, value
            excess_shown *= 0.5 if last_side < 0 else 1.0
            last_side = -1
    return shown


def gain_interval(arrivals: Arrivals, bets: Bets) -> Interval:
    """Return the interval of the gain; each end errs with probability at most `bets.alpha`."""
    low = lower_end(arrivals, bets)
    high = -lower_end(arrivals.flipped(), bets)
    return Interval(low, high, 1 - 2 * bets.alpha)


def difference_p(arrivals: Arrivals, bets: Bets) -> float:
    """Return the p value, over all moments, of the hypothesis that both arms have one mean."""
    for_gain = log_evidence(arrivals, bets)
    for_loss = log_evidence(arrivals.flipped(), bets)
    evidence = float(np.logaddexp(for_gain, for_loss)) - math.log(2)
    return min(1.0, math.exp(-evidence) / (1 - CENTRE_PART))
