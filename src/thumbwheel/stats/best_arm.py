"""Which of several arms is the best, with as few units as possible.

Garivier and Kaufmann, "Optimal best arm identification with fixed confidence" (COLT 2016): the
shares that the lower bound asks for (track and stop), and the generalised likelihood ratio as
stopping rule, with the threshold log((log t + 1) / alpha) of their experiments, shared among the
arms that may be taken for the best. Arms are normal with the variance that was seen, which for
rates is the usual approximation.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
FLOOR = 0.5
"""Exponent of the forced exploration: no arm gets fewer than about the root of all units."""


def optimal_shares(means: Array, variances: Array, least: float = 0.0) -> Array:
    """Return the shares of the arms that identify the best one soonest, each at least `least`;
    equal shares if two arms are best.

    >>> optimal_shares(np.array([0.6, 0.5]), np.array([0.24, 0.25])).round(2).tolist()
    [0.49, 0.51]
    """
    from scipy import optimize

    arms = len(means)
    best = int(np.argmax(means))
    gaps = means[best] - means
    others = np.arange(arms) != best
    if arms == 1 or gaps[others].min() < 1e-9:
        return np.full(arms, 1 / arms)
    variances = np.maximum(variances, 1e-6)

    def shares_of(evidence: float) -> Array:
        """Return the shares, relative to 1 for the best arm, that give every other arm this
        evidence."""
        spread = gaps[others] ** 2 / evidence - variances[best]
        shares = np.ones(arms)
        shares[others] = variances[others] / spread
        return shares

    def slope(evidence: float) -> float:
        """Return the slope, zero at the optimum: there the others pay for the best arm's
        variance."""
        shares = shares_of(evidence)[others]
        return float((variances[best] * shares**2 / variances[others]).sum()) - 1.0

    highest = float(gaps[others].min()) ** 2 / variances[best]
    evidence = float(optimize.brentq(slope, highest * 1e-9, highest * (1 - 1e-9)))
    shares = shares_of(evidence)
    shares = np.maximum(shares / shares.sum(), least)
    return np.asarray(shares / shares.sum())


def tracked_shares(counts: Array, means: Array, variances: Array) -> Array:
    """Return the shares for the next units, which track the optimal ones, with a floor for arms
    with little data."""
    arms, total = len(counts), float(counts.sum())
    least = min(1 / arms, 1 / max(total, 1.0) ** FLOOR)
    target = optimal_shares(means, variances, least)
    # The units that each arm lacks to reach its target once a tenth more have arrived.
    coming = max(total * 0.1, 1.0)
    lacking = np.maximum(target * (total + coming) - counts, 0.0)
    shares = lacking / lacking.sum() if lacking.sum() > 0 else target
    shares = np.maximum(shares, least / 2)
    return np.asarray(shares / shares.sum())


def evidence(counts: Array, means: Array, variances: Array) -> float:
    """Return the generalised likelihood ratio of the best arm against its nearest rival; 0 if an
    arm has fewer than two units."""
    best = int(np.argmax(means))
    lowest = math.inf
    for arm in range(len(means)):
        if arm == best:
            continue
        if counts[arm] < 2 or counts[best] < 2:
            return 0.0
        variance = variances[best] / counts[best] + variances[arm] / counts[arm]
        gap = means[best] - means[arm]
        lowest = min(lowest, gap**2 / (2 * max(variance, 1e-12)))
    return lowest if math.isfinite(lowest) else 0.0


def is_decided(counts: Array, means: Array, variances: Array, alpha: float) -> bool:
    """Return whether the best arm is known with error `alpha`, at any moment."""
    total = float(counts.sum())
    threshold = math.log((len(means) - 1) * (math.log(max(total, 1.0)) + 1) / alpha)
    return evidence(counts, means, variances) > threshold
