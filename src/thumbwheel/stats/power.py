"""How much a comparison can see: the smallest gain that a number of items shows.

Paired rates: with `discordance` the share of items on which the two differ, var(after - before) is
discordance - gain^2, and discordance under no gain (Miettinen, Biometrics 24, 1968; Connor,
Biometrics 43, 1987). Areas under the ROC curve: Hanley and McNeil, Radiology 143 (1982), and for
two on the same items Radiology 148 (1983).
"""

from __future__ import annotations

import math

from scipy import optimize, stats

from thumbwheel.core.errors import InputError
from thumbwheel.stats.types import FEWEST

QUANTILES = float(stats.norm.isf(0.025)), float(stats.norm.ppf(0.8))
"""Of an interval of 95 %, and of what is seen four times out of five."""
AREA, CORRELATION = 0.7, 1 / 3
"""What is assumed of labels before anything is measured: how well the base tells good answers from
bad ones, and how much its errors are those of the tuned model (0.33 to 0.40 with kto and sft on the
demo world)."""


def detectable_gain(n: int, discordance: float) -> float | None:
    """The smallest gain that `n` paired items show; None where even a gain on every change is not
    seen."""
    if n < 1 or not 0 < discordance <= 1:
        raise InputError(
            f"{n!r} items at discordance {discordance!r}",
            "both must be above zero",
            "Give the counts of the planned data",
        )

    def excess(gain: float) -> float:
        return gain * math.sqrt(n) - _root(gain, discordance)

    if excess(discordance) < 0:
        return None
    return float(optimize.brentq(excess, 0.0, discordance))


def detectable_area(good: int, bad: int) -> float | None:
    """The smallest gain above `AREA` that so many good and bad answers, scored by both models,
    show; None where even a perfect order is not seen."""
    above, below = AREA / (2 - AREA), 2 * AREA**2 / (1 + AREA)
    variance = (
        AREA * (1 - AREA) + (good - 1) * (above - AREA**2) + (bad - 1) * (below - AREA**2)
    ) / (good * bad)
    gain = sum(QUANTILES) * math.sqrt(2 * (1 - CORRELATION) * variance)
    return gain if AREA + gain <= 1 else None


def foreseen(groups: int, discordance: float, good: float | None = None) -> float | None:
    """What an evaluation on so many groups will show, as if each were one item; None where they are
    too few to decide on.

    `good`: the share of labels that are; then it is a gain of the area under the ROC curve, and the
    rarer kind has to be enough.
    """
    if good is None:
        return detectable_gain(groups, discordance) if groups >= FEWEST else None
    kinds = round(good * groups), round((1 - good) * groups)
    return detectable_area(*kinds) if min(kinds) >= FEWEST else None


def _root(gain: float, discordance: float) -> float:
    null, alternative = math.sqrt(discordance), math.sqrt(max(discordance - gain**2, 0.0))
    return QUANTILES[0] * null + QUANTILES[1] * alternative
