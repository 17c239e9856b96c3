"""How much a comparison can see: items needed for a gain, and the smallest gain that a number of items shows.

Paired rates: with `discordance` the share of items on which the two differ, var(after - before) is discordance - gain^2, and discordance
under no gain (Miettinen, Biometrics 24, 1968; Connor, Biometrics 43, 1987). `design_effect` is 1 + (cluster size - 1) * correlation.
"""

from __future__ import annotations

import math

from scipy import optimize, stats

from thumbwheel.core.errors import InputError
from thumbwheel.stats.rates import check_level
from thumbwheel.stats.types import FEWEST


def items_needed(gain: float, discordance: float, *, level: float = 0.95, power: float = 0.8, design_effect: float = 1.0) -> int:
    """Paired items with which a true `gain` excludes zero with probability `power`; raises InputError for an impossible pair."""
    check_level(level)
    check_level(power)
    if not 0 < abs(gain) <= discordance <= 1:
        raise InputError(
            f"gain {gain!r} at discordance {discordance!r}", "the gain cannot be zero or beyond the share that differs", "Check both"
        )
    root = _root(abs(gain), discordance, level, power)
    return math.ceil(design_effect * (root / gain) ** 2)


def detectable_gain(n: int, discordance: float, *, level: float = 0.95, power: float = 0.8, design_effect: float = 1.0) -> float | None:
    """The smallest gain that `n` paired items show with probability `power`; None where even a gain on every change is not seen."""
    check_level(level)
    check_level(power)
    if n < 1 or not 0 < discordance <= 1:
        raise InputError(f"{n!r} items at discordance {discordance!r}", "both must be above zero", "Give the counts of the planned data")
    effective = math.sqrt(n / design_effect)

    def excess(gain: float) -> float:
        return gain * effective - _root(gain, discordance, level, power)

    if excess(discordance) < 0:
        return None
    return float(optimize.brentq(excess, 0.0, discordance))


def foreseen(groups: int, discordance: float) -> float | None:
    """What an evaluation on so many groups will show, as if each were one item; None where they are too few to decide on."""
    return detectable_gain(groups, discordance) if groups >= FEWEST else None


def _root(gain: float, discordance: float, level: float, power: float) -> float:
    null, alternative = math.sqrt(discordance), math.sqrt(max(discordance - gain**2, 0.0))
    return float(stats.norm.isf((1 - level) / 2)) * null + float(stats.norm.ppf(power)) * alternative
