"""Measures, guards, slices and examples from the judged answers and log-probabilities of both
responders. Numbers in, numbers out."""

from __future__ import annotations

import json
import sys
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
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
    ChangedAnswer,
    Guard,
    HeldOutCase,
    JudgedAnswer,
    Measure,
    Message,
    ModelAnswer,
    RecordedAnswer,
    Serving,
    Spread,
)
from thumbwheel.stats.multiple import holm
from thumbwheel.stats.paired import compare, jackknifed
from thumbwheel.stats.paired import mean as paired_mean
from thumbwheel.stats.rates import areas_without_each, ranking_area

EXCERPT = 2000
"""Characters of a prompt or an answer that an example shows."""
POWER = 0.8
LARGEST = sys.float_info.max
"""Stands for an infinite end of an interval, in JSON."""
OPINION = "mean score by "
"""Prefix of the names of measures by a reward model."""


class Pair(NamedTuple):
    """A case with the values of both answers to it."""

    case: HeldOutCase
    before: float
    after: float


class AnswerLikelihoods(NamedTuple):
    """The summed log-probability of a recorded answer by both responders, and its tokens."""

    row: RecordedAnswer
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
    """Compare means before and after, with the clustered interval of the gain. `span`: largest
    minus smallest possible value; None if there is no limit."""
    comparison = compare(before, after, groups, level=level, span=span)
    return Measure(
        spread=Spread.of(comparison.estimate),
        p=comparison.estimate.p_value,
        name=name,
        before=comparison.before,
        after=comparison.after,
        gain=comparison.gain,
        low=max(comparison.low, -LARGEST),
        high=min(comparison.high, LARGEST),
        level=level,
        n=comparison.n,
        clusters=comparison.clusters,
        changed=comparison.changed,
    )


def adjusted(measures: Sequence[Measure]) -> tuple[Measure, ...]:
    """Return the measures with Holm's correction over all that have a p value (Holm, Scand. J.
    Statist. 6, 1979)."""
    p_values = [measure.p for measure in measures if measure.p is not None]
    corrected = iter(holm(p_values))
    result = []
    for measure in measures:
        if measure.p is not None:
            measure = measure.model_copy(update={"adjusted": next(corrected)})
        result.append(measure)
    return tuple(result)


def success(name: str, pairs: Sequence[Pair], level: float) -> Measure:
    """Compare the success of fresh answers."""
    before = [pair.before for pair in pairs]
    after = [pair.after for pair in pairs]
    return measure(name, before, after, [pair.case.group for pair in pairs], level)


def slices(pairs: Sequence[Pair], level: float) -> tuple[Measure, ...]:
    """Return the primary measure per slice ("topic=bill"), the largest slice first."""
    by_slice: dict[str, list[Pair]] = {}
    for pair in pairs:
        for name, value in pair.case.slices.items():
            by_slice.setdefault(f"{name}={value}", []).append(pair)
    largest_first = sorted(by_slice.items(), key=lambda item: (-len(item[1]), item[0]))
    return tuple(success(name, members, level) for name, members in largest_first)


def detectable(primary: Measure) -> float | None:
    """Return the smallest true gain that is detected four times out of five at the observed spread,
    or None."""
    return primary.spread.around(primary.gain).detectable(primary.level, POWER)


def most_changed(
    pairs: Sequence[Pair], before: Sequence[str], after: Sequence[str], count: int
) -> tuple[ChangedAnswer, ...]:
    """Return the `count` cases whose value changed most, losses and gains in turn, then cases in
    which only the text changed. `before` and `after` are the texts of `pairs`."""
    changed = []
    for pair, text_before, text_after in zip(pairs, before, after, strict=True):
        if text_before != text_after:
            changed.append(_changed_answer(pair, text_before, text_after))
    changed.sort(key=lambda answer: (-abs(answer.value_after - answer.value_before), answer.case))
    losses = [answer for answer in changed if answer.value_after < answer.value_before]
    gains = [answer for answer in changed if answer.value_after > answer.value_before]
    chosen = []
    for loss, gain in zip(losses, gains, strict=False):
        chosen += [loss, gain]
    chosen_cases = {answer.case for answer in chosen}
    chosen += [answer for answer in changed if answer.case not in chosen_cases]
    return tuple(chosen[:count])


