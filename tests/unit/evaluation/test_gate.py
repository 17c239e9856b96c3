"""The gate's rules as properties over all inputs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thumbwheel.evaluation.gate import decide, gate_level
from thumbwheel.evaluation.types import EOS, FORMAT, LENGTH, NLL, GateInputs, GatePolicy, Guard, Verdict
from thumbwheel.models.types import Basis

RATE = st.floats(0, 1)
GUARDS = st.builds(
    Guard,
    name=st.sampled_from([EOS, FORMAT, NLL, LENGTH]),
    before=st.none() | st.floats(0, 50),
    after=st.none() | st.floats(0, 50),
    n=st.integers(0, 1000),
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
)
POLICIES = st.builds(
    GatePolicy, min_cases=st.integers(2, 500), min_guard=st.integers(1, 100), margin_nll=st.floats(0, 2), margin_eos=RATE,
    margin_format=RATE, max_growth=st.floats(1, 5),
)  # fmt: skip
ORDER = [Verdict.REJECTED, Verdict.CANARY, Verdict.APPROVED]


def passing(**changes):
    values = {
        "basis": Basis.GOLD, "fresh": True, "measure": "success", "before": 0.6, "after": 0.8, "gain": 0.2, "low": 0.15, "level": 0.95,
        "clusters": 600, "reads": 1, "guards": (),
    }  # fmt: skip
    return GateInputs(**(values | changes))


def guard(name, before, after, n=600):
    return Guard(name=name, before=before, after=after, n=n)


@given(INPUTS, POLICIES)
def test_never_approves_without_a_lower_bound_above_zero(inputs, policy):
    verdict = decide(inputs, policy).verdict
    if inputs.low <= 0 or inputs.clusters < policy.min_cases or inputs.tainted:
        assert verdict is Verdict.REJECTED
    if inputs.basis is Basis.FEEDBACK or not inputs.fresh:
        assert verdict is not Verdict.APPROVED
    assert decide(inputs, policy).reasons


@given(INPUTS, POLICIES, st.floats(0, 1), st.integers(0, 500))
def test_more_evidence_never_lowers_the_verdict(inputs, policy, more, cases):
    stronger = inputs.model_copy(update={"low": min(1.0, inputs.low + more), "clusters": inputs.clusters + cases})
    assert ORDER.index(decide(stronger, policy).verdict) >= ORDER.index(decide(inputs, policy).verdict)


@given(INPUTS, POLICIES, GUARDS)
def test_another_guard_never_raises_the_verdict(inputs, policy, another):
    watched = inputs.model_copy(update={"guards": (*inputs.guards, another)})
    assert ORDER.index(decide(watched, policy).verdict) <= ORDER.index(decide(inputs, policy).verdict)


@given(INPUTS, POLICIES)
def test_a_wider_margin_never_lowers_the_verdict(inputs, policy):
    wide = policy.model_copy(
        update={"margin_nll": policy.margin_nll + 1, "margin_eos": 1.0, "margin_format": 1.0, "max_growth": policy.max_growth + 1}
    )
    assert ORDER.index(decide(inputs, wide).verdict) >= ORDER.index(decide(inputs, policy).verdict)


@given(INPUTS, POLICIES)
def test_json_and_back_decides_the_same(inputs, policy):
    again = decide(GateInputs(**inputs.model_dump(mode="json")), GatePolicy(**policy.model_dump(mode="json")))
    assert again == decide(inputs, policy)


def test_a_gain_on_gold_is_approved():
    held = (guard(EOS, 1.0, 0.99), guard(FORMAT, 0.99, 0.99), guard(NLL, 0.5, 0.6), guard(LENGTH, 12, 15))
    found = decide(passing(guards=held), GatePolicy())
    assert found.verdict is Verdict.APPROVED
    assert "+0.1500" in found.reasons[0]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"low": 0.0}, "zero has to be excluded"),
        ({"low": -0.1, "gain": -0.02}, "-0.0200"),
        ({"clusters": 29}, "29 groups"),
        ({"tainted": True}, "erased"),
        ({"guards": (guard(EOS, 1.0, 0.97),)}, EOS),
        ({"guards": (guard(FORMAT, 1.0, 0.5),)}, "well-formed"),
        ({"guards": (guard(NLL, 0.5, 0.9),)}, "nats"),
        ({"guards": (guard(LENGTH, 10, 21),)}, "factor"),
        ({"guards": (guard(LENGTH, 21, 10),)}, "factor"),
    ],
)
def test_what_rejects_is_named(changes, word):
    found = decide(passing(**changes), GatePolicy())
    assert found.verdict is Verdict.REJECTED
    assert any(word in reason for reason in found.reasons)


@pytest.mark.parametrize("changes", [{"basis": Basis.FEEDBACK}, {"fresh": False}, {"basis": Basis.FEEDBACK, "fresh": False}])
def test_feedback_and_ranking_reach_a_canary_at_best(changes):
    found = decide(passing(**changes), GatePolicy())
    assert found.verdict is Verdict.CANARY
    assert sum("canary only" in reason for reason in found.reasons) == len(changes)


def test_an_unmeasured_guard_is_named_and_decides_nothing():
    found = decide(passing(guards=(guard(NLL, 0.1, 9.0, n=3), Guard(name=FORMAT, before=None, after=None, n=0))), GatePolicy())
    assert found.verdict is Verdict.APPROVED
    assert [reason for reason in found.reasons if "not measured" in reason] == [
        "guard nll_good: not measured (3 of at least 20 items)", "guard format_rate: not measured (0 of at least 20 items)",
    ]  # fmt: skip


def test_all_reads_together_err_less_than_twice():
    assert gate_level(0.95, 1) == 0.95
    assert sum(1 - gate_level(0.95, read) for read in range(1, 30)) < 0.1
