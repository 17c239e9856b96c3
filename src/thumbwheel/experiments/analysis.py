"""From the figures of units to intervals, and from intervals to a decision. Both are pure, so that
a verdict can be computed again from what is stored with it.

An arm wins when the lower end of its gain over the control lies above zero at this test's part of
alpha, divided by the number of arms beside the control, and every guard is shown to hold. The
interval is that of a bet (stats/betting.py): it holds for every bounded outcome, at any share and
rate. A ratio has no such bound and is compared by the asymptotic sequence, from `LARGE_SAMPLE`
units an arm on. An arm loses when the upper end at its part of the looser `stop_alpha` lies below
zero, when a guard is shown to be broken, or when it does not answer at all.

A unit counts once it had time to answer (`maturation`), the same time for all arms. While the arms
are shown to answer in other shares, or at other speeds, their outcomes are those of other people,
so no arm wins or loses by them. Units that do not arrive in their shares stop everything.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from thumbwheel.core.figures import points
from thumbwheel.experiments.types import (
    SHARES,
    ArmComparison,
    ArmFigures,
    Decision,
    Experiment,
    Figures,
    GuardFigures,
    GuardPlan,
    Inputs,
    Method,
    Plan,
    Stratum,
    UnitFigures,
)
from thumbwheel.stats import best_arm
from thumbwheel.stats.betting import Arrivals, Bets, difference_p, gain_interval, lower_end
from thumbwheel.stats.covariate import adjusted
from thumbwheel.stats.sample_ratio import ShareStratum as Shares
from thumbwheel.stats.sample_ratio import response_p, sequential_p
from thumbwheel.stats.sequential import Difference, Sample, combined
from thumbwheel.stats.types import Interval

Array = NDArray[np.float64]
LARGE_SAMPLE = 100
"""Units an arm from which an asymptotic interval says anything."""
STOP_TUNED_FOR = 200.0
"""Units at which the interval that stops an arm is tightest."""
GUARD_TUNED_FOR = ANSWERS_TUNED_FOR = 1000.0
NOTHING_KNOWN = Interval(-math.inf, math.inf, 1.0)
MISMATCH = 0.001
"""The p value of the shares of units below which nothing is decided any more."""
SILENCE = 0.1
"""The p value of equal rates of answering, over all moments, below which outcomes decide nothing.
"""
PROMPT = 0.9
"""Of an arm's answers, how many came within the time that the units of all arms are given."""
FEWEST_DELAYS = 20
"""Answers of an arm without which its delays are not known."""
DEAD = 5
"""Different units in a row that an arm failed to answer, after which it counts as dead."""


def analyse(
    experiment: Experiment, figures: Figures, as_of: datetime, dead: frozenset[str] = frozenset()
) -> Inputs:
    """Compute the intervals of every arm from these figures. `dead`: arms that no longer answer."""
    plan = experiment.plan
    waiting = maturation(plan, figures.units)
    units = [unit for unit in figures.units if as_of - unit.exposed_at >= waiting]
    outcomes = _outcomes(plan, units)
    arms = tuple(_arm(arm.name, figures.units, outcomes, dead) for arm in plan.arms)
    comparisons = [
        _compared(experiment, figures.units, units, outcomes, arm.name) for arm in plan.treatments
    ]
    return Inputs(
        as_of=as_of,
        hours=max(0.0, (as_of - experiment.recorded_at).total_seconds() / 3600),
        arms=arms,
        comparisons=tuple(comparisons),
        sample_ratio_p=sequential_p(_shares(experiment, figures.units)),
        maturation_hours=waiting / timedelta(hours=1),
        answered_in_stratum=sum(
            unit.stratum == experiment.stratum.number and unit.unit in outcomes for unit in units
        ),
        late=figures.late,
        flooded=figures.flooded,
        missing_names=dict(figures.missing_names),
        senders=figures.senders,
    )


def maturation(plan: Plan, units: Sequence[UnitFigures]) -> timedelta:
    """Return the time after its exposure from which a unit counts: as declared, otherwise the time
    within which nine of ten answers came, in the slowest arm."""
    if plan.config.maturation_hours is not None:
        return timedelta(hours=plan.config.maturation_hours)
    delays: dict[str, list[float]] = {}
    for unit in units:
        if unit.outcome is not None and unit.answered_at is not None:
            delay = (unit.answered_at - unit.exposed_at).total_seconds()
            delays.setdefault(unit.arm, []).append(max(0.0, delay))
    slowest = 0.0
    for of_arm in delays.values():
        if len(of_arm) >= FEWEST_DELAYS:
            slowest = max(slowest, float(np.quantile(of_arm, PROMPT)))
    return timedelta(seconds=slowest)


