"""Decisions in a home: declared, signed, replayed, counted; and simulated ones, which the gate gets
wrong no more often than it says."""

import json
from itertools import count

import numpy as np
import pytest
import sqlalchemy as sa

from tests.models.tiny_models import record
from thumbwheel.core import ids
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import Conflict, InputError
from thumbwheel.core.seal import make_seal
from thumbwheel.db import schema
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation import compare, store
from thumbwheel.evaluation.compare import Pair
from thumbwheel.evaluation.declaration import declarations, declare, policy_of
from thumbwheel.evaluation.evaluate import store_evaluation
from thumbwheel.evaluation.gate import decide, gate, inputs_of, replay
from thumbwheel.evaluation.policy import GatePolicy, GateVerdict, Look
from thumbwheel.evaluation.secondary_tests import secondary_tests
from thumbwheel.evaluation.spending import look_number, row_keys
from thumbwheel.evaluation.types import (
    EOS,
    SUCCESS,
    Evaluation,
    EvaluationConfig,
    Guard,
    HeldOutCase,
    Spread,
    SuiteResult,
)
from thumbwheel.models import versions
from thumbwheel.models.types import Agent, Basis, VersionState
from thumbwheel.stats.rates import clopper_pearson

AGENT = "support"
NUMBERS = count()


def candidate(ws, tmp_path, **run):
    base = versions.ensure_base(ws, AGENT, "/models/base", "ab" * 32)
    adapter = tmp_path / f"adapter{next(NUMBERS)}"
    adapter.mkdir()
    (adapter / "adapter_model.safetensors").write_bytes(adapter.name.encode())
    version = record(ws, schema.runs, AGENT, dataset_id=record(ws, schema.datasets, AGENT), **run)
    return versions.add_candidate(ws, base, version, adapter)


def case(number, group=None):
    return HeldOutCase(
        str(number), str(number if group is None else group), "", [], None, None, None, {}
    )


def judged(before, after, groups=None, reads=1, level=0.95, **changes):
    """An evaluation of answers that were right or wrong before and after."""
    cases = [
        HeldOutCase(
            str(number),
            str(number if groups is None else groups[number]),
            "",
            [],
            None,
            None,
            None,
            {},
        )
        for number in range(len(before))
    ]
    primary = compare.success(
        SUCCESS,
        [Pair(*row) for row in zip(cases, map(float, before), map(float, after), strict=True)],
        level,
    )
    values = {
        "id": f"evl_{next(NUMBERS)}",
        "agent": AGENT,
        "candidate_id": "",
        "candidate": "v1",
        "against_id": "",
        "against": "v0",
        "basis": Basis.GOLD,
        "fresh": True,
        "primary": primary,
        "preferences": (),
        "guards": (),
        "slices": (),
        "examples": (),
        "reads": reads,
        "suite": "success",
        "detectable": compare.detectable(primary),
        "dropped": {},
        "notes": (),
        "rows": "",
        "key": "",
        "config": EvaluationConfig(),
    }
    return Evaluation(**(values | changes))


def stored(ws, version, gains=40, n=60, **changes):
    """An evaluation in the home in which `gains` of `n` cases became right."""
    base = versions.versions(ws, Agent.named(AGENT))[0]
    evaluation = judged(
        [0] * n,
        [1] * gains + [0] * (n - gains),
        candidate_id=version.id,
        candidate=version.name,
        against_id=base.id,
        **changes,
    )
    evaluation = evaluation.model_copy(update={"key": evaluation.id})
    return store_evaluation(ws, evaluation)


def test_a_decision_waits_for_judgements_that_may_be_made_yet(empty_ws, tmp_path):
    version = candidate(empty_ws, tmp_path)
    unfinished = stored(empty_ws, version, blocked={"the server is down": 3})
    with pytest.raises(
        Conflict, match="3 judgements were blocked, and may be made yet: the server is down"
    ):
        gate(empty_ws, unfinished)
    assert versions.by_id(empty_ws, version.id).state is VersionState.CANDIDATE
    declare(empty_ws, Agent.named(AGENT), {"blocked": "allow"})
    decision = gate(empty_ws, unfinished).decision
    assert (
        decision.verdict is GateVerdict.CANARY
        and "3 judgements were blocked and are missing" in decision.reasons[1]
    )