def _changed_answer(pair: Pair, before: str, after: str) -> ChangedAnswer:
    return ChangedAnswer(
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


def preferences(scored: Sequence[AnswerLikelihoods], level: float) -> tuple[Measure, ...]:
    """Measure how well both responders rank recorded answers: by pairs if there are any, else by
    labels; by summed log-probability first, then by log-probability per token."""
    pairs = _pairs(scored)
    if pairs:
        return (
            _accuracy(RANKING, pairs, False, level),
            _accuracy(RANKING_PER_TOKEN, pairs, True, level),
        )
    labelled = [answer for answer in scored if answer.row.label]
    areas = (_area(AREA, labelled, False, level), _area(AREA_PER_TOKEN, labelled, True, level))
    return tuple(area for area in areas if area is not None)


def _pairs(
    scored: Iterable[AnswerLikelihoods],
) -> list[tuple[AnswerLikelihoods, AnswerLikelihoods]]:
    """Return (better, worse) of every preference for which both answers were scored."""
    by_pair: dict[str, dict[bool, AnswerLikelihoods]] = {}
    for answer in scored:
        if answer.row.pair is not None:
            by_pair.setdefault(answer.row.pair, {})[answer.row.good] = answer
    return [(both[True], both[False]) for both in by_pair.values() if len(both) == 2]


def _accuracy(
    name: str,
    pairs: Sequence[tuple[AnswerLikelihoods, AnswerLikelihoods]],
    per_token: bool,
    level: float,
) -> Measure:
    before = []
    after = []
    for better, worse in pairs:
        first, second = _scores(better, per_token), _scores(worse, per_token)
        before.append(_win(first.before, second.before))
        after.append(_win(first.after, second.after))
    return measure(name, before, after, [better.row.group for better, _ in pairs], level)


def _win(better: float, worse: float) -> float:
    return 0.5 if better == worse else float(better > worse)


class _Scores(NamedTuple):
    before: float
    after: float


def _scores(answer: AnswerLikelihoods, per_token: bool) -> _Scores:
    if per_token:
        return _Scores(answer.before / answer.tokens, answer.after / answer.tokens)
    return _Scores(answer.before, answer.after)


def _area(
    name: str, labelled: Sequence[AnswerLikelihoods], per_token: bool, level: float
) -> Measure | None:
    """Compare the areas under the ROC curve; None if one class is missing. The groups that count
    are those of the rarer class, on which the error depends."""
    scores = [_scores(answer, per_token) for answer in labelled]
    good = [answer.row.good for answer in labelled]
    groups = [answer.row.group for answer in labelled]

    scores_before = [score.before for score in scores]
    scores_after = [score.after for score in scores]
    before, after = ranking_area(scores_before, good), ranking_area(scores_after, good)
    if before is None or after is None:
        return None
    gains_without_each: list[float | None] = []
    for area_before, area_after in zip(
        areas_without_each(scores_before, good, groups),
        areas_without_each(scores_after, good, groups),
        strict=True,
    ):
        if area_before is None or area_after is None:
            gains_without_each.append(None)
        else:
            gains_without_each.append(area_after - area_before)
    groups_of_good = {group for group, is_good in zip(groups, good, strict=True) if is_good}
    groups_of_bad = {group for group, is_good in zip(groups, good, strict=True) if not is_good}
    clusters = min(len(groups_of_good), len(groups_of_bad))
    estimate = jackknifed(after - before, gains_without_each, limit=1.0, telling=clusters)
    interval = estimate.interval(level)
    return Measure(
        name=name,
        before=before,
        after=after,
        gain=after - before,
        low=interval.low,
        high=interval.high,
        level=level,
        n=len(labelled),
        clusters=clusters,
        changed=sum(score.before != score.after for score in scores),
        spread=Spread.of(estimate),
        p=estimate.p_value,
    )


def generation_guards(
    before: Sequence[JudgedAnswer],
    after: Sequence[JudgedAnswer],
    groups: Sequence[str],
    level: float,
) -> tuple[Guard, ...]:
    """Return guards on whether fresh answers still end, keep their format, and keep their length.

    Length is counted where the answer before ended and was not wrong altogether: how much a base
    talks beside the point is no measure for the answers that people want.
    """
    ends = _GuardValues()
    formats = _GuardValues()
    lengths = _GuardValues()
    for first, second, group in zip(before, after, groups, strict=True):
        if "unanswered" in (first.evidence["status"], second.evidence["status"]):
            continue
        ends.add(first.ended, second.ended, group)
        formats.add(first.well_formed, second.well_formed, group)
        if first.ended and first.value != 0.0:
            lengths.add(first.tokens, second.tokens, group)
    return (
        ends.guard(EOS, level),
        formats.guard(FORMAT, level),
        lengths.guard(LENGTH, level, span=None),
    )


@dataclass
class _GuardValues:
    """Values before and after with their groups; items without both values are left out."""

    before: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)

    def add(self, before: float | None, after: float | None, group: str) -> None:
        if before is not None and after is not None:
            self.before.append(float(before))
            self.after.append(float(after))
            self.groups.append(group)

    def guard(self, name: str, level: float, span: float | None = 1.0) -> Guard:
        if not self.groups:
            return Guard(name=name, before=None, after=None, n=0)
        return guard(name, measure(name, self.before, self.after, self.groups, level, span))


