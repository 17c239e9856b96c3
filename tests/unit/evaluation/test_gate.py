"""The gate's rules as properties over all inputs."""

import re

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from thumbwheel.evaluation import compare, guards
from thumbwheel.evaluation.gate import decide, inputs_of
from thumbwheel.evaluation.policy import GateInputs, GatePolicy, GateVerdict, Look
from thumbwheel.evaluation.spending import look_number
from thumbwheel.evaluation.types import (
    ANCHOR_NLL,
    ANCHOR_TASKS,
    EOS,
    FORMAT,
    LENGTH,
    NLL,
    NLL_LIKED,
    SUCCESS,
    Evaluation,
    EvaluationConfig,
    Guard,
    HeldOutCase,
    RecordedAnswer,
    Spread,
)
from thumbwheel.models.types import Basis
from thumbwheel.stats.multiple import look_level
from thumbwheel.stats.paired import no_change_halfwidth
from thumbwheel.training.base_defaults import REPLAY_WEIGHT

RATE = st.floats(0, 1)
GUARDS = st.builds(
    Guard,
    name=st.sampled_from([EOS, FORMAT, NLL, NLL_LIKED, ANCHOR_NLL, LENGTH]),
    before=st.none() | st.floats(0, 50),
    after=st.none() | st.floats(0, 50),
    n=st.integers(0, 1000),
    low=st.none() | st.floats(-50, 0),
    high=st.none() | st.floats(0, 50),
    chance=st.none() | st.floats(1, 12),
)
INPUTS = st.builds(
    GateInputs,
    basis=st.sampled_from(Basis),
    fresh=st.booleans(),
    measure=st.just("success"),
    before=RATE,
    after=RATE,
    gain=st.floats(-1, 1),
    low=st.floats(-1, 1),
    level=st.just(0.95),
    clusters=st.integers(0, 2000),
    reads=st.integers(1, 5),
    guards=st.lists(GUARDS, max_size=4).map(tuple),
    tainted=st.booleans(),
    judges=st.sampled_from([(), ("json_fields",), ("rm1",), ("rm1", "json_fields")]),
    optimised=st.sampled_from([(), ("reward_model", "rm1")]),
)
LENIENCE = st.sampled_from(["reject", "canary", "allow"])
POLICIES = st.builds(
    GatePolicy,
    min_cases=st.integers(2, 500),
    min_guard=st.integers(1, 100),
    margin_nll=st.floats(0, 2),
    margin_eos=RATE,
    margin_format=RATE,
    max_growth=st.floats(1, 5),
    relative_nats=RATE,
    near_chance=st.floats(0, 0.9),
    open_guard=LENIENCE,
    unmeasured_guard=LENIENCE,
)
ORDER = [GateVerdict.REJECTED, GateVerdict.CANARY, GateVerdict.APPROVED]


def passing(**changes):
    values = {
        "basis": Basis.GOLD,
        "fresh": True,
        "measure": "success",
        "before": 0.6,
        "after": 0.8,
        "gain": 0.2,
        "low": 0.15,
        "level": 0.95,
        "clusters": 600,
        "reads": 1,
        "guards": (),
    }
    return GateInputs(**(values | changes))


def guard(name, before, after, n=600, within=0.004, chance=None):
    """A guard of `n` cases, each its own group, whose change is known to +-`within`."""
    change = after - before
    spread = Spread(
        centre=change, error=within / 2, degrees=n - 1, limit=None if name in (NLL, LENGTH) else 1.0
    )
    ends = {"low": change - within, "high": change + within}
    return Guard(name=name, before=before, after=after, n=n, spread=spread, chance=chance, **ends)


@pytest.mark.parametrize(
    "lost",
    [
        guard(ANCHOR_TASKS, 0.42, 0.05, n=114, within=0.03),
        guard(ANCHOR_NLL, 3.7, 4.52, n=50, within=0.1),
    ],
)
def test_who_lost_general_skill_is_told_why_and_what_to_do(lost):
    decision = decide(passing(guards=(lost,)), GatePolicy())
    assert decision.verdict is GateVerdict.REJECTED
    assert decision.reasons[0].startswith(f"guard {lost.name}")
    (hint,) = [reason for reason in decision.reasons if "--replay-weight" in reason]
    assert "--learning-rate" in hint and "overwrote general skill" in hint
    advised = float(re.search(r"--replay-weight ([\d.]+)", hint)[1])
    assert advised > REPLAY_WEIGHT