def _outcomes(plan: Plan, units: Sequence[UnitFigures]) -> dict[str, float]:
    """Return unit -> its outcome for comparison: linearised for a ratio, and without the part that
    its earlier data predict."""
    answered = [unit for unit in units if unit.outcome is not None]
    if not answered:
        return {}
    values = np.array([unit.outcome for unit in answered], float)
    if plan.config.ratio:
        weights = np.array([unit.weight for unit in answered])
        ratio = float((values * weights).sum() / weights.sum())
        values = ratio + weights * (values - ratio) / weights.mean()
    has_earlier = np.array([unit.earlier is not None for unit in answered])
    earlier = np.array([unit.earlier or 0.0 for unit in answered])
    values = adjusted(values, earlier, has_earlier)
    return {unit.unit: float(value) for unit, value in zip(answered, values, strict=True)}


def _arm(
    name: str, units: Sequence[UnitFigures], outcomes: Mapping[str, float], dead: frozenset[str]
) -> ArmFigures:
    exposed = [unit for unit in units if unit.arm == name]
    answered = sum(unit.outcome is not None for unit in exposed)
    values = np.array([outcomes[unit.unit] for unit in exposed if unit.unit in outcomes])
    sample = Sample.of(values)
    return ArmFigures(
        name=name,
        exposed=len(exposed),
        answered=answered,
        counted=sample.n,
        mean=sample.mean if sample.n else None,
        variance=sample.variance,
        dead=name in dead,
    )


def _shares(experiment: Experiment, units: Sequence[UnitFigures]) -> list[Shares]:
    """Count the units of each arm by stratum. Units may move between arms with the shares, so a
    unit counts in the stratum in which it was first exposed."""
    names = [arm.name for arm in experiment.plan.arms]
    strata = []
    for stratum in experiment.strata:
        counts = Counter(unit.arm for unit in units if unit.stratum == stratum.number)
        shares = [stratum.shares.get(name, 0.0) for name in names]
        strata.append(Shares([counts[name] for name in names], shares))
    return strata


def _compared(
    experiment: Experiment,
    exposed: Sequence[UnitFigures],
    units: Sequence[UnitFigures],
    outcomes: Mapping[str, float],
    arm: str,
) -> ArmComparison:
    """Compare the arm with the control. Guards use all units that were `exposed`, at once; outcomes
    are those of `units`, which had time to answer."""
    plan = experiment.plan
    control = plan.control.name
    both = _drawn(experiment, units, arm)
    answered = [unit for unit in both if unit.unit in outcomes]
    difference = _difference(answered, outcomes, control, arm)
    counts = Counter(unit.arm for unit in answered)
    fewest = min(counts[control], counts[arm])

    to_win, to_stop = winning_bets(plan), stopping_bets(plan)
    method: Method = "asymptotic" if plan.config.ratio else "exact"
    stop_high = None
    if method == "asymptotic":
        large = fewest >= LARGE_SAMPLE
        safe = _difference(answered, outcomes, control, arm, pseudo_units=(0.0, 1.0))
        interval = safe.interval(2 * to_win.alpha, to_win.tuned_for) if large else NOTHING_KNOWN
        if large and fewest >= plan.config.min_stop:
            stop_high = _finite(safe.interval(2 * to_stop.alpha, to_stop.tuned_for).high)
    else:
        values = np.array([unit.outcome for unit in answered], float)
        arrivals = _arrivals(experiment, answered, values, arm, has_earlier=True)
        interval = gain_interval(arrivals, to_win)
        if fewest >= plan.config.min_stop:
            stop_high = -lower_end(arrivals.flipped(), to_stop)
    served = _drawn(experiment, exposed, arm)
    silence = _silence(experiment, both, outcomes, arm)
    return ArmComparison(
        arm=arm,
        gain=difference.value if math.isfinite(difference.variance) else None,
        low=_finite(interval.low),
        high=_finite(interval.high),
        fewest=fewest,
        method=method,
        stop_high=stop_high,
        guards=tuple(_guarded(experiment, served, guard, arm) for guard in plan.guards),
        response_p=_response_p(both, outcomes, arm),
        answering=silence.rates,
        answering_p=silence.p_value,
        silent_gain=silence.gain,
        silent_loss=silence.loss,
    )


