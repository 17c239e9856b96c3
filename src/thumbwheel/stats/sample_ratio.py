"""Whether units arrive in the shares in which they were assigned. Where they do not, something
chooses them, and no difference between the arms means anything.

The chi-squared test is for one look. `SampleRatio` may be looked at whenever somebody likes:
Lindon and Malek, "Anytime-valid inference for multinomial count data" (NeurIPS 2022), the Bayes
factor of a Dirichlet prior around the intended shares. Strata with other shares multiply.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from thumbwheel.core.errors import InputError

CONCENTRATION = 10_000.0
"""Of the prior around the intended shares: it is quick to see deviations of about a percent."""
CONCENTRATIONS = (CONCENTRATION, 100.0)
"""Priors of which the mean decides: the second one sees a large deviation among few units."""


@dataclass(frozen=True)
class Stratum:
    """Units of each arm, while the arms had these shares."""

    counts: Sequence[int]
    shares: Sequence[float]

    def __post_init__(self) -> None:
        if len(self.counts) != len(self.shares) or not sum(self.shares) > 0:
            raise InputError(
                f"counts {list(self.counts)!r} at shares {list(self.shares)!r}",
                "each arm needs a count and a share, and one share has to be above zero",
                "Give both for every arm",
            )


def chi_squared_p(stratum: Stratum) -> float:
    """The p value of Pearson's test, for one look; 1 without units.

    >>> round(chi_squared_p(Stratum([1000, 1100], [0.5, 0.5])), 9)
    0.029096332
    """
    from scipy import stats

    total, weight = sum(stratum.counts), sum(stratum.shares)
    if not total:
        return 1.0
    statistic = 0.0
    for count, share in zip(stratum.counts, stratum.shares, strict=True):
        if share > 0:
            expected = share / weight * total
            statistic += (count - expected) ** 2 / expected
    return float(stats.chi2.sf(statistic, len(stratum.counts) - 1))


def log_evidence(stratum: Stratum, concentration: float = CONCENTRATION) -> float:
    """Log of the Bayes factor against the intended shares; infinite where units are in an arm
    without a share."""
    from scipy import special

    weight = sum(stratum.shares)
    total, evidence = 0, 0.0
    for count, share in zip(stratum.counts, stratum.shares, strict=True):
        if share <= 0:
            if count:
                return math.inf
            continue
        prior = concentration * share / weight
        evidence += float(special.gammaln(prior + count) - special.gammaln(prior))
        evidence -= count * math.log(share / weight)
        total += count
    normaliser = special.gammaln(concentration + total) - special.gammaln(concentration)
    return evidence - float(normaliser)


def sequential_p(strata: Sequence[Stratum]) -> float:
    """The p value that may be read at any moment: below `alpha` with probability `alpha` at most,
    over all moments, where units arrive as intended."""
    factors = []
    for concentration in CONCENTRATIONS:
        evidence = sum(log_evidence(stratum, concentration) for stratum in strata)
        if evidence > 700:
            return 0.0
        factors.append(math.exp(evidence))
    return min(1.0, len(factors) / math.fsum(factors))