@pytest.mark.parametrize(
    "guards",
    [
        (guard(ANCHOR_TASKS, 0.42, 0.42, n=114, within=0.03),),
        (guard(EOS, 0.9, 0.2),),
        (guard(ANCHOR_TASKS, 0.02, 0.0, n=114, within=0.03),),
    ],
)
def test_others_are_not_told_of_general_skill(guards):
    decision = decide(passing(guards=guards), GatePolicy())
    assert not any("--replay-weight" in reason for reason in decision.reasons)


# Inputs drawn at random are seldom so good that one reason alone decides.
@example(passing(low=0.0), GatePolicy())
@example(passing(low=-0.005), GatePolicy())
@example(passing(basis=Basis.FEEDBACK), GatePolicy())
@example(passing(fresh=False), GatePolicy())
@example(passing(tainted=True), GatePolicy())
@example(passing(judges=("rm1",), optimised=("reward_model", "rm1")), GatePolicy())
@given(INPUTS, POLICIES)
def test_never_approves_without_a_lower_bound_above_zero(inputs, policy):
    verdict = decide(inputs, policy).verdict
    if inputs.low <= 0 or inputs.clusters < policy.min_cases or inputs.tainted:
        assert verdict is GateVerdict.REJECTED
    if inputs.judges == ("rm1",) and inputs.optimised:
        assert verdict is GateVerdict.REJECTED
    if inputs.basis is Basis.FEEDBACK or not inputs.fresh:
        assert verdict is not GateVerdict.APPROVED
    assert decide(inputs, policy).reasons


@given(INPUTS, POLICIES, st.floats(0, 1), st.integers(0, 500))
def test_more_evidence_never_lowers_the_verdict(inputs, policy, more, cases):
    stronger = inputs.model_copy(
        update={"low": min(1.0, inputs.low + more), "clusters": inputs.clusters + cases}
    )
    assert ORDER.index(decide(stronger, policy).verdict) >= ORDER.index(
        decide(inputs, policy).verdict
    )


@given(INPUTS, POLICIES, GUARDS)
def test_another_guard_never_raises_the_verdict(inputs, policy, another):
    watched = inputs.model_copy(update={"guards": (*inputs.guards, another)})
    assert ORDER.index(decide(watched, policy).verdict) <= ORDER.index(
        decide(inputs, policy).verdict
    )


@given(INPUTS, POLICIES)
def test_a_wider_margin_never_lowers_the_verdict(inputs, policy):
    wide = policy.model_copy(
        update={
            "margin_nll": policy.margin_nll + 1,
            "margin_eos": 1.0,
            "margin_format": 1.0,
            "max_growth": policy.max_growth + 1,
        }
    )
    assert ORDER.index(decide(inputs, wide).verdict) >= ORDER.index(decide(inputs, policy).verdict)


@given(INPUTS, POLICIES)
def test_json_and_back_decides_the_same(inputs, policy):
    again = decide(
        GateInputs(**inputs.model_dump(mode="json")), GatePolicy(**policy.model_dump(mode="json"))
    )
    assert again == decide(inputs, policy)


def test_a_gain_on_gold_is_approved():
    held = (
        guard(EOS, 1.0, 0.99),
        guard(FORMAT, 0.99, 0.99),
        guard(NLL, 0.5, 0.6),
        guard(LENGTH, 12, 15),
    )
    decision = decide(passing(guards=held), GatePolicy())
    assert decision.verdict is GateVerdict.APPROVED
    gained = "success gains +20 points, at least +15 points with 95 % confidence"
    assert decision.reasons[0] == gained


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"low": 0.0}, "zero has to be excluded"),
        ({"low": -0.1, "gain": -0.02}, "(−2 points)"),
        ({"clusters": 29}, "29 groups"),
        ({"tainted": True}, "erased"),
        ({"guards": (guard(EOS, 1.0, 0.94),)}, EOS),
        ({"guards": (guard(FORMAT, 1.0, 0.5),)}, "well-formed"),
        ({"guards": (guard(NLL, 0.5, 0.9),)}, "nats"),
        ({"guards": (guard(LENGTH, 10, 21),)}, "factor"),
        ({"guards": (guard(LENGTH, 21, 10),)}, "factor"),
    ],
)
def test_what_rejects_is_named(changes, word):
    decision = decide(passing(**changes), GatePolicy())
    assert decision.verdict is GateVerdict.REJECTED
    assert any(word in reason for reason in decision.reasons)