def winning_bets(plan: Plan) -> Bets:
    """Return the bets by which an arm wins: this test's error, divided among the arms that may
    win."""
    return Bets(plan.error / len(plan.treatments), plan.tuned_for)


def stopping_bets(plan: Plan) -> Bets:
    """Return the bets by which an arm is stopped: `stop_alpha`, divided among the arms that may
    be."""
    return Bets(plan.config.stop_alpha / len(plan.treatments), STOP_TUNED_FOR)


def _drawn(experiment: Experiment, units: Iterable[UnitFigures], arm: str) -> list[UnitFigures]:
    """Return the units of this arm and the control, in the order of their first exposure, of strata
    in which both had a share."""
    names = (experiment.plan.control.name, arm)
    numbers = {
        stratum.number
        for stratum in experiment.strata
        if 0.0 < _share_of_two(experiment, stratum, arm) < 1.0
    }
    return _by_exposure(unit for unit in units if unit.arm in names and unit.stratum in numbers)


def _arrivals(
    experiment: Experiment,
    units: Sequence[UnitFigures],
    values: Array,
    arm: str,
    *,
    has_earlier: bool = False,
) -> Arrivals:
    """Return the units as they were drawn. Among the units of two arms, each got the second one
    with the probability that its stratum gives."""
    by_stratum = {
        stratum.number: _share_of_two(experiment, stratum, arm) for stratum in experiment.strata
    }
    earlier = None
    if has_earlier:
        covariates = [math.nan if unit.earlier is None else unit.earlier for unit in units]
        earlier = np.array(covariates, float)
    return Arrivals(
        np.array([unit.arm == arm for unit in units], bool),
        values,
        np.array([by_stratum[unit.stratum] for unit in units], float),
        earlier,
    )


@dataclass(frozen=True)
class _Silence:
    """How the arms differ in answering, and what that may make of equal arms."""

    rates: tuple[float, float] | None = None
    """The shares of units that answered, of the control and of the arm."""
    p_value: float = 1.0
    """That they are the same."""
    gain: float = 0.0
    loss: float = 0.0


def _silence(
    experiment: Experiment, units: Sequence[UnitFigures], outcomes: Mapping[str, float], arm: str
) -> _Silence:
    """Compare how many units answer in the two arms. The arm that answers less is short of some
    units: the difference of the rates beyond one standard error. If all of these are unhappy, or
    all are happy, that much of a gain or loss is due to silence alone."""
    answered = np.array([unit.unit in outcomes for unit in units], float)
    arrivals = _arrivals(experiment, units, answered, arm)
    treated = arrivals.treated
    if treated.all() or not treated.any():
        return _Silence()
    rates = float(answered[~treated].mean()), float(answered[treated].mean())
    p_value = difference_p(arrivals, Bets(SILENCE, ANSWERS_TUNED_FOR))
    if min(rates) == 0:
        return _Silence(rates, p_value)
    overall = float(answered.mean())
    error = math.sqrt(overall * (1 - overall) * (1 / treated.sum() + 1 / (~treated).sum()))
    missing = max(0.0, abs(rates[1] - rates[0]) - error) / max(rates)
    values = np.array([outcomes.get(unit.unit, 0.0) for unit in units])
    fewer = treated if rates[1] < rates[0] else ~treated
    mean = float(np.clip(values[fewer].sum() / answered[fewer].sum(), 0.0, 1.0))
    if rates[1] < rates[0]:
        return _Silence(rates, p_value, gain=missing * mean, loss=missing * (1 - mean))
    return _Silence(rates, p_value, gain=missing * (1 - mean), loss=missing * mean)


def _response_p(units: Sequence[UnitFigures], outcomes: Mapping[str, float], arm: str) -> float:
    treated = np.array([unit.arm == arm for unit in units], bool)
    answered = np.array([unit.unit in outcomes for unit in units], bool)
    return response_p(treated, answered)