def test_a_decision_from_before_a_setting_existed_is_still_what_was_signed(empty_ws, tmp_path):
    decision = gate(empty_ws, stored(empty_ws, candidate(empty_ws, tmp_path)))
    policy = decision.policy.model_dump(mode="json")
    del policy["blocked"]
    forged = empty_ws.db.write(
        lambda c: c.execute(sa.update(schema.decisions).values(policy=policy))
    )
    assert forged.rowcount == 1
    with pytest.raises(Conflict, match="it was changed after it was made"):
        replay(empty_ws, decision.id)
    earlier = decision.model_dump(mode="json", exclude={"signature"}) | {"policy": policy}
    signature = make_seal(empty_ws.home.signing).of("decision", ids.canonical(earlier))
    empty_ws.db.write(lambda c: c.execute(sa.update(schema.decisions).values(signature=signature)))
    assert replay(empty_ws, decision.id)[0].policy == decision.policy


def test_too_few_cases_decide_nothing_for_good_and_gold_confirms_what_feedback_approved(
    empty_ws, tmp_path
):
    version = candidate(empty_ws, tmp_path)
    assert (
        gate(empty_ws, stored(empty_ws, version, gains=10, n=10)).decision.verdict
        is GateVerdict.REJECTED
    )
    assert versions.by_id(empty_ws, version.id).state is VersionState.CANDIDATE
    assert (
        gate(empty_ws, stored(empty_ws, version, basis=Basis.FEEDBACK)).decision.verdict
        is GateVerdict.CANARY
    )
    assert (
        versions.by_id(empty_ws, version.id).state,
        versions.by_id(empty_ws, version.id).basis,
    ) == (
        VersionState.APPROVED,
        Basis.FEEDBACK,
    )
    assert gate(empty_ws, stored(empty_ws, version)).decision.verdict is GateVerdict.APPROVED
    assert versions.by_id(empty_ws, version.id).basis is Basis.GOLD
    assert (
        gate(empty_ws, stored(empty_ws, version, gains=0)).decision.verdict is GateVerdict.REJECTED
    )
    assert versions.by_id(empty_ws, version.id).state is VersionState.APPROVED, (
        "a later opinion takes nothing back"
    )


def test_a_judge_that_was_optimised_keeps_even_a_part_of_the_cases_to_a_canary(empty_ws, tmp_path):
    version = candidate(empty_ws, tmp_path, config={"reward_functions": ["judge"]})
    decision = gate(empty_ws, stored(empty_ws, version, judges=("json_fields", "judge"))).decision
    assert decision.verdict is GateVerdict.CANARY and "trained to please" in decision.reasons[1]


def test_a_decision_is_signed_and_a_changed_one_is_recognised(empty_ws, tmp_path):
    version = candidate(empty_ws, tmp_path)
    decision = gate(empty_ws, stored(empty_ws, version))
    assert (decision.decision.verdict, len(decision.signature)) == (GateVerdict.APPROVED, 64)
    assert decision == replay(empty_ws, decision.id)[0]
    bare = json.loads(json.dumps(decision.inputs.model_dump(mode="json")))
    empty_ws.db.write(
        lambda c: c.execute(sa.update(schema.decisions).values(inputs=bare | {"low": 0.9}))
    )
    with pytest.raises(Conflict, match="it was changed after it was made"):
        replay(empty_ws, decision.id)
    empty_ws.db.write(
        lambda c: c.execute(sa.update(schema.decisions).values(inputs=bare, signature=None))
    )
    with pytest.raises(Conflict, match="it was changed after it was made"):
        replay(empty_ws, decision.id)


def test_another_home_signs_differently(empty_ws, tmp_path):
    decision = gate(empty_ws, stored(empty_ws, candidate(empty_ws, tmp_path)))
    empty_ws.home.signing.write_bytes(b"x" * 32)
    with pytest.raises(Conflict, match=r"signing\.key"):
        replay(empty_ws, decision.id)