@pytest.mark.parametrize(
    "changes",
    [{"basis": Basis.FEEDBACK}, {"fresh": False}, {"basis": Basis.FEEDBACK, "fresh": False}],
)
def test_feedback_and_ranking_reach_a_canary_at_best(changes):
    decision = decide(passing(**changes), GatePolicy())
    assert decision.verdict is GateVerdict.CANARY
    assert sum("canary only" in reason for reason in decision.reasons) == len(changes)


def test_an_unmeasured_guard_is_named_and_decides_nothing_unless_the_policy_says_so():
    thin = (guard(NLL, 0.1, 0.2, n=3), Guard(name=FORMAT, before=None, after=None, n=0))
    decision = decide(passing(guards=thin), GatePolicy())
    assert decision.verdict is GateVerdict.APPROVED
    assert [reason for reason in decision.reasons if "not measured" in reason] == [
        "guard nll_good: 0.1 -> 0.2 nats a token on 3 items, not measured (3 of at least 20 "
        "groups)",
        "guard format_rate: not measured (0 of at least 20 groups)",
    ]
    assert (
        decide(passing(guards=thin), GatePolicy(unmeasured_guard="reject")).verdict
        is GateVerdict.REJECTED
    )


@pytest.mark.parametrize(
    "fallen",
    [
        guard(NLL, 0.1, 9.0, n=19),
        guard(FORMAT, 1.0, 0.0, n=19),
        guard(LENGTH, 10.0, 300.0, n=5),
        Guard(name=EOS, before=1.0, after=0.0, n=50),  # many items, one group: no interval
    ],
)
def test_a_guard_that_fell_beyond_its_margin_unmeasured_allows_a_canary_at_most(fallen):
    decision = decide(passing(guards=(fallen,)), GatePolicy())
    assert decision.verdict is GateVerdict.CANARY
    (reason,) = (reason for reason in decision.reasons if fallen.name in reason)
    assert reason.startswith("canary only") and "what was seen is" in reason
    assert (
        decide(passing(guards=(fallen,)), GatePolicy(unmeasured_guard="allow")).verdict
        is GateVerdict.CANARY
    )
    assert (
        decide(passing(guards=(fallen,)), GatePolicy(unmeasured_guard="reject")).verdict
        is GateVerdict.REJECTED
    )


@pytest.mark.parametrize(
    ("measured", "state"),
    [
        (
            guard(EOS, 1.0, 1.0, within=0.04),
            "ok",
        ),  # the whole interval lies within the margin of 0.05
        (
            guard(EOS, 1.0, 0.99, within=0.045),
            "open",
        ),  # nothing bad was seen, and 0.055 is not excluded
        (guard(EOS, 1.0, 0.94, within=0.001), "worse"),
        (guard(EOS, 0.8, 1.0, within=0.01), "ok"),  # better is no loss
        (guard(NLL, 0.5, 0.7, within=0.2), "open"),
        (guard(NLL, 0.5, 0.2, within=0.4), "ok"),
        (guard(LENGTH, 10, 17, within=4), "open"),
        (guard(LENGTH, 10, 6, within=2), "open"),
        (guard(LENGTH, 10, 4, within=1), "worse"),
        (guard(LENGTH, 10, 12, within=3), "ok"),
        (
            guard(EOS, 1.0, 1.0, n=40, within=0.066),
            "not measured",
        ),  # too few for an interval; what was seen is no loss
        (guard(EOS, 1.0, 0.9, n=40, within=0.066), "worse"),
        (guard("mine", 1.0, 0.0), "ok"),  # without a margin it is shown and decides nothing
        (guard(EOS, 1.0, 0.96, n=19), "not measured"),
        (guard(EOS, 1.0, 0.0, n=19), "not measured, and seen beyond the margin"),
        (
            Guard(name=EOS, before=1.0, after=0.96, n=50),
            "not measured",
        ),  # without an interval nothing is known
    ],
)
def test_a_guard_holds_when_its_interval_lies_within_the_margin(measured, state):
    decision, words = guards.guard_state(measured, GatePolicy())
    assert (str(decision), bool(words)) == (state, state != "ok")
    expected = {
        "ok": GateVerdict.APPROVED,
        "open": GateVerdict.CANARY,
        "worse": GateVerdict.REJECTED,
        "not measured": GateVerdict.APPROVED,
    }
    assert decide(passing(guards=(measured,)), GatePolicy()).verdict is expected.get(
        state, GateVerdict.CANARY
    )


