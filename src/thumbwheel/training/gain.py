"""Whether a run learned anything: the evaluation of what it keeps beside that of the base.

The dev rows are few and their figures noisy. So the comparison is paired by row, its interval
respects rows that belong together, and what a small split cannot tell counts for the run. The
evaluation after it decides what a candidate is worth; this only keeps what gained nothing from
becoming one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from typing import Any

from thumbwheel.stats.paired import compare

LEVEL = 0.95
"""Of the interval around the difference."""
FEWEST = 8
"""Groups of dev rows from which on an interval can tell that a run made things worse: when all of
so many fell, it is no chance (sign test)."""
TELLING = 20
"""Groups of dev rows from which on the lack of any gain counts. A policy that truly ranks 70 % of
pairs right shows no gain on 20 of them in less than 2 of 100 cases, and one of ten evaluations is
enough."""
SHARES = frozenset({"accuracy", "rewards/accuracies"})
"""Metrics that count answers. They often stay as they were though the model has changed for the
better, so the dev loss speaks for it too."""

Rows = Sequence[float | None]
"""A value for each dev row, whose mean is the metric; None where a row has none."""


@dataclass(frozen=True)
class Gain:
    """A later evaluation against an earlier one, which is mostly that of the base.

    `nothing` is the reason why there is nothing to keep, `unsure` what the dev rows leave open.
    Both are None where a gain was seen beyond noise.
    """

    metric: str
    base: float
    best: float
    groups: int
    low: float
    high: float
    nothing: str | None = None
    unsure: str | None = None

    @property
    def is_worse(self) -> bool:
        """Whether the change is for the worse beyond noise."""
        return self.groups >= FEWEST and self.high < 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def gain_of(
    metric: str,
    rising: bool,
    base: Mapping[str, Rows],
    best: Mapping[str, Rows],
    groups: Sequence[str],
    over: str = "the base",
) -> Gain | None:
    """Return how `metric` of the dev rows, which belong to `groups`, changed from `base` to `best`.

    More of it is better if `rising`; `low` and `high` are the ends of the interval of the change
    for the better. None where no row has a value in both evaluations.
    """
    # The rows that have a finite value on both sides, turned so that more is better.
    sign = 1.0 if rising else -1.0
    before: list[float] = []
    after: list[float] = []
    paired_groups: list[str] = []
    rows = zip(_values(metric, base), _values(metric, best), groups, strict=True)
    for base_value, best_value, group in rows:
        if base_value is None or best_value is None:
            continue
        if isfinite(base_value) and isfinite(best_value):
            before.append(sign * base_value)
            after.append(sign * best_value)
            paired_groups.append(group)
    if not before:
        return None
    span = 1.0 if metric in SHARES else None
    change = compare(before, after, paired_groups, level=LEVEL, span=span)
    gain = Gain(
        metric, sign * change.before, sign * change.after, change.clusters, change.low, change.high
    )

    # What that means.
    interval = f"gained {change.gain:.3g}, 95 % interval {change.low:.3g} to {change.high:.3g}"
    figures = (
        f"dev {metric} {gain.best:.3g}, {gain.base:.3g} under {over} ({interval}, "
        f"{change.clusters} groups of dev rows)"
    )
    helped = change.gain > 0 or (metric in SHARES and _loss_fell(base, best))
    if gain.is_worse or (change.clusters >= TELLING and not helped):
        nothing = f"nothing learned: the result is no better than {over}: {figures}"
        return replace(gain, nothing=nothing)
    if change.low > 0:
        return gain
    unsure = f"the gain on the dev rows is within noise: {figures}"
    if change.clusters < TELLING:
        unsure = f"too few dev rows to tell whether it learned anything: {figures}"
    return replace(gain, unsure=unsure)


def _values(metric: str, rows: Mapping[str, Rows]) -> Rows:
    """Return the values of `metric` by row; in `rewards/accuracies` equal rewards count as half
    right, because under the base all are equal, which is chance and not an error."""
    values, margins = rows.get(metric, ()), rows.get("rewards/margins")
    if metric != "rewards/accuracies" or margins is None:
        return values
    return [0.5 if margin == 0 else value for value, margin in zip(values, margins, strict=True)]


def _loss_fell(base: Mapping[str, Rows], best: Mapping[str, Rows]) -> bool:
    before = [value for value in base.get("loss", ()) if value is not None]
    after = [value for value in best.get("loss", ()) if value is not None]
    return sum(after) < sum(before)
