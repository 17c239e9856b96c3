"""Secondary tests of the gain of success: other methods on the same answers, shown beside the
interval that decides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from thumbwheel.evaluation.compare import Pair
from thumbwheel.stats.matched import mcnemar, newcombe
from thumbwheel.stats.paired import bootstrap

FEWEST_GROUPS = 10
"""With fewer groups, a bootstrap knows next to nothing of groups that were not sampled."""


def secondary_tests(pairs: Sequence[Pair], level: float) -> dict[str, Any]:
    """Run the paired bootstrap over groups, if there are enough of them. If every case is a group
    and is right or wrong, also run the exact McNemar test and compute Newcombe's interval."""
    change = np.array([pair.after - pair.before for pair in pairs])
    groups = [pair.case.group for pair in pairs]
    values = {pair.before for pair in pairs} | {pair.after for pair in pairs}
    tests: dict[str, Any] = {}
    if len(set(groups)) >= FEWEST_GROUPS:
        mean_change = lambda indices: float(change[indices].mean())  # noqa: E731
        interval = bootstrap(mean_change, len(pairs), groups, level=level, corrected=True)
        tests["bootstrap"] = [interval.low, interval.high]
    if len(set(groups)) == len(groups) and values <= {0.0, 1.0}:
        both_right = sum(pair.before == pair.after == 1.0 for pair in pairs)
        better, worse = int((change > 0).sum()), int((change < 0).sum())
        both_wrong = len(pairs) - both_right - better - worse
        interval = newcombe(both_right, better, worse, both_wrong, level)
        tests["better"] = better
        tests["worse"] = worse
        tests["mcnemar_p"] = mcnemar(better, worse)
        tests["newcombe"] = [interval.low, interval.high]
    return tests


def tests_in_words(details: Iterable[Mapping[str, Any]]) -> str:
    """Describe the secondary tests in the details of suites; empty if there are none.

    >>> tests_in_words([{}, {"second_opinions": {"bootstrap": [0.1, 0.3]}}])
    'paired bootstrap +10.0% to +30.0%'
    """
    tests: Mapping[str, Any] = {}
    for suite_details in details:
        if "second_opinions" in suite_details:
            tests = suite_details["second_opinions"]
            break
    words = []
    if "bootstrap" in tests:
        words.append("paired bootstrap {:+.1%} to {:+.1%}".format(*tests["bootstrap"]))
    if "newcombe" in tests:
        words.append("Newcombe's interval {:+.1%} to {:+.1%}".format(*tests["newcombe"]))
        words.append(
            "exact McNemar p = {mcnemar_p:.2g} ({better} better, {worse} worse)".format(**tests)
        )
    return "; ".join(words)
