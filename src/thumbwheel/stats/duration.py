"""How many units a sequential test will need, said before it starts."""

from __future__ import annotations

import math

from thumbwheel.core.errors import InputError
from thumbwheel.stats.sequential import boundary
from thumbwheel.stats.types import TUNED_FOR

MOST = 100_000_000


def expected_units(
    effect: float,
    variances: tuple[float, float],
    alpha: float,
    *,
    power: float = 0.8,
    share: float = 0.5,
    tuned_for: float = TUNED_FOR,
) -> int | None:
    """Return the number of units of both arms with outcomes after which an effect of this size has
    been seen with probability `power`; None if even 100 million are too few.

    `variances`: of an outcome under control and treatment; `share`: the treatment's share of the
    units. The test looks all the time, so this errs on the side of more. Raises InputError for an
    effect or share out of range.
    """
    from scipy import special

    if not effect > 0 or not 0 < share < 1:
        raise InputError(
            f"effect {effect!r} at share {share!r}",
            "the effect has to be above zero, the share between 0 and 1",
            "Give the smallest gain that would be worth a switch, for example 0.05",
        )
    spread = variances[0] / (1 - share) + variances[1] / share
    quantile = -float(special.ndtri(1 - power))

    def is_seen(n: int) -> bool:
        return effect >= math.sqrt(spread / n) * (boundary(n, alpha, tuned_for) + quantile)

    if not is_seen(MOST):
        return None
    low, high = 1, MOST
    while high - low > 1:
        middle = (low + high) // 2
        if is_seen(middle):
            high = middle
        else:
            low = middle
    return high


def detectable_effect(
    n: int,
    variances: tuple[float, float],
    alpha: float,
    *,
    power: float = 0.8,
    share: float = 0.5,
    tuned_for: float = TUNED_FOR,
) -> float:
    """Return the smallest effect that `n` units with outcomes show with probability `power`."""
    from scipy import special

    if n < 1:
        return math.inf
    spread = variances[0] / (1 - share) + variances[1] / share
    quantile = -float(special.ndtri(1 - power))
    return math.sqrt(spread / n) * (boundary(n, alpha, tuned_for) + quantile)