def test_the_first_decision_declares_and_later_changes_are_said(empty_ws, tmp_path):
    version = candidate(empty_ws, tmp_path)
    evaluation = stored(empty_ws, version)
    first = gate(empty_ws, evaluation)
    assert [
        (declaration.policy, declaration.reason)
        for declaration in declarations(empty_ws, Agent.named(AGENT))
    ] == [(GatePolicy(), "in force at the first decision")]
    assert first.inputs.changes == () and gate(empty_ws, evaluation) == first
    with pytest.raises(InputError, match="min_cases 30 -> 50"):
        declare(empty_ws, Agent.named(AGENT), {"min_cases": 50})
    assert (
        declare(empty_ws, Agent.named(AGENT), {"min_cases": 30}).policy == GatePolicy()
    )  # what is declared already needs no reason
    declare(empty_ws, Agent.named(AGENT), {"min_cases": 50}, "too many ties")
    second = gate(empty_ws, stored(empty_ws, candidate(empty_ws, tmp_path)))
    assert second.policy == policy_of(empty_ws, Agent.named(AGENT)) == GatePolicy(min_cases=50)
    assert any(
        "min_cases 30 -> 50" in reason and "too many ties" in reason
        for reason in second.decision.reasons
    )
    third = gate(empty_ws, evaluation, GatePolicy(min_cases=2, margin_eos=0.1))
    assert any(
        "another policy than the declared one (min_cases 50 -> 2, margin_eos 0.05 -> 0.1)"
        in version
        for version in third.decision.reasons
    )
    assert replay(empty_ws, third.id)[1] == third.decision


def test_settings_count_until_they_are_declared(tmp_path):
    with Workspace.open(
        Home(tmp_path / "home"), Sources({"gate": {"min_cases": 40}}, "", {})
    ) as ws:
        version = candidate(ws, tmp_path)
        assert policy_of(ws, Agent.named(AGENT)).min_cases == 40
        assert declare(ws, Agent.named(AGENT), {"alpha": 0.01}).policy == GatePolicy(
            min_cases=40, alpha=0.01
        )
        ws.sources = Sources({"gate": {"min_cases": 10}}, "", {})
        decision = gate(ws, stored(ws, version))
        assert decision.policy.min_cases == 40
        assert any(
            "settings that are not declared do not count" in reason
            for reason in decision.decision.reasons
        )


def test_only_the_usual_question_is_decided(empty_ws, tmp_path):
    """A version is not rejected for what quantising costs, nor approved for what another model
    answered or a weaker rival."""
    version = candidate(empty_ws, tmp_path)
    with pytest.raises(InputError, match="not as it was trained"):
        gate(
            empty_ws,
            stored(
                empty_ws,
                version,
                gains=60,
                aside="it was measured as gguf:model.gguf, not as it was trained",
            ),
        )
    assert versions.by_id(empty_ws, version.id).state is VersionState.CANDIDATE
    decision = gate(
        empty_ws,
        stored(
            empty_ws,
            version,
            gains=60,
            limit="what is live stands on another base, and was not compared",
        ),
    )
    assert decision.decision.verdict is GateVerdict.CANARY


def test_the_suite_that_is_declared_decides(empty_ws, tmp_path):
    version = candidate(empty_ws, tmp_path)
    with pytest.raises(InputError, match="goes by success or preference"):
        gate(empty_ws, stored(empty_ws, version, suite="judge"))
    declare(empty_ws, Agent.named(AGENT), {"primary": "judge"})
    nobody = SuiteResult(
        name="judge",
        measures=(),
        details={"may_not_gate": "its agreement with people is not stated"},
    )
    stored_decision = gate(
        empty_ws, stored(empty_ws, version, suite="judge", suites=(nobody,))
    ).decision
    assert (
        stored_decision.verdict is GateVerdict.CANARY
        and "canary only: its agreement with people is not stated" in stored_decision.reasons
    )
    assert (
        gate(empty_ws, stored(empty_ws, version, suite="judge")).decision.verdict
        is GateVerdict.APPROVED
    )
    with pytest.raises(InputError, match="goes by judge"):
        gate(empty_ws, stored(empty_ws, version))