UNIFORM = 8.3178  # nats a token of a uniform guess among 4,096 tokens


@pytest.mark.parametrize(
    ("measured", "state"),
    [
        (
            guard(ANCHOR_NLL, 7.7, 8.3, n=24, within=0.3, chance=UNIFORM),
            "near chance",
        ),  # a base that never knew general text
        (guard(ANCHOR_NLL, 7.7, 8.3, n=24, chance=UNIFORM), "ok"),  # by a tenth of its nats
        (
            guard(ANCHOR_NLL, 11.4, 13.0, n=24, chance=UNIFORM),
            "near chance",
        ),  # worse than a uniform guess
        (guard(ANCHOR_NLL, 7.7, 7.8, n=24, chance=UNIFORM), "ok"),
        (guard(ANCHOR_NLL, 7.7, 8.9, n=5, chance=UNIFORM), "near chance"),  # unmeasured besides
        (guard(ANCHOR_NLL, 2.7, 3.1, chance=11.9), "worse"),  # a base that knows it
        (guard(ANCHOR_NLL, 2.7, 2.95, chance=11.9), "ok"),  # by a tenth of its nats
        (guard(ANCHOR_NLL, 5.0, 5.4, chance=UNIFORM), "ok"),
        (guard(ANCHOR_NLL, 5.0, 5.6, chance=UNIFORM), "worse"),
        (guard(NLL_LIKED, 0.5, 0.9, chance=UNIFORM), "worse"),  # what people liked, forgotten
        (guard(NLL_LIKED, 7.7, 9.0), "worse"),  # chance is not known
        (guard(ANCHOR_TASKS, 0.05, 0.04), "ok"),
        (guard(ANCHOR_TASKS, 0.05, 0.0), "near chance"),
        (guard(ANCHOR_TASKS, 0.05, 0.0, within=0.11), "near chance"),
        (guard(ANCHOR_TASKS, 0.12, 0.02), "worse"),  # more than half of the little that it solved
        (guard(ANCHOR_TASKS, 0.9, 0.82), "ok"),
        (guard(EOS, 0.04, 0.0, within=0.06), "near chance"),
    ],
)
def test_a_guard_asks_for_no_more_than_what_runs_today_can_do(measured, state):
    guard_state, words = guards.guard_state(measured, GatePolicy())
    assert (str(guard_state), bool(words)) == (state, state != "ok")
    decision = decide(passing(guards=(measured,)), GatePolicy())
    assert decision.verdict is (GateVerdict.REJECTED if state == "worse" else GateVerdict.APPROVED)
    assert any(measured.name in reason for reason in decision.reasons) == (
        state != "ok"
    )  # it is shown all the same


def test_few_items_right_may_be_more_than_chance():
    """Ten of 114 tasks, then none: below a tenth, but a base that solves one in seven shows ten now
    and then. A canary, no more."""
    decision = decide(passing(guards=(guard(ANCHOR_TASKS, 10 / 114, 0.0, n=114),)), GatePolicy())
    assert decision.verdict is GateVerdict.CANARY and any(
        "something to lose is open" in reason for reason in decision.reasons
    )
    assert (
        decide(passing(guards=(guard(ANCHOR_TASKS, 2 / 114, 0.0, n=114),)), GatePolicy()).verdict
        is GateVerdict.APPROVED
    )


def test_the_owner_says_where_chance_begins_and_how_far_margins_stretch():
    unknown = guard(ANCHOR_NLL, 7.7, 8.3, chance=UNIFORM)
    assert str(guards.guard_state(unknown, GatePolicy(near_chance=0))[0]) == "ok"  # a tenth of 7.7
    assert (
        str(guards.guard_state(unknown, GatePolicy(near_chance=0, relative_nats=0))[0]) == "worse"
    )
    assert (
        str(guards.guard_state(guard(ANCHOR_TASKS, 0.4, 0.0), GatePolicy(margin_tasks=1.0))[0])
        == "ok"
    )


