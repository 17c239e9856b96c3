"""Less variance by what was known of the units before: CUPED.

Deng, Xu, Kohavi and Walker, "Improving the sensitivity of online controlled experiments by
utilizing pre-experiment data" (WSDM 2013). The covariate is from before the first exposure, so the
arms cannot have changed it, and the adjusted difference has the same expectation.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def slope(outcomes: Array, earlier: Array) -> float:
    """Return the slope of the outcome over its covariate, over the units of all arms together; 0 if
    either does not vary."""
    if len(outcomes) < 2 or not outcomes.var() or not earlier.var():
        return 0.0
    covariance = np.cov(outcomes, earlier, ddof=1)
    return float(covariance[0, 1] / covariance[1, 1])


def adjusted(outcomes: Array, earlier: Array, has_earlier: NDArray[np.bool_]) -> Array:
    """Return the outcomes minus the part that their covariate predicts; their mean over all units
    stays.

    Units without earlier data (`has_earlier` false) are not adjusted; that costs nothing but
    variance.
    """
    adjusted_outcomes = outcomes.copy()
    if has_earlier.sum() > 1:
        centred = earlier[has_earlier] - earlier[has_earlier].mean()
        adjusted_outcomes[has_earlier] -= (
            slope(outcomes[has_earlier], earlier[has_earlier]) * centred
        )
    return adjusted_outcomes
