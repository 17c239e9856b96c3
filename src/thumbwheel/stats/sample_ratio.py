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

import numpy as np
from numpy.typing import NDArray

from thumbwheel.core.errors import InputError

CONCENTRATION = 10_000.0
"""Of the prior around the intended shares: it is quick to see deviations of about a percent."""
CONCENTRATIONS = (CONCENTRATION, 100.0)
"""Priors of which the mean decides: the second one sees a large deviation among few units."""

RESTART = 16
"""Units after which another ratio of `arrival_p` begins."""
FEWEST_OF_BLOCK = 10
"""Outcomes below which a block of `response_p` says nothing."""


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


def arrival_p(treated: NDArray[np.bool_], share: float) -> float:
    """The p value, over all moments, that each unit in turn got the treatment with probability
    `share`, whatever came before: small where the units of one arm came before those of the other.

    A mixture of likelihood ratios, each against any constant share (a uniform prior) from some unit
    on; a mixture is a test martingale as each of them is (Ville's inequality).
    """
    from scipy import special

    n = len(treated)
    if not n or not 0 < share < 1:
        return 1.0
    treatments = np.concatenate([[0], np.cumsum(treated)])
    units = np.arange(n + 1)
    capital = np.zeros(n + 1)
    spent = 0.0
    for number, start in enumerate(range(0, n, RESTART)):
        part = 1 / ((number + 1) * (number + 2))
        spent += part
        ones = treatments[start:] - treatments[start]
        zeros = units[: n - start + 1] - ones
        evidence = special.betaln(1 + ones, 1 + zeros)
        evidence -= ones * math.log(share) + zeros * math.log(1 - share)
        capital[:start] += part
        capital[start:] += part * np.exp(np.minimum(evidence, 700))
    return float(min(1.0, 1 / (capital + 1 - spent).max()))


def response_p(treated: NDArray[np.bool_], answered: NDArray[np.bool_], blocks: int = 8) -> float:
    """The p value, for one look, that outcomes of the arms are in for the same people: of the units
    in the order of their exposures, the arms' rates of answering stay in one proportion. They may
    differ; but where one arm's outcomes lag, it is measured on earlier people than the other.
    """
    from scipy import stats

    rates = [answered[arm].mean() if arm.any() else 0.0 for arm in (treated, ~treated)]
    if min(rates) == 0:
        return 1.0
    statistic, n_blocks = 0.0, 0
    for part in np.array_split(np.arange(len(treated)), blocks):
        expected = treated[part].sum() * rates[0], (~treated[part]).sum() * rates[1]
        total = answered[part].sum()
        if min(expected) == 0 or total < FEWEST_OF_BLOCK:
            continue
        share = expected[0] / sum(expected)
        observed = (treated[part] & answered[part]).sum()
        statistic += (observed - total * share) ** 2 / (total * share * (1 - share))
        n_blocks += 1
    return float(stats.chi2.sf(statistic, n_blocks - 1)) if n_blocks > 1 else 1.0