def _difference(
    units: Sequence[UnitFigures],
    values: Mapping[str, float],
    control: str,
    arm: str,
    pseudo_units: Sequence[float] = (),
) -> Difference:
    """Compute the difference over all strata. `pseudo_units`: outcomes that are added to each arm
    of each stratum, so that an arm in which all are the same so far is not taken for certain."""
    by_stratum: dict[tuple[int, str], list[float]] = {}
    for unit in units:
        by_stratum.setdefault((unit.stratum, unit.arm), []).append(values[unit.unit])
    differences = []
    for stratum in sorted({number for number, _ in by_stratum}):
        samples = [
            Sample.of(np.array([*by_stratum.get((stratum, name), []), *pseudo_units]))
            for name in (control, arm)
        ]
        differences.append(Difference.between(*samples))
    return combined(differences)


def in_order(units: Iterable[UnitFigures]) -> list[UnitFigures]:
    """Sort the units in the order in which their outcomes came in; units whose outcomes came in at
    once, as from one file, by lot."""
    return sorted(units, key=lambda unit: (unit.answered_at or unit.exposed_at, _lot(unit)))


def _by_exposure(units: Iterable[UnitFigures]) -> list[UnitFigures]:
    """Sort the units by their first exposure; units exposed at one moment by lot."""
    return sorted(units, key=lambda unit: (unit.exposed_at, _lot(unit)))


def _lot(unit: UnitFigures) -> str:
    """Reverse the unit's name: this order is independent of the arm, which the leading digits
    chose."""
    return unit.unit[::-1]


def _share_of_two(experiment: Experiment, stratum: Stratum, arm: str) -> float:
    """Return the share of the arm among the units that go to this arm or the control; 0.0 if there
    are none."""
    share = stratum.shares.get(arm, 0.0)
    both = stratum.shares.get(experiment.plan.control.name, 0.0) + share
    return share / both if both else 0.0


def _guarded(
    experiment: Experiment, units: Sequence[UnitFigures], guard: GuardPlan, arm: str
) -> GuardFigures:
    """Measure the harm of an arm by one guard."""
    control = experiment.plan.control.name
    values = {}
    for unit in units:
        harm = _harm(guard, unit)
        if harm is not None:
            values[unit.unit] = harm
    measured = [unit for unit in units if unit.unit in values]
    samples = {}
    for name in (control, arm):
        harms = [values[unit.unit] for unit in measured if unit.arm == name]
        samples[name] = Sample.of(np.array(harms))
    means = [samples[name].mean if samples[name].n else None for name in (control, arm)]
    low, high = _harm_ends(experiment, guard, measured, values, samples, arm)
    return GuardFigures(
        name=guard.name,
        margin=guard.margin,
        control=means[0],
        treatment=means[1],
        low=low,
        high=high,
    )


def _harm(guard: GuardPlan, unit: UnitFigures) -> float | None:
    """Return how bad a unit fared by a guard; None if that is unknown."""
    if guard.name == "error_rate":
        return unit.failed / unit.calls if unit.calls else None
    if guard.name == "latency_p95":
        return unit.slow / unit.timed if unit.timed else None
    return unit.cost


def _harm_ends(
    experiment: Experiment,
    guard: GuardPlan,
    units: Sequence[UnitFigures],
    values: Mapping[str, float],
    samples: Mapping[str, Sample],
    arm: str,
) -> tuple[float | None, float | None]:
    plan, control = experiment.plan, experiment.plan.control.name
    error = plan.config.alpha / 2 / len(plan.treatments)
    if guard.name == "cost":
        # Costs have no bound, so nothing is known of a few of them.
        fewest = min(samples[control].n, samples[arm].n)
        if fewest < LARGE_SAMPLE or samples[control].mean <= 0:
            return None, None
        interval = _difference(units, values, control, arm).interval(2 * error, GUARD_TUNED_FOR)
        scale = samples[control].mean
        return _finite(interval.low / scale), _finite(interval.high / scale)
    if not units:
        return None, None
    harms = np.array([values[unit.unit] for unit in units], float)
    arrivals = _arrivals(experiment, units, harms, arm)
    interval = gain_interval(arrivals, Bets(error, GUARD_TUNED_FOR))
    return interval.low, interval.high


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def decide(plan: Plan, inputs: Inputs) -> Decision:
    """Return the verdict on `inputs` under `plan`, from these two alone."""
    config = plan.config
    if inputs.sample_ratio_p < MISMATCH:
        counts = ", ".join(f"{arm.name} {arm.exposed}" for arm in inputs.arms)
        reason = (
            f"units do not arrive in their shares ({counts}; p = {inputs.sample_ratio_p:.2g}), so "
            "something chooses them and no difference means anything"
        )
        return Decision(verdict="stopped", reasons=(reason,))

    lost, losses = [], []
    for comparison in inputs.comparisons:
        if why := _loss(plan, inputs, comparison):
            lost.append(comparison.arm)
            losses.append(why)
    if len(lost) == len(plan.treatments):
        return Decision(verdict="lost", reasons=tuple(losses))

    decision = _best(plan, inputs) if config.mode == "best-arm" else _winner(plan, inputs, lost)
    if decision is not None:
        return decision
    if config.max_hours and inputs.hours >= config.max_hours:
        reason = f"nothing is decided after {inputs.hours:.1f} hours, and max_hours is reached"
        return Decision(verdict="stopped", reasons=(*losses, reason))
    return Decision(
        verdict="undecided", dropped=tuple(lost), reasons=(*losses, *_standing(plan, inputs, lost))
    )