def test_what_people_liked_is_guarded_apart_from_what_they_wrote():
    """Corrections get likelier and hide, in one mean, that the app's own good answers were
    forgotten."""

    def logged(name, before, after, liked):
        row = RecordedAnswer(
            name, name, [{"role": "user", "content": name}], None, "answer", True, liked=liked
        )
        return compare.AnswerLikelihoods(row, before, after, 1)

    written = [logged(f"w{n}", -6.0, -1.0, False) for n in range(60)]
    liked = [logged(f"l{n}", -0.5, -2.0, True) for n in range(60)]
    together, own_answers = (
        compare.nll_guard([*written, *liked], 0.95),
        compare.liked_guard([*written, *liked], 0.95),
    )
    assert (together.n, own_answers.n, own_answers.name) == (120, 60, NLL_LIKED)
    assert guards.guard_state(together, GatePolicy())[0] is guards.GuardState.HOLDS
    assert guards.guard_state(own_answers, GatePolicy())[0] is guards.GuardState.WORSE


def test_more_cases_in_the_same_groups_never_lower_a_verdict():
    """An end token on every answer, before and after: forty groups are too few for the margin,
    however many cases are in each."""
    for size in (1, 2, 25):
        clusters = [number for number in range(40) for _ in range(size)]
        guarded = compare.guard(
            EOS, compare.measure(EOS, [1.0] * len(clusters), [1.0] * len(clusters), clusters, 0.95)
        )
        assert str(guards.guard_state(guarded, GatePolicy())[0]) == "not measured"
    assert str(guards.guard_state(guarded, GatePolicy(min_interval=30))[0]) == "open"  # by choice
    long = [1] * 39 + [4000]  # one answer of many tokens: forty groups all the same, and far worse
    guarded = compare.nll_guard(
        [
            compare.AnswerLikelihoods(
                RecordedAnswer(
                    str(index),
                    str(index),
                    [{"role": "user", "content": str(index)}],
                    None,
                    "a",
                    True,
                ),
                -1.0 * size,
                -9.0 * size,
                size,
            )
            for index, size in enumerate(long)
        ],
        0.95,
    )
    assert str(guards.guard_state(guarded, GatePolicy())[0]) == "worse" and guarded.clusters == 40
    for many, state in ((54, "not measured"), (60, "ok")):
        guarded = compare.guard(
            EOS, compare.measure(EOS, [1.0] * many, [1.0] * many, range(many), 0.95)
        )
        assert str(guards.guard_state(guarded, GatePolicy())[0]) == state


@given(st.integers(3, 400), st.integers(1, 30), st.sampled_from([0.9, 0.95, 0.999]))
def test_the_width_of_no_change(groups, size, level):
    clusters = [number for number in range(groups) for _ in range(size)]
    measured = compare.measure(EOS, [1.0] * len(clusters), [1.0] * len(clusters), clusters, level)
    assert measured.high == pytest.approx(min(1.0, no_change_halfwidth(groups, level)))


@pytest.mark.slow
def test_telling_good_from_bad_rests_on_the_rarer_kind():
    """78 good answers and 2 bad ones, ranked at random on both sides: two groups know next to
    nothing."""
    random = np.random.default_rng(0)
    excluded = 0
    for _ in range(200):
        scores = random.normal(size=(80, 2))
        values = [
            RecordedAnswer(
                str(number),
                str(number),
                [{"role": "user", "content": "q"}],
                None,
                "a",
                number >= 2,
                label=True,
            )
            for number in range(80)
        ]
        logged = [
            compare.AnswerLikelihoods(row, *map(float, pair), 1)
            for row, pair in zip(values, scores, strict=True)
        ]
        measures = compare.preferences(logged, 0.95)[0]
        assert (measures.clusters, measures.spread.degrees, measures.n) == (2, 1.0, 80)
        excluded += measures.low > 0
    assert excluded <= 10  # 16 by the degrees of all groups


def test_an_open_guard_does_what_the_policy_says():
    unsure = passing(guards=(guard(FORMAT, 1.0, 0.99, within=0.1),))
    assert [
        decide(unsure, GatePolicy(open_guard=text)).verdict
        for text in ("reject", "canary", "allow")
    ] == ORDER
    (reason,) = (text for text in decide(unsure, GatePolicy()).reasons if FORMAT in text)
    assert "canary only" in reason and "between −11 points and +9 points" in reason