class Rates(NamedTuple):
    """Prices: of a million tokens in and out, or of an hour of the machine."""

    tokens_in: float | None = None
    tokens_out: float | None = None
    hour: float | None = None


def serving(side: str, success: float, answers: Sequence[ModelAnswer], rates: Rates) -> Serving:
    """Return quality, tokens, time and price of one responder's answers."""
    tokens = [answer.tokens for answer in answers if answer.tokens is not None]
    seconds = sorted(answer.seconds for answer in answers if answer.seconds is not None)
    return Serving(
        side=side,
        success=success,
        answers=len(answers),
        tokens=mean(tokens) if tokens else None,
        seconds=median(seconds) if seconds else None,
        slowest=seconds[ceil(0.95 * len(seconds)) - 1] if seconds else None,
        cost=_cost(rates, answers),
    )


def _cost(rates: Rates, answers: Sequence[ModelAnswer]) -> float | None:
    """Return the price of 1,000 answers; None if a price or a measurement is missing."""
    prompt_tokens = [answer.prompt_tokens for answer in answers if answer.prompt_tokens is not None]
    tokens = [answer.tokens for answer in answers if answer.tokens is not None]
    if rates.tokens_in is not None and rates.tokens_out is not None and tokens and prompt_tokens:
        return (mean(prompt_tokens) * rates.tokens_in + mean(tokens) * rates.tokens_out) / 1000
    machine_seconds = [answer.busy for answer in answers if answer.busy is not None]
    if rates.hour is not None and machine_seconds:
        return 1000 * mean(machine_seconds) * rates.hour / 3600
    return None


def guard(name: str, measure: Measure) -> Guard:
    """Return a measure as a guard; without an interval if its ends are infinite."""
    bounded = measure.high < LARGEST
    return Guard(
        name=name,
        before=measure.before,
        after=measure.after,
        n=measure.n,
        clusters=measure.clusters,
        low=measure.low if bounded else None,
        high=measure.high if bounded else None,
        spread=measure.spread,
    )


def nll_guard(scored: Sequence[AnswerLikelihoods], level: float) -> Guard:
    """Return the guard on the negative log-likelihood per token of recorded good answers, whoever
    wrote them."""
    return _nll(NLL, [answer for answer in scored if answer.row.good], level)


def liked_guard(scored: Sequence[AnswerLikelihoods], level: float) -> Guard:
    """Return the guard on the negative log-likelihood per token of the app's own answers that
    people liked: the model could produce them and must still be able to."""
    return _nll(NLL_LIKED, [answer for answer in scored if answer.row.liked], level)


def _nll(name: str, scored: Sequence[AnswerLikelihoods], level: float) -> Guard:
    """Average over all tokens; each (prompt, answer) counts once."""
    distinct = {(json.dumps(answer.row.prompt), answer.row.text): answer for answer in scored}
    answers = list(distinct.values())
    tokens = sum(answer.tokens for answer in answers)
    if not tokens:
        return Guard(name=name, before=None, after=None, n=0)

    # The interval of the change, clustered by group and weighted by tokens.
    losses: dict[str, float] = {}
    tokens_of: dict[str, int] = {}
    for answer in answers:
        group = answer.row.group
        losses[group] = losses.get(group, 0.0) + answer.before - answer.after
        tokens_of[group] = tokens_of.get(group, 0) + answer.tokens
    loss_by_group = np.array(list(losses.values()), float)
    estimate = paired_mean(loss_by_group, np.array(list(tokens_of.values()), float), None)
    interval = estimate.interval(level)
    bounded = isfinite(interval.low)
    return Guard(
        name=name,
        before=-sum(answer.before for answer in answers) / tokens,
        after=-sum(answer.after for answer in answers) / tokens,
        n=len(answers),
        clusters=len(tokens_of),
        low=interval.low if bounded else None,
        high=interval.high if bounded else None,
        spread=Spread.of(estimate),
    )