def _loss(plan: Plan, inputs: Inputs, comparison: ArmComparison) -> str:
    """Return why an arm is stopped; empty if it is not."""
    figures = {arm.name: arm for arm in inputs.arms}
    if figures[comparison.arm].dead:
        return f"{comparison.arm} failed to answer {DEAD} different units in a row"
    for guard in comparison.guards:
        if guard.broken:
            return (
                f"{comparison.arm} breaks guard {guard.name}: worse by at least {guard.low:.4f}, "
                f"and {guard.margin:g} is allowed"
            )
    if _is_worse(comparison) and not _other_people(plan, comparison):
        return (
            f"{comparison.arm} is worse: {plan.config.metric} differs by "
            f"{_in_words(plan, comparison.gain)}, at most {_in_words(plan, comparison.stop_high)} "
            f"(error {stopping_bets(plan).alpha:.4g})"
        )
    return ""


def _is_worse(comparison: ArmComparison) -> bool:
    """Return whether a loss is shown that exceeds the effect silence may have."""
    return comparison.stop_high is not None and comparison.stop_high < -comparison.silent_loss


def _winner(plan: Plan, inputs: Inputs, lost: Sequence[str]) -> Decision | None:
    """Return the decision for the best of the arms that won; None if no arm won."""
    winners = []
    for comparison in inputs.comparisons:
        if comparison.arm in lost or not _is_better(comparison):
            continue
        if not _obstacles(plan, inputs, comparison):
            winners.append(comparison)
    if not winners:
        return None
    best = max(winners, key=lambda comparison: comparison.gain or 0.0)
    reason = (
        f"{best.arm} is better: {plan.config.metric} gains {_in_words(plan, best.gain)}, at least "
        f"{_in_words(plan, best.low)} (error {winning_bets(plan).alpha:.4g}, {best.method})"
    )
    return Decision(verdict="won", arm=best.arm, reasons=(reason, *_guards_in_words(best)))


def _best(plan: Plan, inputs: Inputs) -> Decision | None:
    """Return the decision once the best arm is known; None before."""
    counts, means, variances = _tracked(inputs)
    if counts.min() < 10 or not best_arm.is_decided(counts, means, variances, plan.error):
        return None
    best = inputs.arms[int(np.argmax(means))]
    reason = f"{best.name} is the best of {len(inputs.arms)} arms (error {plan.error:.4g})"
    if best.name == plan.control.name:
        return Decision(verdict="lost", reasons=(reason,))
    (comparison,) = (row for row in inputs.comparisons if row.arm == best.name)
    # The approximation says which arm is best; that it is better than the control, the bet does.
    if not _is_better(comparison) or _obstacles(plan, inputs, comparison):
        return None
    return Decision(verdict="won", arm=best.name, reasons=(reason, *_guards_in_words(comparison)))


def _tracked(inputs: Inputs) -> tuple[Array, Array, Array]:
    """Return counts, means and variances of the arms, for best-arm mode. The variance includes an
    added unit at either end of the scale, so that an arm without a bad outcome is not certain
    yet."""
    counts = np.array([arm.counted or arm.answered for arm in inputs.arms], float)
    means = np.array([arm.mean or 0.0 for arm in inputs.arms])
    variances = np.array([arm.variance for arm in inputs.arms])
    added = (1 - means) ** 2 + means**2
    return counts, means, (counts * variances + added) / (counts + 2)


def _is_better(comparison: ArmComparison) -> bool:
    """Return whether a gain is shown that exceeds the effect silence may have."""
    if comparison.gain is None or comparison.low is None:
        return False
    return comparison.low > comparison.silent_gain


