"""How likely each judgement is right, estimated from the base's own probabilities.

A base is right more often where it is sure. So raters who call its surest answers bad and its
wildest guesses good, more often than other raters do, press the wrong thumb more often. This needs
no answer that two people judged. The model is that of Raykar et al. 2010 ("Learning From Crowds",
JMLR 11), with one error rate for each rater:

    P(answer is right)  =  sigmoid(slope * confidence + offset)
    P(rater is wrong)   =  the rater's error rate, below one half

Slope, offset and rates are fitted together to the judgements (maximum a posteriori). Where the
base's confidence says nothing about what people like, the slope is near zero, the rates stay at
their common prior, and all judgements weigh nearly alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from scipy import sparse

FEWEST = 50
"""Judgements from which on rates are estimated."""
PRIOR_RATE, PRIOR_VOTES = 0.1, 10.0
"""What is assumed of a rater beforehand, and the number of their judgements that weigh as much."""
SLOPE_SPREAD = 2.0
"""Standard deviation of the slope's prior, for confidences of mean 0 and deviation 1."""
SURE = 1e-6
"""Confidences are taken from probabilities between this and 1 minus this."""


@dataclass(frozen=True)
class RatedAnswer:
    """`logp` is the base's log-probability of the whole answer, in nats; `raters` called it good,
    or bad."""

    logp: float
    good: bool
    raters: tuple[str, ...]


@dataclass(frozen=True)
class RaterNoise:
    """The fitted model; `centre` and `spread` are those of the confidences it was fitted to."""

    slope: float
    offset: float
    centre: float
    spread: float
    error_rates: Mapping[str, float]

    def trust(self, judgement: RatedAnswer) -> float:
        """Return the probability that the judgement is right. Raters who agree are treated as
        independent."""
        confidence = (log_odds(judgement.logp) - self.centre) / self.spread
        right = self.slope * confidence + self.offset
        evidence = 0.0
        for rater in judgement.raters:
            rate = self.error_rates.get(rater, PRIOR_RATE)
            evidence += math.log((1 - rate) / rate)
        return sigmoid(evidence + right if judgement.good else evidence - right)


def estimate(judgements: Sequence[RatedAnswer]) -> RaterNoise | None:
    """Fit the model to these judgements; return None if they are too few, or all good or all
    bad."""
    import numpy as np
    from scipy.optimize import minimize

    if len(judgements) < FEWEST or len({judgement.good for judgement in judgements}) < 2:
        return None
    log_odds_of_answers = np.array([log_odds(judgement.logp) for judgement in judgements])
    centre, spread = float(log_odds_of_answers.mean()), float(log_odds_of_answers.std()) or 1.0
    confidence = (log_odds_of_answers - centre) / spread
    raters = sorted(set().union(*(judgement.raters for judgement in judgements)))
    votes = _votes(judgements, raters)
    good = np.array([judgement.good for judgement in judgements])
    prior = _logit_of_rate(PRIOR_RATE)
    start = np.array([0.5, 0.0, *[prior] * len(raters)])
    fit = minimize(_loss, start, args=(confidence, votes, good), method="L-BFGS-B", jac=True)
    rates = _rates(fit.x[2:])
    return RaterNoise(
        float(fit.x[0]),
        float(fit.x[1]),
        centre,
        spread,
        dict(zip(raters, map(float, rates), strict=True)),
    )


def log_odds(logp: float) -> float:
    """Return the log-odds of the probability exp(`logp`), which is kept below 1."""
    return logp - math.log1p(-min(math.exp(logp), 1 - SURE))


def sigmoid(value: float) -> float:
    """Return 1 / (1 + exp(-value)), without overflow."""
    return 0.5 * (1 + math.tanh(value / 2))


def _votes(judgements: Sequence[RatedAnswer], raters: Sequence[str]) -> sparse.csr_array:
    """Return [judgements, raters] of 0 and 1: who judged what."""
    import numpy as np
    from scipy import sparse

    column = {rater: number for number, rater in enumerate(raters)}
    rows: list[int] = []
    columns: list[int] = []
    for row, judgement in enumerate(judgements):
        for rater in judgement.raters:
            rows.append(row)
            columns.append(column[rater])
    return sparse.csr_array(
        (np.ones(len(rows)), (rows, columns)), shape=(len(judgements), len(raters))
    )


def _rates(logits: np.ndarray) -> np.ndarray:
    """Return error rates between 0 and one half."""
    from scipy.special import expit

    rates: np.ndarray = 0.5 * expit(logits)
    return rates


def _logit_of_rate(rate: float) -> float:
    """Invert `_rates` for one rate."""
    return math.log(2 * rate / (1 - 2 * rate))


def _loss(
    parameters: np.ndarray, confidence: np.ndarray, votes: sparse.csr_array, good: np.ndarray
) -> tuple[float, np.ndarray]:
    """Return (negative log-posterior of slope, offset and one logit per rater, its gradient)."""
    import numpy as np
    from scipy.special import expit

    slope = parameters[0]
    rates = _rates(parameters[2:])
    right = slope * confidence + parameters[1]
    log_right, log_wrong = -np.logaddexp(0, -right), -np.logaddexp(0, right)
    log_true, log_false = votes @ np.log(1 - rates), votes @ np.log(rates)
    judged_truly = np.where(good, log_right, log_wrong) + log_true
    judged_falsely = np.where(good, log_wrong, log_right) + log_false
    likelihood = np.logaddexp(judged_truly, judged_falsely)
    prior = PRIOR_VOTES * np.sum(PRIOR_RATE * np.log(rates) + (1 - PRIOR_RATE) * np.log(1 - rates))
    loss = -likelihood.sum() - prior + 0.5 * (slope / SLOPE_SPREAD) ** 2

    truly = np.exp(
        judged_truly - likelihood
    )  # probability that the judgement is right, given all parameters
    surprise = np.where(good, truly, 1 - truly) - expit(right)
    false_votes = votes.T @ (1 - truly) + PRIOR_VOTES * PRIOR_RATE
    true_votes = votes.T @ truly + PRIOR_VOTES * (1 - PRIOR_RATE)
    of_rates = (false_votes / rates - true_votes / (1 - rates)) * rates * (1 - 2 * rates)
    gradient = [-(surprise * confidence).sum() + slope / SLOPE_SPREAD**2, -surprise.sum()]
    return float(loss), np.concatenate([gradient, -of_rates])
