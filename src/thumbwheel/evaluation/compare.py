"""From two sides' answers and log-probabilities to measures, guards, slices and examples; numbers
in, numbers out."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from math import ceil, isfinite
from statistics import mean, median
from typing import NamedTuple

import numpy as np

from thumbwheel.evaluation.types import (
    AREA,
    AREA_PER_TOKEN,
    EOS,
    FORMAT,
    LENGTH,
    NLL,
    NLL_LIKED,
    RANKING,
    RANKING_PER_TOKEN,
    Answer,
    Case,
    Changed,
    Given,
    Guard,
    Judged,
    Measure,
    Message,
    Serving,
    Spread,
)
from thumbwheel.stats.multiple import holm
from thumbwheel.stats.paired import compare, jackknife
from thumbwheel.stats.paired import mean as paired_mean
from thumbwheel.stats.rates import ranking_area

EXCERPT = 2000
"""Characters of a prompt or an answer that are kept with an example."""
POWER = 0.8
LARGEST = sys.float_info.max
"""Stands for no end of an interval, in JSON."""
OPINION = "mean score by "
"""Begins the names of measures that are what a reward model says."""


class Pair(NamedTuple):
    """A case that was judged on both sides."""

    case: Case
    before: float
    after: float


class Logged(NamedTuple):
    """The summed log-probability of a recorded answer on both sides, and its tokens."""

    row: Given
    before: float
    after: float
    tokens: int


def measure(
    name: str,
    before: Sequence[float],
    after: Sequence[float],
    groups: Sequence[Hashable],
    level: float,
    span: float | None = 1.0,
) -> Measure:
    """Mean of values on both sides, with the clustered interval of the gain; `span` of the values,
    None where there is no limit."""
    found = compare(before, after, groups, level=level, span=span)
    return Measure(
        spread=Spread.of(found.estimate),
        p=found.estimate.p_value,
        name=name,
        before=found.before,
        after=found.after,
        gain=found.gain,
        low=max(found.low, -LARGEST),
        high=min(found.high, LARGEST),
        level=level,
        n=found.n,
        clusters=found.clusters,
        changed=found.changed,
    )


def adjusted(measures: Sequence[Measure]) -> tuple[Measure, ...]:
    """The same with Holm's correction over all of them that have a p value (Holm, Scand. J.
    Statist. 6, 1979)."""
    known = [one.p for one in measures if one.p is not None]
    corrected = iter(holm(known))
    return tuple(
        one if one.p is None else one.model_copy(update={"adjusted": next(corrected)})
        for one in measures
    )


def success(name: str, pairs: Sequence[Pair], level: float) -> Measure:
    """Success of fresh answers."""
    return measure(
        name,
        [one.before for one in pairs],
        [one.after for one in pairs],
        [one.case.group for one in pairs],
        level,
    )


def slices(pairs: Sequence[Pair], level: float) -> tuple[Measure, ...]:
    """The primary measure per slice ("topic=bill"), the largest first."""
    found: dict[str, list[Pair]] = {}
    for pair in pairs:
        for name, value in pair.case.slices.items():
            found.setdefault(f"{name}={value}", []).append(pair)
    ordered = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    return tuple(success(name, members, level) for name, members in ordered)


def detectable(primary: Measure) -> float | None:
    """The smallest true gain that these items show four times out of five, at the spread that was
    met."""
    return primary.spread.around(primary.gain).detectable(primary.level, POWER)


def most_changed(
    pairs: Sequence[Pair], before: Sequence[str], after: Sequence[str], count: int
) -> tuple[Changed, ...]:
    """The cases whose value changed most, losses and gains in turn; then those whose text changed.
    `before`, `after`: texts, as `pairs`."""
    places = [place for place in range(len(pairs)) if before[place] != after[place]]
    places.sort(
        key=lambda place: (-abs(pairs[place].after - pairs[place].before), pairs[place].case.id)
    )
    losses = [place for place in places if pairs[place].after < pairs[place].before]
    gains = [place for place in places if pairs[place].after > pairs[place].before]
    chosen = [place for both in zip(losses, gains, strict=False) for place in both]
    chosen += [place for place in places if place not in set(chosen)]
    return tuple(_changed(pairs[place], before[place], after[place]) for place in chosen[:count])


def _changed(pair: Pair, before: str, after: str) -> Changed:
    return Changed(
        case=pair.case.id,
        prompt=_last_text(pair.case.prompt)[:EXCERPT],
        reference=pair.case.reference,
        before=before[:EXCERPT],
        after=after[:EXCERPT],
        value_before=pair.before,
        value_after=pair.after,
    )


def _last_text(prompt: Sequence[Message]) -> str:
    content = prompt[-1].get("content")
    return content if isinstance(content, str) else str(content)


def preferences(logged: Sequence[Logged], level: float) -> tuple[Measure, ...]:
    """How well each side ranks recorded answers: pairs where there are any, otherwise labels.
    Summed first, per token beside it."""
    pairs = _pairs(logged)
    if pairs:
        return (
            _accuracy(RANKING, pairs, False, level),
            _accuracy(RANKING_PER_TOKEN, pairs, True, level),
        )
    labels = [one for one in logged if one.row.label]
    found = (_area(AREA, labels, False, level), _area(AREA_PER_TOKEN, labels, True, level))
    return tuple(one for one in found if one is not None)


def _pairs(logged: Iterable[Logged]) -> list[tuple[Logged, Logged]]:
    """(better, worse) of every preference of which both sides fitted."""
    sides: dict[str, dict[bool, Logged]] = {}
    for one in logged:
        if one.row.pair is not None:
            sides.setdefault(one.row.pair, {})[one.row.good] = one
    return [(both[True], both[False]) for both in sides.values() if len(both) == 2]


def _accuracy(
    name: str, pairs: Sequence[tuple[Logged, Logged]], per_token: bool, level: float
) -> Measure:
    def right(side: str) -> list[float]:
        return [
            _wins(_at(better, side, per_token), _at(worse, side, per_token))
            for better, worse in pairs
        ]

    return measure(
        name, right("before"), right("after"), [better.row.group for better, _ in pairs], level
    )


def _wins(better: float, worse: float) -> float:
    return 0.5 if better == worse else float(better > worse)


def _at(one: Logged, side: str, per_token: bool) -> float:
    total: float = getattr(one, side)
    return total / one.tokens if per_token else total


def _area(name: str, labels: Sequence[Logged], per_token: bool, level: float) -> Measure | None:
    """Area under the ROC curve; None where one class is missing. Its groups are those of the rarer
    class: the error rests on them."""
    scores = {side: [_at(one, side, per_token) for one in labels] for side in ("before", "after")}
    good = [one.row.good for one in labels]
    before, after = (ranking_area(scores[side], good) for side in ("before", "after"))
    if before is None or after is None:
        return None
    groups = [one.row.group for one in labels]

    def gain(indices: Sequence[int]) -> float | None:
        own = [good[at] for at in indices]
        low, high = (
            ranking_area([scores[side][at] for at in indices], own) for side in ("before", "after")
        )
        return None if low is None or high is None else high - low

    telling = min(
        len({group for group, own in zip(groups, good, strict=True) if own is kind})
        for kind in (True, False)
    )
    found = jackknife(gain, len(labels), groups, limit=1.0, telling=telling)  # type: ignore[arg-type]
    interval = found.interval(level)
    changed = sum(a != b for a, b in zip(scores["before"], scores["after"], strict=True))
    return Measure(
        name=name,
        before=before,
        after=after,
        gain=after - before,
        low=interval.low,
        high=interval.high,
        level=level,
        n=len(labels),
        clusters=telling,
        changed=changed,
        spread=Spread.of(found),
        p=found.p_value,
    )


def generation_guards(
    before: Sequence[Judged], after: Sequence[Judged], groups: Sequence[str], level: float
) -> tuple[Guard, ...]:
    """Do fresh answers still end, still have their form, and still have their length (over those
    that ended at least before)?"""
    both = [
        one
        for one in zip(before, after, groups, strict=True)
        if all(side.evidence["status"] != "unanswered" for side in one[:2])
    ]
    formed = [(a.well_formed, b.well_formed, group) for a, b, group in both]
    lengths = [(a.tokens, b.tokens, group) for a, b, group in both if a.ended]
    return (
        _guard(EOS, [(float(a.ended), float(b.ended), group) for a, b, group in both], level),
        _guard(
            FORMAT,
            [
                (float(a), float(b), group)
                for a, b, group in formed
                if a is not None and b is not None
            ],
            level,
        ),
        _guard(
            LENGTH,
            [
                (float(a), float(b), group)
                for a, b, group in lengths
                if a is not None and b is not None
            ],
            level,
            None,
        ),
    )


def _guard(
    name: str, values: Sequence[tuple[float, float, str]], level: float, span: float | None = 1.0
) -> Guard:
    if not values:
        return Guard(name=name, before=None, after=None, n=0)
    first, second, groups = zip(*values, strict=True)
    return guard(name, measure(name, first, second, groups, level, span))


class Rates(NamedTuple):
    """What answers cost: a million tokens in and out, or an hour of the machine."""

    tokens_in: float | None = None
    tokens_out: float | None = None
    hour: float | None = None


def serving(side: str, success: float, answers: Sequence[Answer], rates: Rates) -> Serving:
    """What answers of one side took and cost."""
    tokens = [one.tokens for one in answers if one.tokens is not None]
    seconds = sorted(one.seconds for one in answers if one.seconds is not None)
    prompts = [one.prompt_tokens for one in answers if one.prompt_tokens is not None]
    return Serving(
        side=side,
        success=success,
        answers=len(answers),
        tokens=mean(tokens) if tokens else None,
        seconds=median(seconds) if seconds else None,
        slowest=seconds[ceil(0.95 * len(seconds)) - 1] if seconds else None,
        cost=_cost(rates, prompts, tokens, [one.busy for one in answers if one.busy is not None]),
    )


def _cost(
    rates: Rates, prompts: Sequence[int], tokens: Sequence[int], busy: Sequence[float]
) -> float | None:
    """Of 1,000 answers; None where price or measurement is missing."""
    if rates.tokens_in is not None and rates.tokens_out is not None and tokens and prompts:
        return (mean(prompts) * rates.tokens_in + mean(tokens) * rates.tokens_out) / 1000
    if rates.hour is not None and busy:
        return 1000 * mean(busy) * rates.hour / 3600
    return None


def guard(name: str, measure: Measure) -> Guard:
    """A measure as a guard. An interval without an end is none."""
    ends = {"low": measure.low, "high": measure.high} if measure.high < LARGEST else {}
    return Guard(
        name=name,
        before=measure.before,
        after=measure.after,
        n=measure.n,
        clusters=measure.clusters,
        spread=measure.spread,
        **ends,
    )


def nll_guard(logged: Sequence[Logged], level: float) -> Guard:
    """Negative log-likelihood a token of recorded good answers, whoever wrote them."""
    return _nll(NLL, [one for one in logged if one.row.good], level)


def liked_guard(logged: Sequence[Logged], level: float) -> Guard:
    """The same of answers that the app gave itself and people liked: what the model could do, and
    has to be able to do still."""
    return _nll(NLL_LIKED, [one for one in logged if one.row.liked], level)


def _nll(name: str, logged: Sequence[Logged], level: float) -> Guard:
    """Over all their tokens; each (prompt, answer) counts once."""
    answers = list({(json.dumps(one.row.prompt), one.row.text): one for one in logged}.values())
    tokens = sum(one.tokens for one in answers)
    if not tokens:
        return Guard(name=name, before=None, after=None, n=0)
    before = -sum(one.before for one in answers) / tokens
    after = -sum(one.after for one in answers) / tokens
    sums: dict[str, float] = {}
    sizes = Counter[str]()
    for one in answers:
        sums[one.row.group] = sums.get(one.row.group, 0.0) + one.before - one.after
        sizes[one.row.group] += one.tokens
    estimate = paired_mean(
        np.array([sums[group] for group in sizes], float),
        np.array(list(sizes.values()), float),
        None,
    )
    interval = estimate.interval(level)
    ends = {"low": interval.low, "high": interval.high} if isfinite(interval.low) else {}
    return Guard(
        name=name,
        before=before,
        after=after,
        n=len(answers),
        clusters=len(sizes),
        spread=Spread.of(estimate),
        **ends,
    )