@pytest.mark.parametrize(
    ("config", "judges", "verdict"),
    [
        ({"reward_model": "rm1"}, ("rm1",), GateVerdict.REJECTED),
        (
            {"reward_model": "rm1"},
            ("reward_model",),
            GateVerdict.REJECTED,
        ),  # cases whose checker is the reward model
        ({"reward_functions": ["learned=0.5", "checker"]}, ("learned",), GateVerdict.REJECTED),
        ({"reward_functions": ["checker"]}, ("json_fields",), GateVerdict.APPROVED),
        ({"reward_model": "rm1"}, ("json_fields",), GateVerdict.APPROVED),
        ({}, ("reward_model",), GateVerdict.APPROVED),
    ],
)
def test_what_a_run_was_trained_to_please_is_no_evidence_alone(
    empty_ws, tmp_path, config, judges, verdict
):
    version = candidate(empty_ws, tmp_path, config=config)
    assert gate(empty_ws, stored(empty_ws, version, judges=judges)).decision.verdict is verdict
    assert versions.by_id(empty_ws, version.id).state is (
        VersionState.REJECTED if verdict is GateVerdict.REJECTED else VersionState.APPROVED
    )


def test_a_narrow_level_of_the_evaluation_buys_nothing(empty_ws):
    """The gate takes its own level from the policy: an evaluation shown at 60 % does not pass where
    one at 95 % does not."""
    before, after = [0] * 5 + [1] * 95, [1] * 5 + [1] * 93 + [0] * 2
    loose, usual = (
        inputs_of(judged(before, after, level=level), GatePolicy()) for level in (0.6, 0.95)
    )
    assert loose == usual.model_copy() and loose.low < 0


def test_a_guard_is_held_to_its_interval_at_one_minus_alpha():
    """By hand: centre +- t(0.975, 39 degrees of freedom) * error."""
    spread = Spread(centre=-0.02, error=0.02, degrees=39.0, limit=1.0)
    guard = Guard(name=EOS, before=0.9, after=0.88, n=40, spread=spread)
    evaluation = judged([0] * 60, [1] * 60, guards=(guard,))
    (held,) = (guard for guard in inputs_of(evaluation, GatePolicy()).guards if guard.name == EOS)
    half = 2.0226909 * 0.02
    assert (held.low, held.high) == pytest.approx((-0.02 - half, -0.02 + half))
    stricter = inputs_of(evaluation, GatePolicy(alpha=0.01)).guards
    (held,) = (guard for guard in stricter if guard.name == EOS)
    assert held.low == pytest.approx(-0.02 - 2.7079132 * 0.02)


def test_looks_are_read_from_what_is_stored_and_keys_say_nothing(empty_ws, tmp_path):
    prompts = [[{"role": "user", "content": f"Question {number}?"}] for number in range(4)]
    keys = row_keys(empty_ws, prompts)
    assert (
        keys == row_keys(empty_ws, prompts[::-1])
        and len(keys) == 4
        and all(len(key) == 16 for key in keys)
    )
    stored(empty_ws, candidate(empty_ws, tmp_path), sides=("live", "one"), read=keys[:3])
    with empty_ws.db.read() as connection:
        looks = store.looks(connection, Agent.named(AGENT).id)
    seen = looks[0]
    assert looks == [Look(("live", "one"), SUCCESS, frozenset(keys[:3]), seen.result)]
    assert look_number(seen, looks) == 1
    assert (
        look_number(seen._replace(result=(0.0,)), looks) == 2
    )  # the same two sides, drawn anew, are looked at anew
    assert look_number(Look(("live", "two"), SUCCESS, frozenset(keys[2:])), looks) == 2
    assert look_number(Look(("live", "two"), SUCCESS, frozenset(keys[3:])), looks) == 1