def _in_words(plan: Plan, gain: float | None) -> str:
    """Return a gain as people read it: of a share of good answers in percentage points."""
    if plan.config.metric in SHARES and gain is not None:
        return f"{points(gain)} points"
    return "–" if gain is None else f"{gain:+.4f}".replace("-", "−")


def _obstacles(plan: Plan, inputs: Inputs, comparison: ArmComparison) -> list[str]:
    """Return the reasons that keep an arm that is ahead from winning."""
    obstacles = []
    if inputs.hours < plan.config.min_hours:
        obstacles.append(f"{plan.config.min_hours - inputs.hours:.1f} of min_hours are to come")
    if comparison.fewest is not None and comparison.fewest < plan.config.min_units:
        obstacles.append(
            f"{comparison.fewest} units of the smaller arm count, of min_units "
            f"{plan.config.min_units}"
        )
    obstacles += _other_people(plan, comparison)
    for guard in comparison.guards:
        if not guard.holds:
            extent = "nothing is known yet" if guard.high is None else f"up to {guard.high:.4f}"
            obstacles.append(f"guard {guard.name} is open: {extent}, {guard.margin:g} is allowed")
    return obstacles


def _other_people(plan: Plan, comparison: ArmComparison) -> list[str]:
    """Return why the outcomes of an arm and of the control come from different people, so that they
    show neither a gain nor a loss; empty if they do not."""
    arm, control = comparison.arm, plan.control.name
    reasons = []
    if comparison.response_p < MISMATCH:
        reasons.append(
            f"outcomes of {arm} and {control} are in for other people (p = "
            f"{comparison.response_p:.2g}): wait for those that lag"
        )
    if comparison.answering is not None and comparison.answering_p < SILENCE:
        of_control, of_arm = comparison.answering
        reasons.append(
            f"{of_arm:.0%} of the units of {arm} answer and {of_control:.0%} of {control} (p = "
            f"{comparison.answering_p:.2g}): who stays silent may make the difference, so a person "
            "has to judge"
        )
    return reasons


def _of_silence(comparison: ArmComparison) -> list[str]:
    """Describe how much of a shown gain or loss may come from silence; empty if it exceeds
    silence."""
    if comparison.low is not None and 0 < comparison.low <= comparison.silent_gain:
        return [f"{comparison.silent_gain:.4f} of the gain may come from who stays silent"]
    if comparison.stop_high is not None and -comparison.silent_loss <= comparison.stop_high < 0:
        return [f"{comparison.silent_loss:.4f} of the loss may come from who stays silent"]
    return []


def _guards_in_words(comparison: ArmComparison) -> list[str]:
    return [
        f"guard {guard.name} holds: worse by at most {guard.high:.4f}, {guard.margin:g} is allowed"
        for guard in comparison.guards
    ]


def _standing(plan: Plan, inputs: Inputs, lost: Sequence[str]) -> list[str]:
    """Describe the state of an undecided experiment."""
    reasons = []
    for comparison in inputs.comparisons:
        if comparison.arm in lost:
            continue
        if comparison.gain is None:
            reasons.append(f"{comparison.arm}: too few outcomes")
            continue
        text = (
            f"{comparison.arm}: {plan.config.metric} differs by {_in_words(plan, comparison.gain)}"
        )
        if comparison.low is not None and comparison.high is not None:
            low, high = (_in_words(plan, end) for end in (comparison.low, comparison.high))
            text += f", between {low} and {high}"
        if _is_better(comparison):
            obstacles = _obstacles(plan, inputs, comparison)
        else:
            obstacles = [*_other_people(plan, comparison), *_of_silence(comparison)]
        reasons.append("; ".join([text, *obstacles]))
    if inputs.missing_names:
        names = ", ".join(f"{name!r} ({count})" for name, count in inputs.missing_names.items())
        reasons.append(
            f"no outcome is called {plan.config.name!r}; there are {names}: was it renamed?"
        )
    return reasons


def next_shares(plan: Plan, current: Mapping[str, float], inputs: Inputs) -> dict[str, float]:
    """Return the shares that best-arm mode gives to the next units."""
    counts, means, variances = _tracked(inputs)
    if counts.min() < 10:
        return dict(current)
    shares = best_arm.tracked_shares(counts, means, variances)
    return {arm.name: float(share) for arm, share in zip(inputs.arms, shares, strict=True)}