def test_the_reward_model_that_was_optimised_approves_nothing_alone():
    trained = {"optimised": ("reward_model", "rm1")}
    for optimised in (("rm1",), trained["optimised"]):
        alone = decide(passing(judges=("rm1",), optimised=optimised), GatePolicy())
        assert alone.verdict is GateVerdict.REJECTED and "trained to please" in alone.reasons[0]
    partly = decide(passing(judges=("rm1", "json_fields"), **trained), GatePolicy())
    assert partly.verdict is GateVerdict.CANARY and "rm1 judged a part" in partly.reasons[1]
    assert decide(passing(judges=("rm2",), **trained), GatePolicy()).verdict is GateVerdict.APPROVED
    assert (
        decide(passing(judges=("json_fields",), **trained), GatePolicy()).verdict
        is GateVerdict.APPROVED
    )


def look(name, *rows):
    return Look(("live", name), "success", frozenset(rows))


def test_looks_at_the_same_rows_are_counted_over_all_candidates():
    first, second, third = look("v1", "a", "b"), look("v2", "a", "b"), look("v3", "b", "c")
    assert look_number(first, []) == 1
    assert look_number(second, [first]) == 2
    assert look_number(third, [first, second]) == 3  # b was read twice
    assert look_number(look("v4", "c", "d"), [first, second, third]) == 2
    assert look_number(look("v5", "d", "e"), [first, second, third]) == 1  # fresh rows cost nothing
    assert (
        look_number(first, [first, second, third]) == 1
    )  # the same question again is the first look
    assert (
        look_number(look("v1", "a", "b", "c"), [first]) == 2
    )  # the same candidate on other rows is another one
    assert (
        look_number(look("v6", "z"), [look("v0")]) == 2
    )  # one of which it is not known what it read


def test_the_level_of_a_decision_follows_the_number_of_looks():
    """The same answers, looked at for the first, second and twentieth time: each look asks for
    more, and the last one refuses."""
    pairs = [
        compare.Pair(
            HeldOutCase(str(n), str(n), "", [], None, None, None, {}), float(n >= 15), float(n >= 4)
        )
        for n in range(100)
    ]
    primary = compare.success(SUCCESS, pairs, 0.95)
    values = {
        "id": "evl",
        "agent": "a",
        "candidate_id": "c",
        "candidate": "v1",
        "against_id": "b",
        "against": "v0",
        "basis": Basis.GOLD,
        "fresh": True,
        "primary": primary,
        "preferences": (),
        "guards": (),
        "slices": (),
        "examples": (),
        "suite": "success",
        "detectable": None,
        "dropped": {},
        "notes": (),
        "rows": "",
        "key": "",
        "config": EvaluationConfig(),
    }
    looks = [inputs_of(Evaluation(**values, reads=reads), GatePolicy()) for reads in (1, 2, 20)]
    assert [inputs.level for inputs in looks] == [look_level(0.05, reads) for reads in (1, 2, 20)]
    assert [inputs.low for inputs in looks] == [
        primary.spread.around(primary.gain).interval(inputs.level).low for inputs in looks
    ]
    assert looks[0].low > looks[1].low > 0 > looks[2].low
    assert [decide(inputs, GatePolicy()).verdict for inputs in looks] == [
        GateVerdict.APPROVED,
        GateVerdict.APPROVED,
        GateVerdict.REJECTED,
    ]
    assert inputs_of(Evaluation(**values, reads=1), GatePolicy(alpha=0.01)).level == look_level(
        0.01, 1
    )


@given(st.lists(st.frozensets(st.sampled_from("abcdef"), min_size=1), max_size=25))
def test_no_row_takes_part_in_decisions_that_err_with_more_than_alpha_together(reads):
    seen, spent = [], {}
    for index, rows in enumerate(reads):
        new_look = look(f"v{index}", *rows)
        level = look_level(0.05, look_number(new_look, seen))
        seen.append(new_look)
        for row in rows:
            spent[row] = spent.get(row, 0.0) + (1 - level) / 2
    assert all(total < 0.05 for total in spent.values())