def test_another_name_for_the_agent_buys_no_fresh_rows(empty_ws, tmp_path):
    """The same gold cases under another agent's name were looked at before; an evaluation that
    named no rows counts for its own agent."""
    keys = row_keys(
        empty_ws, [[{"role": "user", "content": f"Question {number}?"}] for number in range(4)]
    )
    stored(empty_ws, candidate(empty_ws, tmp_path), sides=("live", "one"), read=keys)
    stored(empty_ws, candidate(empty_ws, tmp_path), sides=("live", "nothing"), read=())
    other = versions.ensure_agent(empty_ws, "renamed")
    with empty_ws.db.read() as connection:
        earlier = store.looks(connection, other)
        looks = store.looks(connection, Agent.named(AGENT).id)
    look = Look(("live", "two"), SUCCESS, frozenset(keys))
    assert (look_number(look, earlier), look_number(look, looks)) == (2, 3)


def test_the_command_declares_and_shows(command_line, tmp_path):
    with Workspace.open(Home(tmp_path / "home"), Sources({}, "", {})) as ws:
        versions.ensure_agent(ws, AGENT)
    assert (
        json.loads(command_line("gate", "show", "--agent", AGENT, "--json")[1])["declared"] is False
    )
    code, out, _ = command_line("gate", "declare", "--agent", AGENT, "--min-cases", "100", "--json")
    assert (code, json.loads(out)["policy"]["min_cases"]) == (0, 100)
    code, _, err = command_line("gate", "declare", "--agent", AGENT, "--alpha", "0.01")
    assert code != 0 and "--reason" in err
    assert (
        command_line(
            "gate", "declare", "--agent", AGENT, "--alpha", "0.01", "--reason", "more at stake"
        )[0]
        == 0
    )
    _, out, err = command_line("gate", "show", "--agent", AGENT)
    assert "min_cases" in out and "alpha 0.05 -> 0.01: more at stake" in err


def verdicts(random, n, discordance, gain, looks):
    """Candidates one after another on the same cases: whether each was approved, at its look."""
    before, approvals = random.random(n) < 0.6, []
    for reads in looks:
        number = random.random(n)
        after = np.where(
            before, number >= (discordance - gain) / 1.2, number < (discordance + gain) / 0.8
        )
        approvals.append(
            decide(
                inputs_of(judged(before, after, reads=reads), GatePolicy()), GatePolicy()
            ).verdict
            is GateVerdict.APPROVED
        )
    return approvals


def test_equal_models_pass_no_more_often_than_alpha_and_the_detectable_gain_four_times_in_five():
    """The fast version of benchmarks/gate.py. The bounds are exact binomial ones at 1e-6, so that
    chance does not decide."""
    random = np.random.default_rng(0)
    equal = [verdicts(random, 120, 0.3, 0.0, [1])[0] for _ in range(120)]
    assert clopper_pearson(sum(equal), len(equal), 1 - 1e-6).low <= 0.05
    gain = inputs_of(
        judged([1] * 18 + [0] * 18 + [1] * 84, [0] * 18 + [1] * 18 + [1] * 84), GatePolicy()
    ).detectable
    seen = [verdicts(random, 120, 0.3, gain, [1])[0] for _ in range(80)]
    assert clopper_pearson(sum(seen), len(seen), 1 - 1e-6).high >= 0.8
    runs = [any(verdicts(random, 120, 0.3, 0.0, range(1, 11))) for _ in range(10)]
    assert clopper_pearson(sum(runs), len(runs), 1 - 1e-6).low <= 0.05


def test_second_opinions_agree_with_the_interval_that_decides():
    before, after = (
        [1] * 20 + [0] * 40 + [1] * 60,
        [0] * 8 + [1] * 12 + [1] * 30 + [0] * 10 + [1] * 60,
    )
    pairs = [
        Pair(case(number), float(x), float(y))
        for number, (x, y) in enumerate(zip(before, after, strict=True))
    ]
    tests, decides = secondary_tests(pairs, 0.95), compare.success(SUCCESS, pairs, 0.95)
    assert (tests["better"], tests["worse"]) == (30, 8) and tests["mcnemar_p"] < 0.001
    for low, high in (tests["bootstrap"], tests["newcombe"]):
        assert (low, high) == pytest.approx((decides.low, decides.high), abs=0.02)
    grouped = [
        Pair(case(number, number // 4), pair.before, pair.after)
        for number, pair in enumerate(pairs)
    ]
    assert secondary_tests(grouped, 0.95).keys() == {
        "bootstrap"
    }  # exact tests are about cases that stand alone
