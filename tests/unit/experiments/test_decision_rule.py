"""The rule itself, by inputs that are made by hand: who wins, who is stopped, and at which error.
Levels are pinned by arithmetic; that they are the right ones, `benchmarks/experiments.py grid`
simulates."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from thumbwheel.experiments.analysis import (
    GUARD_TUNED_FOR,
    MISMATCH,
    PROMPT,
    SILENCE,
    STOP_TUNED_FOR,
    analyse,
    decide,
)
from thumbwheel.experiments.assign import Assignment
from thumbwheel.experiments.senders import decided
from thumbwheel.experiments.types import (
    Arm,
    ArmComparison,
    ArmFigures,
    Collected,
    Experiment,
    ExperimentConfig,
    Figures,
    GuardFigures,
    GuardPlan,
    Inputs,
    Plan,
    State,
    Stratum,
    UnitFigures,
)
from thumbwheel.stats.best_arm import evidence, is_decided
from thumbwheel.stats.betting import Arrivals, Bets, gain_interval, lower_end

START = datetime(2026, 3, 2, 9, tzinfo=UTC)
OPEN = GuardFigures(name="cost", margin=0.2, control=1.0, treatment=1.0, low=None, high=None)
HELD = OPEN.model_copy(update={"low": -0.1, "high": 0.1999})
AT_MARGIN = OPEN.model_copy(update={"low": 0.0, "high": 0.2})
BROKEN = OPEN.model_copy(update={"low": 0.2001, "high": 0.4})
NEARLY_BROKEN = OPEN.model_copy(update={"low": 0.2, "high": 0.4})


def plan_of(arms: int = 2, guards: tuple[GuardPlan, ...] = (), **options: Any) -> Plan:
    names = [f"v{number}" for number in range(arms)]
    return Plan(
        arms=tuple(Arm(name=name, version_id=name, weights=name) for name in names),
        guards=guards,
        config=ExperimentConfig(**options),
        tuned_for=1000.0,
    )


def inputs_of(plan: Plan, *comparisons: ArmComparison, **changes: Any) -> Inputs:
    arms = [
        ArmFigures(name=arm.name, exposed=300, answered=200, counted=200, mean=0.5, variance=0.25)
        for arm in plan.arms
    ]
    inputs = Inputs(
        as_of=START, hours=24.0, arms=tuple(arms), comparisons=comparisons, sample_ratio_p=1.0
    )
    return inputs.model_copy(update=changes)


def comparison_of(arm: str = "v1", **changes: Any) -> ArmComparison:
    """A clear gain, of which nothing speaks against a win."""
    values: dict[str, Any] = {
        "arm": arm, "gain": 0.1, "low": 0.02, "high": 0.2, "method": "exact", "stop_high": 0.2,
        "fewest": 100, "answering": (0.7, 0.7),
    }  # fmt: skip
    return ArmComparison(**(values | changes))


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "won"),
        ({"low": 1e-9}, "won"),
        ({"low": 0.0}, "undecided"),
        ({"low": -0.005}, "undecided"),
        ({"low": None}, "undecided"),
        ({"gain": None}, "undecided"),
        ({"fewest": 50}, "won"),
        ({"fewest": 49}, "undecided"),
        ({"guards": (HELD,)}, "won"),
        ({"guards": (AT_MARGIN,)}, "undecided"),
        ({"guards": (OPEN,)}, "undecided"),  # nothing is known of it
        ({"guards": (HELD, OPEN)}, "undecided"),
        ({"guards": (NEARLY_BROKEN,)}, "undecided"),
        ({"guards": (BROKEN,)}, "lost"),
        ({"response_p": MISMATCH}, "won"),
        ({"response_p": MISMATCH * 0.99}, "undecided"),
        ({"answering_p": SILENCE}, "won"),
        ({"answering_p": SILENCE * 0.99}, "undecided"),
        ({"low": 0.05, "silent_gain": 0.0499}, "won"),
        ({"low": 0.05, "silent_gain": 0.05}, "undecided"),
        ({"low": -0.3, "stop_high": -0.05, "silent_loss": 0.0499}, "lost"),
        ({"low": -0.3, "stop_high": -0.05, "silent_loss": 0.05}, "undecided"),
        ({"low": -0.3, "stop_high": 0.0}, "undecided"),
        ({"low": -0.3, "stop_high": -1e-9}, "lost"),
        ({"low": -0.3, "stop_high": None}, "undecided"),
        ({"low": -0.3, "stop_high": -0.1, "response_p": 0.0009}, "undecided"),
        ({"low": -0.3, "stop_high": -0.1, "answering_p": 0.09}, "undecided"),
    ],
)
def test_each_border_of_a_win_and_of_a_loss(changes: dict[str, Any], verdict: str) -> None:
    plan = plan_of(min_units=50)
    assert decide(plan, inputs_of(plan, comparison_of(**changes))).verdict == verdict


def test_a_gain_of_thumbs_is_said_in_points_and_one_of_a_scale_as_it_is_measured() -> None:
    for options, won, lost in (
        (
            {},
            "v1 is better: thumb gains +10.0 points, at least +2.0 points",
            "v1 is worse: thumb differs by −30.0 points, at most −10.0 points",
        ),
        (
            {"metric": "rating"},
            "v1 is better: rating gains +0.1000, at least +0.0200",
            "v1 is worse: rating differs by −0.3000, at most −0.1000",
        ),
    ):
        plan = plan_of(**options)
        reason, *_ = decide(plan, inputs_of(plan, comparison_of())).reasons
        assert reason.startswith(won)
        worse = comparison_of(gain=-0.3, low=-0.5, stop_high=-0.1)
        assert decide(plan, inputs_of(plan, worse)).reasons[0].startswith(lost)
        unclear = comparison_of(low=-0.05)
        (reason,) = decide(plan, inputs_of(plan, unclear)).reasons
        low, high = ("−5.0 points", "+20.0 points") if not options else ("−0.0500", "+0.2000")
        assert reason.endswith(f"between {low} and {high}")


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"sample_ratio_p": 0.001}, "won"),
        ({"sample_ratio_p": 0.00099}, "stopped"),
        ({"hours": 4.0}, "won"),
        ({"hours": 3.99}, "undecided"),
    ],
)
def test_units_have_to_arrive_in_their_shares_and_hours_have_to_pass(
    changes: dict[str, Any], verdict: str
) -> None:
    plan = plan_of(min_hours=4.0)
    assert decide(plan, inputs_of(plan, comparison_of(), **changes)).verdict == verdict


def test_the_time_ends_an_experiment_after_its_last_look() -> None:
    plan = plan_of(min_hours=0.0, max_hours=5.0)
    undecided = comparison_of(low=-0.1)
    assert decide(plan, inputs_of(plan, undecided, hours=4.99)).verdict == "undecided"
    assert decide(plan, inputs_of(plan, undecided, hours=5.0)).verdict == "stopped"
    assert decide(plan, inputs_of(plan, comparison_of(), hours=5.0)).verdict == "won"


def test_a_dead_arm_loses_and_an_arm_that_lost_wins_no_more() -> None:
    plan = plan_of(3)
    first = comparison_of("v1", stop_high=-0.01)
    second = comparison_of("v2", low=-0.1)
    decision = decide(plan, inputs_of(plan, first, second))
    assert (decision.verdict, decision.dropped) == ("undecided", ("v1",))
    inputs = inputs_of(plan, comparison_of("v1"), comparison_of("v2", gain=0.2))
    assert decide(plan, inputs).arm == "v2"
    dead = [arm.model_copy(update={"dead": arm.name == "v2"}) for arm in inputs.arms]
    assert decide(plan, inputs.model_copy(update={"arms": tuple(dead)})).arm == "v1"


def test_silence_is_named_in_the_reasons_of_a_gain_and_of_a_loss() -> None:
    plan = plan_of()
    shown: list[dict[str, Any]] = [{}, {"low": -0.3, "stop_high": -0.1}]
    for changes in shown:
        silent = comparison_of(answering=(0.69, 0.6), answering_p=0.0004, **changes)
        (reason,) = decide(plan, inputs_of(plan, silent)).reasons
        assert "60% of the units of v1 answer and 69% of v0 (p = 0.0004)" in reason


def test_a_difference_that_silence_may_make_is_named() -> None:
    plan = plan_of()
    gain = comparison_of(low=0.05, silent_gain=0.06)
    loss = comparison_of(low=-0.3, stop_high=-0.05, silent_loss=0.07)
    for comparison, words in ((gain, "0.0600 of the gain"), (loss, "0.0700 of the loss")):
        (reason,) = decide(plan, inputs_of(plan, comparison)).reasons
        assert f"{words} may come from who stays silent" in reason


def test_verdicts_of_earlier_releases_are_decided_as_they_were() -> None:
    plan = plan_of()
    earlier = comparison_of(method="asymptotic", fewest=None, answering=None)
    assert decide(plan, inputs_of(plan, earlier)).verdict == "won"
    content = plan.model_dump(mode="json")
    del content["config"]["min_senders"]
    content["config"]["min_hours"] = 0.0  # the default then; plans are stored with all values
    plan = Plan(**content)
    assert decided(plan, inputs_of(plan, earlier, hours=1.0)).verdict == "won"


def experiment_of(plan: Plan, *shares: dict[str, float]) -> Experiment:
    """One stratum after another with these shares."""
    strata = tuple(Stratum(number, each, "", START) for number, each in enumerate(shares))
    return Experiment(
        "exp", "agent", "live", plan, "salt", State.RUNNING, "", Collected(), START, None, strata
    )


def units_of(arm: str, good: int, count: int, stratum: int = 0, **fields: Any) -> list[UnitFigures]:
    """So many units of an arm, of which the first ones are happy; each comes at its own minute."""
    units = []
    for number in range(count):
        moment = START + timedelta(minutes=(number + 0.5) * 1000 / count + 1000 * stratum)
        values: dict[str, Any] = {
            "unit": f"{arm}-{stratum}-{number * 7919 % 1000:03d}", "arm": arm, "stratum": stratum,
            "exposed_at": moment, "outcome": float(number * 37 % count < good), "weight": 1.0,
            "answered_at": moment, "calls": 1,
        }  # fmt: skip
        units.append(UnitFigures(**(values | fields)))
    return units


def analysed(experiment: Experiment, units: list[UnitFigures]) -> tuple[Inputs, str]:
    inputs = analyse(experiment, Figures(tuple(units)), START + timedelta(days=9))
    return inputs, decide(experiment.plan, inputs).verdict


@pytest.mark.parametrize(
    ("share", "control", "treatment", "min_units"),
    [
        (0.05, (1881, 1900), (100, 100), 100),
        (0.1, (873, 900), (100, 100), 100),
        (0.1, (428, 450), (50, 50), 50),
        (0.05, (11, 570), (0, 30), 30),
        (0.05, (29, 570), (0, 30), 30),
    ],
)
def test_arms_that_show_no_variance_yet_are_neither_won_nor_lost(
    share: float, control: tuple[int, int], treatment: tuple[int, int], min_units: int
) -> None:
    plan = plan_of(min_units=min_units)
    experiment = experiment_of(plan, {"v0": 1 - share, "v1": share})
    units = units_of("v0", *control) + units_of("v1", *treatment)
    inputs, verdict = analysed(experiment, units)
    assert verdict == "undecided", inputs.comparisons
    assert sum(arm.counted for arm in inputs.arms) == control[1] + treatment[1]


def in_order(units: list[UnitFigures]) -> list[UnitFigures]:
    return sorted(units, key=lambda unit: (unit.exposed_at, unit.unit[::-1]))


@pytest.mark.parametrize("arms", [2, 3, 6])
def test_the_error_is_divided_among_the_arms_and_spent_once(arms: int) -> None:
    """The ends are those of the bet at exactly this error, computed beside the rule."""
    guard = GuardPlan(name="error_rate", margin=0.05)
    plan = plan_of(arms, (guard,), stop_alpha=0.1)
    names = [arm.name for arm in plan.arms]
    experiment = experiment_of(plan, dict.fromkeys(names, 1 / arms))
    units = units_of("v0", 60, 100) + units_of("v1", 66, 100, failed=1)
    for name in names[2:]:
        units += units_of(name, 60, 100)
    inputs, _ = analysed(experiment, units)
    comparison = inputs.comparisons[0]

    pair = in_order([unit for unit in units if unit.arm in ("v0", "v1")])
    treated = np.array([unit.arm == "v1" for unit in pair])
    shares = np.full(200, 0.5)
    arrivals = Arrivals(treated, np.array([unit.outcome for unit in pair], float), shares)
    assert plan.error == 0.025
    error = 0.025 / (arms - 1)
    interval = gain_interval(arrivals, Bets(error, 1000.0))
    assert (comparison.low, comparison.high) == (interval.low, interval.high)
    stop = -lower_end(arrivals.flipped(), Bets(0.1 / (arms - 1), STOP_TUNED_FOR))
    assert comparison.stop_high == stop
    harms = Arrivals(treated, np.array([float(unit.failed) for unit in pair]), shares)
    harm = gain_interval(harms, Bets(0.025 / (arms - 1), GUARD_TUNED_FOR))
    assert (comparison.guards[0].low, comparison.guards[0].high) == (harm.low, harm.high)
    assert comparison.guards[0].broken


def test_the_second_test_of_an_agent_has_a_sixth_of_its_alpha() -> None:
    assert plan_of().model_copy(update={"spend": 2}).error == pytest.approx(0.05 / 6)


def test_strata_are_compared_each_within_itself() -> None:
    """Under a ramp the control comes early, when people are happy: pooled, it looks far better."""
    plan = plan_of(share=0.5, ramp="0.05:2")
    experiment = experiment_of(plan, {"v0": 0.95, "v1": 0.05}, {"v0": 0.5, "v1": 0.5})
    units = units_of("v0", 855, 950, 0) + units_of("v1", 45, 50, 0)
    units += units_of("v0", 150, 500, 1) + units_of("v1", 150, 500, 1)
    inputs, verdict = analysed(experiment, units)
    (comparison,) = inputs.comparisons
    assert verdict == "undecided"
    assert comparison.gain == pytest.approx(0.0, abs=1e-9)
    assert comparison.low is not None and comparison.low < 0
    assert comparison.stop_high is not None and comparison.stop_high > 0


def test_units_of_a_stratum_in_which_an_arm_had_no_share_say_nothing_of_it() -> None:
    plan = plan_of()
    experiment = experiment_of(plan, {"v0": 1.0, "v1": 0.0}, {"v0": 0.5, "v1": 0.5})
    both = units_of("v0", 60, 100, 1) + units_of("v1", 80, 100, 1)
    alone = units_of("v0", 0, 500, 0)
    assert (
        analysed(experiment, both)[0].comparisons
        == analysed(experiment, both + alone)[0].comparisons
    )


def test_a_unit_counts_once_all_arms_had_the_same_time_to_answer() -> None:
    """The thumbs down of v1 come a day late. Of the last day, nobody counts."""
    plan = plan_of()
    experiment = experiment_of(plan, {"v0": 0.5, "v1": 0.5})
    units = []
    for unit in units_of("v0", 60, 100) + units_of("v1", 60, 100):
        late = timedelta(hours=24 if unit.arm == "v1" and not unit.outcome else 0)
        units.append(unit.__class__(**(vars(unit) | {"answered_at": unit.exposed_at + late})))
    inputs, _ = analysed(experiment, units)
    assert inputs.maturation_hours == 24.0
    now = START + timedelta(minutes=500, hours=24)
    inputs = analyse(experiment, Figures(tuple(units)), now)
    assert [arm.counted for arm in inputs.arms] == [50, 50]
    assert [arm.answered for arm in inputs.arms] == [100, 100]
    assert PROMPT == 0.9

    declared = plan_of(maturation_hours=2.0)
    experiment = experiment_of(declared, {"v0": 0.5, "v1": 0.5})
    inputs = analyse(experiment, Figures(tuple(units)), START + timedelta(minutes=620))
    assert inputs.maturation_hours == 2.0
    assert [arm.counted for arm in inputs.arms] == [50, 50]


def silent(units: list[UnitFigures], count: int) -> list[UnitFigures]:
    """The units without what the last `count` of them said."""
    changed = [
        replace(unit, outcome=None, answered_at=None) for unit in units[len(units) - count :]
    ]
    return units[: len(units) - count] + changed


def test_how_much_of_a_difference_silence_may_make_by_hand() -> None:
    """69 of 100 answer in v0, 60 of 100 in v1: 9 points, of which one standard error is chance. If
    all of the others in v1 are unhappy, so much of its mean is nothing but their silence."""
    experiment = experiment_of(plan_of(), {"v0": 0.5, "v1": 0.5})
    units = silent(units_of("v0", 50, 100), 31) + silent(units_of("v1", 80, 100), 40)
    (comparison,) = analysed(experiment, units)[0].comparisons
    assert comparison.answering == (0.69, 0.6)
    means = {
        arm: np.mean(
            [unit.outcome for unit in units if unit.arm == arm and unit.outcome is not None]
        )
        for arm in ("v0", "v1")
    }
    missing = (0.09 - math.sqrt(0.645 * 0.355 * 2 / 100)) / 0.69
    assert comparison.silent_gain == pytest.approx(missing * means["v1"])
    assert comparison.silent_loss == pytest.approx(missing * (1 - means["v1"]))
    mirrored = silent(units_of("v0", 50, 100), 40) + silent(units_of("v1", 80, 100), 31)
    (comparison,) = analysed(experiment, mirrored)[0].comparisons
    happy = np.mean([unit.outcome for unit in mirrored[:60]])
    assert comparison.silent_gain == pytest.approx(missing * (1 - happy))
    assert comparison.silent_loss == pytest.approx(missing * happy)


def test_a_ratio_is_not_decided_by_means_of_units() -> None:
    """Half of the people of v1 say ten times as much as the others, and are unhappy. By units v1
    is far better, by statements it is not."""
    few = units_of("v0", 18, 60) + units_of("v1", 30, 30)
    few += units_of("v1", 12, 30, weight=10.0, stratum=1)
    plan = plan_of(ratio=True, min_units=50)
    experiment = experiment_of(plan, {"v0": 0.5, "v1": 0.5}, {"v0": 0.5, "v1": 0.5})
    inputs, verdict = analysed(experiment, few)
    (comparison,) = inputs.comparisons
    assert verdict == "undecided"
    assert (comparison.method, comparison.low, comparison.high) == ("asymptotic", None, None)
    assert comparison.stop_high is None
    many = units_of("v0", 60, 200) + units_of("v1", 200, 200)
    (comparison,) = analysed(experiment, many)[0].comparisons
    assert comparison.low is not None and comparison.low > 0.4


def test_a_ratio_of_which_no_bad_outcome_was_seen_is_not_certain() -> None:
    plan = plan_of(ratio=True, min_units=100)
    experiment = experiment_of(plan, {"v0": 0.95, "v1": 0.05})
    _, verdict = analysed(experiment, units_of("v0", 1881, 1900) + units_of("v1", 100, 100))
    assert verdict == "undecided"


def test_best_arm_mode_shares_its_error_among_the_arms_that_may_look_best() -> None:
    """Garivier and Kaufmann's threshold: log((arms - 1) (log t + 1) / alpha)."""
    counts, variances = np.full(6, 100.0), np.full(6, 0.25)
    union = math.log(5 * (math.log(600) + 1) / 0.05)
    for factor, is_over in ((0.99, False), (1.01, True)):
        gap = math.sqrt(2 * 0.005 * union * factor)
        means = np.array([0.5 + gap, *[0.5] * 5])
        assert evidence(counts, means, variances) == pytest.approx(union * factor)
        assert is_decided(counts, means, variances, 0.05) == is_over


