"""Second opinions on the gain of success: other methods on the same answers, shown beside the
interval that decides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from thumbwheel.evaluation.compare import Pair
from thumbwheel.stats.matched import mcnemar, newcombe
from thumbwheel.stats.paired import bootstrap

RESAMPLED = 10
"""Groups below which a bootstrap says next to nothing of what was not met."""


def opinions(pairs: Sequence[Pair], level: float) -> dict[str, Any]:
    """The paired bootstrap over groups, where there are enough of them; where every case stands
    alone and is right or wrong, the exact test and Newcombe's interval too."""
    change = np.array([one.after - one.before for one in pairs])
    groups = [one.case.group for one in pairs]
    found: dict[str, Any] = {}
    if len(set(groups)) >= RESAMPLED:
        resampled = bootstrap(
            lambda at: float(change[at].mean()), len(pairs), groups, level=level, corrected=True
        )
        found["bootstrap"] = [resampled.low, resampled.high]
    if len(set(groups)) == len(groups) and {
        value for one in pairs for value in (one.before, one.after)
    } <= {0.0, 1.0}:
        both = sum(one.before == one.after == 1.0 for one in pairs)
        better, worse = int((change > 0).sum()), int((change < 0).sum())
        interval = newcombe(both, better, worse, len(pairs) - both - better - worse, level)
        found |= {
            "better": better,
            "worse": worse,
            "mcnemar_p": mcnemar(better, worse),
            "newcombe": [interval.low, interval.high],
        }
    return found


def described(details: Iterable[Mapping[str, Any]]) -> str:
    """Those that stand in the details of suites, in words; empty where none do.

    >>> described([{}, {"second_opinions": {"bootstrap": [0.1, 0.3]}}])
    'paired bootstrap +10.0% to +30.0%'
    """
    found: Mapping[str, Any] = next(
        (one["second_opinions"] for one in details if "second_opinions" in one), {}
    )
    words = (
        ["paired bootstrap {:+.1%} to {:+.1%}".format(*found["bootstrap"])]
        if "bootstrap" in found
        else []
    )
    if "newcombe" in found:
        words.append("Newcombe's interval {:+.1%} to {:+.1%}".format(*found["newcombe"]))
        words.append(
            "exact McNemar p = {mcnemar_p:.2g} ({better} better, {worse} worse)".format(**found)
        )
    return "; ".join(words)
