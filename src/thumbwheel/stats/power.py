"""Power of a comparison: the smallest gain that a number of items can detect.

Paired rates: with `discordance` the share of items on which the two differ, var(after - before) is
discordance - gain^2, and discordance under no gain (Miettinen, Biometrics 24, 1968; Connor,
Biometrics 43, 1987). Areas under the ROC curve: Hanley and McNeil, Radiology 143 (1982), and for
two on the same items Radiology 148 (1983).
"""

from __future__ import annotations

import math
from statistics import NormalDist

from thumbwheel.core.errors import InputError
from thumbwheel.stats.types import FEWEST

QUANTILES = NormalDist().inv_cdf(0.975), NormalDist().inv_cdf(0.8)
"""Normal quantiles of a 95 % interval, and of a power of 80 %."""
AREA, CORRELATION = 0.7, 1 / 3
"""Assumptions before anything is measured: the base model's area under the ROC curve, and the
correlation of its errors with those of the tuned model (0.33 to 0.40 with kto and sft on the demo
world)."""


def detectable_gain(n: int, discordance: float, level: float = 0.95) -> float | None:
    """Return the smallest gain that `n` paired items detect by an interval at `level`; None if even
    a gain on every changed item is not detected. Raises InputError unless `n` and `discordance` are
    above zero."""
    from scipy import optimize

    if n < 1 or not 0 < discordance <= 1:
        raise InputError(
            f"{n!r} items at discordance {discordance!r}",
            "both must be above zero",
            "Give the counts of the planned data",
        )

    quantile = NormalDist().inv_cdf((1 + level) / 2)

    def excess(gain: float) -> float:
        return gain * math.sqrt(n) - _root(gain, discordance, quantile)

    if excess(discordance) < 0:
        return None
    return float(optimize.brentq(excess, 0.0, discordance))


def detectable_area(good: int, bad: int) -> float | None:
    """Return the smallest gain above `AREA` that so many good and bad answers, scored by both
    models, detect; None if even a perfect order is not detected."""
    # Hanley and McNeil: two good answers above one bad one, and one good answer above two bad ones
    two_good, two_bad = AREA / (2 - AREA), 2 * AREA**2 / (1 + AREA)
    square = AREA**2
    total = AREA * (1 - AREA) + (good - 1) * (two_good - square) + (bad - 1) * (two_bad - square)
    variance = total / (good * bad)
    gain = sum(QUANTILES) * math.sqrt(2 * (1 - CORRELATION) * variance)
    return gain if AREA + gain <= 1 else None


def expected_detectable(groups: int, discordance: float, good: float | None = None) -> float | None:
    """Return the smallest gain that an evaluation on so many groups will detect, as if each were
    one item; None if they are too few to decide on.

    `good`: the share of good labels. With it the gain is one of the area under the ROC curve, and
    the rarer label needs enough groups.
    """
    if good is None:
        return detectable_gain(groups, discordance) if groups >= FEWEST else None
    good_groups, bad_groups = round(good * groups), round((1 - good) * groups)
    if min(good_groups, bad_groups) < FEWEST:
        return None
    return detectable_area(good_groups, bad_groups)


def _root(gain: float, discordance: float, quantile: float) -> float:
    null, alternative = math.sqrt(discordance), math.sqrt(max(discordance - gain**2, 0.0))
    return quantile * null + QUANTILES[1] * alternative