def test_best_arm_mode_promotes_only_what_is_shown_to_be_better_than_the_control() -> None:
    plan = plan_of(3, mode="best-arm")
    means = {"v0": 0.4, "v1": 0.9, "v2": 0.4}
    arms = tuple(arm.model_copy(update={"mean": means[arm.name]}) for arm in inputs_of(plan).arms)
    first, second = comparison_of("v1"), comparison_of("v2", low=-0.1)
    inputs = inputs_of(plan, first, second, arms=arms)
    assert decide(plan, inputs).arm == "v1"
    open_ = first.model_copy(update={"low": 0.0})
    assert decide(plan, inputs_of(plan, open_, second, arms=arms)).verdict == "undecided"


def test_best_arm_mode_does_not_take_ten_good_outcomes_for_certain() -> None:
    plan = plan_of(2, mode="best-arm")
    counts = {"v0": (190, 0.9, 0.09), "v1": (10, 1.0, 0.0)}
    arms = tuple(
        ArmFigures(
            name=name, exposed=count, answered=count, counted=count, mean=mean, variance=variance
        )
        for name, (count, mean, variance) in counts.items()
    )
    inputs = inputs_of(plan, comparison_of(), arms=arms)
    assert decide(plan, inputs).verdict == "undecided"


def test_the_hold_out_is_taken_from_all_arms_alike() -> None:
    plan = plan_of(3, hold_out=0.4)
    assignment = Assignment.of(experiment_of(plan, {"v0": 0.5, "v1": 0.25, "v2": 0.25}))
    drawn = Counter(assignment.draw(f"user-{number}").arm for number in range(8000))
    expected = {"v0": 2400, "v1": 1200, "v2": 1200, None: 3200}
    for arm, count in expected.items():
        assert abs(drawn[arm] - count) < 4 * math.sqrt(count), drawn
