"""Whether units arrive in the shares in which they were assigned. Where they do not, something
chooses them, and no difference between the arms means anything.

The chi-squared test is for one look. `sequential_p` may be looked at whenever somebody likes: it
takes the Bayes factor of a Dirichlet prior around the intended shares (Lindon and Malek,
"Anytime-valid inference for multinomial count data", NeurIPS 2022), and likelihood ratios against
the loss of a part of one arm's units. Strata with other shares multiply.
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
CONCENTRATIONS = ((CONCENTRATION, 0.1), (100.0, 0.1))
"""Priors, and their parts in the mean that decides: the second one sees a large deviation among few
units."""
LOSSES = ((0.03, 0.1), (0.06, 0.2), (0.1, 0.3), (0.2, 0.15), (0.4, 0.05))
"""Parts of one arm's units that may be lost on the way, which is how shares go wrong most often;
and their parts in the mean, divided among the arms."""

FEWEST_OF_BLOCK = 10
"""Outcomes below which a block of `response_p` says nothing."""


@dataclass(frozen=True)
class ShareStratum:
    """Units of each arm, while the arms had these shares."""

    counts: Sequence[int]
    shares: Sequence[float]

    def __post_init__(self) -> None:
        if len(self.counts) != len(self.shares) or not sum(self.shares) > 0:
            raise InputError(
                f"counts {list(self.counts)!r} at shares {list(self.shares)!r}",
                "each arm needs a count and a share, and one share must be above zero",
                "Give both for every arm",
            )


def chi_squared_p(stratum: ShareStratum) -> float:
    """Return the p value of Pearson's test, for one look; 1 without units.

    >>> round(chi_squared_p(ShareStratum([1000, 1100], [0.5, 0.5])), 9)
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


def log_evidence(stratum: ShareStratum, concentration: float = CONCENTRATION) -> float:
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


def log_evidence_of_loss(stratum: ShareStratum, arm: int, loss: float) -> float:
    """Log of the likelihood ratio that this part of one arm's units is lost, against none."""
    share = stratum.shares[arm] / sum(stratum.shares)
    if share >= 1:
        return 0.0
    lost = stratum.counts[arm] * math.log(1 - loss)
    return lost - sum(stratum.counts) * math.log(1 - loss * share)


def sequential_p(strata: Sequence[ShareStratum]) -> float:
    """Return the p value that may be read at any moment: below `alpha` with probability at most
    `alpha`, over all moments, if units arrive as intended.

    It is a mean of likelihood ratios, each of them a test martingale (Ville's inequality).
    """
    if not strata:
        return 1.0
    terms = []
    for concentration, part in CONCENTRATIONS:
        evidence = sum(log_evidence(stratum, concentration) for stratum in strata)
        if evidence == math.inf:
            return 0.0
        terms.append(evidence + math.log(part))
    arms = len(strata[0].counts)
    for loss, part in LOSSES:
        for arm in range(arms):
            evidence = sum(log_evidence_of_loss(stratum, arm, loss) for stratum in strata)
            terms.append(evidence + math.log(part / arms))
    return float(min(1.0, math.exp(-np.logaddexp.reduce(terms))))


def response_p(treated: NDArray[np.bool_], answered: NDArray[np.bool_], blocks: int = 8) -> float:
    """Return the p value, for one look, of the hypothesis that outcomes of both arms are in for the
    same people: over the units in the order of their exposures, the arms' response rates keep one
    ratio. The rates may differ; but if one arm's outcomes lag, it is measured on earlier people
    than the other."""
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
