"""Prints as JSON what a statistics library of others makes of the same inputs as ours. It runs in
an environment of that library and imports nothing else.

    python statistics_vectors.py gbstats           # gbstats 0.8.0
    python statistics_vectors.py gbstats ASOS.csv  # the same, of every snapshot of a file
    python statistics_vectors.py ssrm              # ssrm-test 0.1.5: numpy below 2
"""

import csv
import json
import sys

import numpy as np

ALPHAS = (0.05, 0.025, 0.2)


def gbstats_vectors():
    from gbstats.utils import check_srm

    random = np.random.RandomState(11)
    rows = []
    for n_control, n_treatment in ((100, 110), (500, 480), (3000, 3000), (20000, 1000)):
        control = random.random_sample(n_control)
        treatment = random.random_sample(n_treatment) ** 0.9
        arms = moments(control), moments(treatment)
        for alpha in ALPHAS:
            rows += [sequential(*arms, alpha, tuned_for) for tuned_for in (500, 5000)]
    ratios = []
    for counts, weights in (([1000, 1100], [1, 1]), ([90, 10, 20], [0.8, 0.1, 0.1])):
        ratios.append(
            {"counts": counts, "weights": weights, "p": float(check_srm(counts, weights))}
        )
    return {"sequential": rows, "sample_ratio": ratios, "cuped": cuped()}


def moments(values):
    return {"n": len(values), "mean": float(values.mean()), "variance": float(values.var(ddof=1))}


def statistic(sample):
    from gbstats.models.statistics import SampleMeanStatistic

    n, mean = sample["n"], sample["mean"]
    squares = sample["variance"] * (n - 1) + n * mean * mean
    return SampleMeanStatistic(n=n, sum=n * mean, sum_squares=squares)


def sequential(control, treatment, alpha, tuned_for):
    from gbstats.frequentist.tests import SequentialConfig, SequentialTwoSidedTTest

    config = SequentialConfig(
        alpha=alpha, sequential_tuning_parameter=tuned_for, difference_type="absolute"
    )
    test = SequentialTwoSidedTTest(statistic(control), statistic(treatment), config)
    low, high = test.confidence_interval
    return {
        "control": control,
        "treatment": treatment,
        "alpha": alpha,
        "tuned_for": tuned_for,
        "low": float(low),
        "high": float(high),
        "p": float(test.p_value),
    }


def cuped():
    from gbstats.models.statistics import (
        RegressionAdjustedStatistic,
        SampleMeanStatistic,
        compute_theta,
    )

    random = np.random.RandomState(5)
    sides = []
    for n in (300, 280):
        earlier = random.random_sample(n)
        outcomes = 0.7 * earlier + 0.3 * random.random_sample(n)
        parts = [
            SampleMeanStatistic(n=n, sum=float(x.sum()), sum_squares=float((x**2).sum()))
            for x in (outcomes, earlier)
        ]
        products = float((outcomes * earlier).sum())
        sides.append(RegressionAdjustedStatistic(n, parts[0], parts[1], products, 0.0))
    theta = compute_theta(*sides)
    for side in sides:
        side.theta = theta
    variances = [float(side.variance) for side in sides]
    difference = float(sides[1].mean - sides[0].mean)
    return {"theta": float(theta), "variances": variances, "difference": difference}


def asos(path):
    """The interval of every snapshot of the file, at alpha 0.05."""
    intervals = []
    with open(path, newline="") as stream:
        for row in csv.DictReader(stream):
            sides = [
                {
                    "n": int(float(row["count_" + side])),
                    "mean": float(row["mean_" + side]),
                    "variance": float(row["variance_" + side]),
                }
                for side in ("c", "t")
                if row["variance_" + side]
            ]
            if len(sides) == 2 and min(side["n"] for side in sides) > 1:
                intervals.append(sequential(sides[0], sides[1], 0.05, 5000))
    return intervals


def ssrm_vectors():
    from ssrm_test.ssrm_test import sequential_bayes_factors

    random = np.random.RandomState(1)
    cases = []
    for shares, truth in (([0.5, 0.5], [0.5, 0.5]), ([0.5, 0.5], [0.53, 0.47])):
        counts = random.multinomial(3000, truth)
        factor = sequential_bayes_factors(np.array([counts]), np.array(shares))[-1]
        cases.append({"counts": counts.tolist(), "shares": shares, "factor": float(factor)})
    return {"sequential_sample_ratio": cases}


if __name__ == "__main__":
    if len(sys.argv) > 2:
        result = asos(sys.argv[2])
    else:
        names = {"gbstats": gbstats_vectors, "ssrm": ssrm_vectors}
        result = names[sys.argv[1]]()
    print(json.dumps(result))
