"""Several tests on the same data: p values corrected together, and an error budget for repeated
looks.

Holm, Scandinavian Journal of Statistics 6 (1979). The budget: the k-th look may err with
probability alpha / (k (k + 1)), so all looks together, however many there will be, err with less
than alpha. This union bound holds for dependent looks and needs no planned number of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from thumbwheel.core.errors import InputError


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p values by Holm's step-down method, and return them in the given order; all that are
    below alpha may be called different at alpha.

    >>> [round(p_value, 6) for p_value in holm([0.01, 0.04, 0.03, 0.005])]
    [0.03, 0.06, 0.06, 0.02]
    """
    if not all(0 <= p_value <= 1 for p_value in p_values):
        raise InputError(
            f"p values {list(p_values)[:5]!r}",
            "a probability must be between 0 and 1",
            "Compute them again",
        )
    count = len(p_values)
    adjusted = [0.0] * count
    largest = 0.0
    ascending = sorted(range(count), key=lambda index: p_values[index])
    for rank, index in enumerate(ascending):
        largest = max(largest, min(1.0, (count - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def look_level(alpha: float, look: int) -> float:
    """Return the two-sided confidence level of the `look`-th interval, if only its lower end
    decides.

    The first look has the usual 1 - alpha: its lower end errs with alpha / 2, the error that the
    first look may spend.

    >>> [look_level(0.05, look) for look in (1, 2, 20)]
    [0.95, 0.983333333333, 0.999761904762]
    """
    if not (0 < alpha < 1 and look >= 1):
        raise InputError(
            f"look {look!r} at alpha {alpha!r}",
            "looks are counted from 1, and alpha must be between 0 and 1",
            "Use alpha 0.05",
        )
    return round(1 - 2 * alpha / (look * (look + 1)), 12)
