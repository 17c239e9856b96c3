"""Real generations of a really taught model: what is measured, on which rows, how it is stored, and
what the gate makes of it."""

import json
from types import SimpleNamespace

import pytest

from tests.worlds.feedback_world import AGENT
from tests.worlds.taught_world import QUICK, add_case
from thumbwheel.core.errors import DataError, InputError, ModelError
from thumbwheel.datasets.build import find, load_rows
from thumbwheel.db import schema
from thumbwheel.engine.base_check import find_base
from thumbwheel.evaluation import dev, rows
from thumbwheel.evaluation.dev import compare_on_dev
from thumbwheel.evaluation.evaluate import evaluate, evaluations
from thumbwheel.evaluation.gate import decide, gate, replay
from thumbwheel.evaluation.policy import GatePolicy, GateVerdict
from thumbwheel.evaluation.types import (
    ANCHOR_NLL,
    ANCHOR_TASKS,
    AREA,
    EOS,
    FORMAT,
    NLL,
    NLL_LIKED,
    RANKING,
    RANKING_PER_TOKEN,
    SUCCESS,
    Evaluation,
)
from thumbwheel.models import versions
from thumbwheel.models.types import Agent, Basis, VersionState


def guard_of(evaluation, name):
    return next(guard for guard in evaluation.guards if guard.name == name)


@pytest.mark.slow
def test_a_taught_adapter_is_measured_and_approved_on_gold(home_with_feedback):
    ws, add = home_with_feedback()
    evaluation = evaluate(ws, versions.version(ws, AGENT, add("good")), QUICK)
    assert (evaluation.basis, evaluation.fresh, evaluation.primary.name, evaluation.reads) == (
        Basis.GOLD,
        True,
        SUCCESS,
        1,
    )
    assert (
        evaluation.primary.before,
        evaluation.primary.after,
        evaluation.primary.n,
        evaluation.primary.clusters,
    ) == (
        0.0,
        1.0,
        40,
        40,
    )
    assert 0.8 < evaluation.primary.low < evaluation.primary.high <= 1
    assert {shown.name: shown.n for shown in evaluation.slices} == {
        "animal=fox": 20,
        "animal=dog": 20,
    }
    assert [shown.name for shown in evaluation.preferences] == [RANKING, RANKING_PER_TOKEN]
    assert evaluation.preferences[0].after == 1.0 and evaluation.preferences[0].before < 1.0
    nll = guard_of(evaluation, NLL)
    assert nll.after < nll.before and nll.n == evaluation.preferences[0].n
    liked = guard_of(evaluation, NLL_LIKED)
    assert liked.n == nll.n and liked.after < liked.before  # nobody wrote an answer here
    assert nll.chance == liked.chance == guard_of(evaluation, ANCHOR_NLL).chance > 4
    assert guard_of(evaluation, EOS).after == guard_of(evaluation, FORMAT).after == 1.0
    assert len(evaluation.examples) == 10
    assert all(
        shown.after in ('{"at":"den"}', '{"at":"yard"}') and shown.before != shown.after
        for shown in evaluation.examples
    )
    stored = gate(ws, evaluation)
    assert stored.decision.verdict is GateVerdict.APPROVED
    version = versions.version(ws, AGENT, "latest")
    assert (version.state, version.basis) == (VersionState.APPROVED, Basis.GOLD)


@pytest.mark.slow
def test_a_reward_model_has_an_opinion_and_no_say(home_with_feedback, taught):
    """Trained on the very preferences, it likes the taught answers; approval rests on gold cases
    all the same."""
    from thumbwheel.training.train import train

    ws, add = home_with_feedback(cases=34)
    settings = {
        "max_steps": 12,
        "learning_rate": 5e-3,
        "lora_r": 4,
        "lora_alpha": 8,
        "batch_size": 8,
    }
    assert (
        train(
            ws,
            Agent.named(AGENT),
            "reward",
            find_base(str(taught.base), ws.home.cache),
            options=settings,
        ).reward_model
        == "rm1"
    )
    evaluation = evaluate(
        ws,
        versions.version(ws, AGENT, add("good")),
        QUICK.model_copy(update={"reward_model": "latest"}),
    )
    (opinion,) = evaluation.opinions
    assert (opinion.name, evaluation.config.reward_model) == ("mean score by rm1", "rm1")
    assert opinion.n > 34  # the held-out prompts of recorded answers too
    assert opinion.low <= opinion.gain <= opinion.high and opinion.before != opinion.after
    assert (
        gate(ws, evaluation).decision
        == gate(ws, evaluate(ws, versions.version(ws, AGENT, "latest"), QUICK)).decision
    )


@pytest.mark.slow
def test_an_adapter_that_changes_nothing_gains_nothing_and_is_rejected(home_with_feedback):
    ws, add = home_with_feedback()
    evaluation = evaluate(ws, versions.version(ws, AGENT, add("zero")), QUICK)
    assert evaluation.primary.gain == 0 and evaluation.primary.changed == 0
    assert evaluation.primary.low < 0 < evaluation.primary.high
    assert evaluation.examples == ()
    assert all(measured.gain == 0 for measured in evaluation.preferences)
    assert all(measured.before == measured.after for measured in evaluation.guards)
    stored = gate(ws, evaluation)
    assert stored.decision.verdict is GateVerdict.REJECTED
    assert versions.version(ws, AGENT, "latest").state is VersionState.REJECTED


@pytest.mark.slow
def test_the_same_question_has_the_same_stored_answer_and_other_rows_are_another_read(
    home_with_feedback,
):
    ws, add = home_with_feedback(cases=34)
    name = add("good")
    first = evaluate(ws, versions.version(ws, AGENT, name), QUICK)
    assert evaluate(ws, versions.version(ws, AGENT, name), QUICK) == first
    assert evaluations(ws, versions.version(ws, AGENT, name)) == [first]
    finer = evaluate(
        ws, versions.version(ws, AGENT, name), QUICK.model_copy(update={"examples": 3})
    )
    assert (finer.reads, finer.primary) == (1, first.primary)  # the same rows are the same read
    other = evaluate(ws, versions.version(ws, AGENT, add("zero")), QUICK)
    assert (other.reads, other.primary.n) == (2, 34)  # another candidate looks at the rows again
    assert "comparison 2 on these rows" in gate(ws, other).decision.reasons[0]


@pytest.mark.slow
def test_an_evaluation_that_was_edited_is_measured_again(home_with_feedback, capsys):
    """Better figures, written into the database, are neither returned nor decided on; asking again
    measures."""
    ws, add = home_with_feedback(cases=34)
    name = add("zero")
    first = evaluate(ws, versions.version(ws, AGENT, name), QUICK)
    forged = first.model_dump(mode="json", exclude={"id", "config"})
    forged["primary"] |= {"after": 1.0, "gain": 1.0, "low": 0.9}
    forged["primary"]["spread"] |= {"centre": 1.0, "error": 0.01}
    ws.db.write(lambda c: c.execute(schema.evaluations.update().values(results=forged)))
    assert evaluations(ws, versions.version(ws, AGENT, name))[0].primary.gain == 1.0
    again = evaluate(ws, versions.version(ws, AGENT, name), QUICK)
    assert "is not used: its signature does not fit" in capsys.readouterr().err
    assert (again.primary, again.id != first.id) == (first.primary, True)
    assert evaluate(ws, versions.version(ws, AGENT, name), QUICK) == again
    assert gate(ws, again).decision.verdict is GateVerdict.REJECTED


@pytest.mark.slow
def test_measuring_again_gives_the_same_figures(home_with_feedback):
    ws, add = home_with_feedback()
    first_name, other = add("good"), add("good")
    first, second = (
        evaluate(ws, versions.version(ws, AGENT, first_name), QUICK),
        evaluate(ws, versions.version(ws, AGENT, other), QUICK),
    )
    changing = {"id", "candidate", "candidate_id", "key", "serving", "signature"}
    assert first.model_dump(exclude=changing) == second.model_dump(exclude=changing)


@pytest.mark.slow
def test_two_adapters_are_compared_in_one_model(home_with_feedback):
    ws, add = home_with_feedback()
    good, zero = add("good"), add("zero")
    gate(ws, evaluate(ws, versions.version(ws, AGENT, good), QUICK))
    versions.point(ws, versions.version(ws, AGENT, good), "live")
    worse = evaluate(
        ws, versions.version(ws, AGENT, zero), QUICK
    )  # what is live is what it has to beat
    assert (worse.primary.before, worse.primary.after, worse.against) == (1.0, 0.0, good)
    assert guard_of(worse, EOS).before == 1.0 > guard_of(worse, EOS).after
    assert gate(ws, worse).decision.verdict is GateVerdict.REJECTED
    weaker = evaluate(
        ws, versions.version(ws, AGENT, zero), QUICK, against=versions.version(ws, AGENT, "v0")
    )
    assert (weaker.primary.gain, weaker.aside) == (
        0,
        f"it was not compared with what runs today, {good}",
    )
    with pytest.raises(InputError, match="not compared with what runs today"):
        gate(ws, weaker)
    only = evaluate(
        ws, versions.version(ws, AGENT, zero), QUICK.model_copy(update={"suite": ("success",)})
    )
    assert only.aside.startswith("suites that guard were left out: ") and "regression" in only.aside
    assert evaluate(ws, versions.version(ws, AGENT, good), QUICK).against == "v0"
    assert (
        evaluate(
            ws, versions.version(ws, AGENT, good), QUICK, against=versions.version(ws, AGENT, zero)
        ).primary.gain
        == 1
    )
    with pytest.raises(InputError, match="same version"):
        evaluate(
            ws, versions.version(ws, AGENT, good), QUICK, against=versions.version(ws, AGENT, good)
        )


@pytest.mark.slow
def test_feedback_cases_of_the_gate_split_reach_a_canary(home_with_feedback):
    ws, add = home_with_feedback(cases=160, basis="feedback")
    evaluation = evaluate(ws, versions.version(ws, AGENT, add("good")), QUICK)
    assert (evaluation.basis, evaluation.fresh) == (Basis.FEEDBACK, True)
    assert 20 <= evaluation.primary.n <= 60  # about a quarter: the others are not in the gate split
    stored = gate(ws, evaluation, GatePolicy(min_cases=20))
    assert stored.decision.verdict is GateVerdict.CANARY
    version = versions.version(ws, AGENT, "latest")
    assert (version.state, version.basis) == (VersionState.APPROVED, Basis.FEEDBACK)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kinds", "shapes", "name"),
    [(("preference",), ("pairs",), RANKING), (("thumb",), ("labels",), AREA)],
)
def test_ranking_alone_reaches_a_canary_at_best(home_with_feedback, kinds, shapes, name):
    ws, add = home_with_feedback(cases=0, prompts=80, kinds=kinds, shapes=shapes)
    evaluation = evaluate(ws, versions.version(ws, AGENT, add("good")), QUICK)
    assert (evaluation.fresh, evaluation.primary.name, evaluation.basis) == (
        False,
        name,
        Basis.FEEDBACK,
    )
    assert evaluation.primary.after == 1.0
    assert [guard.name for guard in evaluation.guards] == [NLL, NLL_LIKED, ANCHOR_NLL, ANCHOR_TASKS]
    stored = gate(ws, evaluation, GatePolicy(min_cases=5))
    assert stored.decision.verdict in (GateVerdict.CANARY, GateVerdict.REJECTED)
    assert (stored.decision.verdict is GateVerdict.CANARY) == (stored.inputs.low > 0)


@pytest.mark.slow
def test_chats_of_the_same_answers_take_no_label_away(home_with_feedback):
    ws, add = home_with_feedback(cases=0, prompts=80, kinds=("thumb",), shapes=("chats", "labels"))
    evaluation = evaluate(ws, versions.version(ws, AGENT, add("good", 1)), QUICK)
    assert (evaluation.primary.name, evaluation.primary.after) == (AREA, 1.0)


@pytest.mark.slow
def test_whether_it_is_the_usual_question_is_told_when_it_is_asked(home_with_feedback):
    ws, add = home_with_feedback()
    good, zero = add("good"), add("zero")
    first = evaluate(
        ws, versions.version(ws, AGENT, zero), QUICK, against=versions.version(ws, AGENT, "v0")
    )
    assert first.aside == ""
    gate(ws, evaluate(ws, versions.version(ws, AGENT, good), QUICK))
    versions.point(ws, versions.version(ws, AGENT, good), "live")
    again = evaluate(
        ws, versions.version(ws, AGENT, zero), QUICK, against=versions.version(ws, AGENT, "v0")
    )
    assert (again.id, again.aside) == (
        first.id,
        f"it was not compared with what runs today, {good}",
    )
    with pytest.raises(InputError, match="not compared with what runs today"):
        gate(ws, again)


@pytest.mark.slow
def test_what_training_saw_is_no_case(home_with_feedback):
    def change(world):
        for number in range(24):
            add_case(world, "fox", number, basis="feedback")
            add_case(world, "dog", number, basis="feedback")

    ws, add = home_with_feedback(cases=0, change=change)
    evaluation = evaluate(ws, versions.version(ws, AGENT, add("good")), QUICK)
    held_out = {
        json.dumps(row.prompt) for row in load_rows(ws, find(ws, AGENT, "pairs").id, "gate")
    }
    assert (
        evaluation.fresh and evaluation.primary.n == len(held_out) > 0
    )  # 48 cases, of which training or dev may see the others


@pytest.mark.slow
def test_a_gold_case_that_came_after_the_training_is_left_out_where_training_saw_its_prompt(
    home_with_feedback,
):
    ws, add = home_with_feedback(cases=10)
    name = add("good")
    _gold_on_a_prompt_of(ws, "train")
    evaluation = evaluate(ws, versions.version(ws, AGENT, name), QUICK)
    assert evaluation.primary.n == 10
    assert evaluation.dropped == {"a training row asks the same": 1}


@pytest.mark.slow
def test_a_gold_case_that_asks_what_a_dev_row_asks_is_left_out_too(home_with_feedback):
    """Dev rows chose the checkpoint, so they have shaped the version as training rows have."""
    ws, add = home_with_feedback(cases=10)
    name = add("good")
    _gold_on_a_prompt_of(ws, "dev")
    evaluation = evaluate(ws, versions.version(ws, AGENT, name), QUICK)
    assert evaluation.primary.n == 10
    assert evaluation.dropped == {"a dev row, which chose the checkpoint, asks the same": 1}


def _gold_on_a_prompt_of(ws, split):
    import sqlalchemy as sa

    asked = next(iter(load_rows(ws, find(ws, AGENT, "pairs").id, split))).trace_ids[0]

    def work(connection):
        row = connection.execute(sa.select(schema.cases)).mappings().first()
        input_id = connection.execute(
            sa.select(schema.traces.c.input_id).where(schema.traces.c.id == asked)
        ).scalar()
        connection.execute(
            schema.cases.insert().values(
                {**row, "id": "cas_late", "external_id": "late", "input_id": input_id}
            )
        )

    ws.db.write(work)


def test_nothing_to_judge_on_says_what_to_do(home_with_feedback):
    from thumbwheel.datasets.types import DatasetConfig

    ws, add = home_with_feedback(cases=0, split=DatasetConfig(dev=0.1, gate=0.0))
    with pytest.raises(DataError, match="thumbwheel case add"):
        evaluate(ws, versions.version(ws, AGENT, add("good")), QUICK)


@pytest.mark.slow
def test_a_case_whose_checker_cannot_be_used_is_left_out_with_the_reason(home_with_feedback):
    def change(world):
        add_case(world, "fox", 900, checker="json_fields", checker_config={"feilds": ["at"]})
        add_case(world, "dog", 901, checker="exactanswer")

    ws, add = home_with_feedback(cases=4, change=change)
    evaluation = evaluate(ws, versions.version(ws, AGENT, add("good")), QUICK)
    assert evaluation.primary.n == 4
    left_out = [reason for reason in evaluation.dropped if "cannot be used" in reason]
    assert (
        len(left_out) == 2
        and any("feilds" in why for why in left_out)
        and any("Did you mean 'exact_answer'" in why for why in left_out)
    )


@pytest.mark.slow
def test_other_checkers_and_cases_without_a_reference(home_with_feedback):
    def change(world):
        add_case(
            world, "fox", 900, reference=None, checker="regex", checker_config={"pattern": "den"}
        )
        add_case(world, "dog", 901, reference='{"at":"yard"}', checker="exact_answer")
        add_case(
            world,
            "dog",
            902,
            reference=None,
            checker="json_fields",
            checker_config={"fields": ["at"]},
        )

    ws, add = home_with_feedback(cases=2, change=change)
    evaluation = evaluate(ws, versions.version(ws, AGENT, add("good")), QUICK)
    assert (evaluation.primary.n, evaluation.primary.after) == (4, 1.0)
    assert evaluation.dropped == {"the case has no JSON object as its reference": 1}


def test_a_base_that_has_changed_is_refused(home_with_feedback, taught, tmp_path):
    import shutil

    from tests.models.tiny_models import tiny_base

    ws, add = home_with_feedback(cases=2)
    name = add("good")
    moved = tmp_path / "moved"
    shutil.copytree(taught.base, moved)
    tiny_base(moved, hidden_size=48, intermediate_size=96, seed=9)
    import sqlalchemy as sa

    ws.db.write(
        lambda connection: connection.execute(
            sa.update(schema.model_versions).values(base=str(moved))
        )
    )
    with pytest.raises(ModelError, match="its weights differ from those"):
        evaluate(ws, versions.version(ws, AGENT, name), QUICK)


def test_a_base_is_no_candidate(home_with_feedback):
    ws, add = home_with_feedback(cases=2)
    add("good")
    with pytest.raises(InputError, match="without an adapter"):
        evaluate(ws, versions.version(ws, AGENT, "v0"), QUICK)


@pytest.mark.slow
def test_every_decision_replays_identically_and_is_made_once(home_with_feedback):
    ws, add = home_with_feedback()
    evaluation = evaluate(ws, versions.version(ws, AGENT, add("good")), QUICK)
    stored = gate(ws, evaluation)
    assert gate(ws, evaluation) == stored
    again, decision = replay(ws, stored.id)
    assert (again, decision) == (stored, stored.decision)
    strict = gate(ws, evaluation, GatePolicy(min_cases=500))
    assert (strict.decision.verdict, strict.id == stored.id) == (GateVerdict.REJECTED, False)
    assert replay(ws, strict.id)[1] == decide(strict.inputs, GatePolicy(min_cases=500))
    assert (
        versions.version(ws, AGENT, "latest").state is VersionState.APPROVED
    )  # decided once; a later opinion moves nothing


@pytest.mark.slow
def test_an_evaluation_is_the_same_after_json(home_with_feedback):
    ws, add = home_with_feedback(cases=4)
    evaluation = evaluate(ws, versions.version(ws, AGENT, add("good")), QUICK)
    assert Evaluation(**json.loads(json.dumps(evaluation.model_dump(mode="json")))) == evaluation


def test_dev_names_the_better_method_and_says_why(home_with_feedback):
    ws, add = home_with_feedback(shapes=("pairs", "labels", "chats"), prompts=60)
    zero, good = add("zero"), add("good", dataset=1)
    comparison = compare_on_dev(
        ws, [versions.version(ws, AGENT, zero), versions.version(ws, AGENT, good)], QUICK
    )
    assert comparison.best == good
    scores = {score.version: score for score in comparison.scores}
    assert (scores[good].success, scores[zero].success, comparison.base.success) == (1.0, 0.0, 0.0)
    assert scores[good].nll < scores[zero].nll == comparison.base.nll
    assert scores[good].preference == 1.0
    assert all(good in reason for reason in comparison.reasons)
    assert (
        compare_on_dev(
            ws, [versions.version(ws, AGENT, zero), versions.version(ws, AGENT, good)], QUICK
        )
        == comparison
    )
    none = compare_on_dev(ws, [versions.version(ws, AGENT, zero)], QUICK)
    assert none.best is None and "no version is better than the base" in none.reasons[0]
    with pytest.raises(InputError):
        compare_on_dev(ws, [versions.version(ws, AGENT, "v0")], QUICK)


def test_a_handful_of_dev_rows_holds_no_version_back(home_with_feedback):
    ws, add = home_with_feedback(shapes=("pairs", "labels", "chats"), prompts=12)
    zero = add("zero")
    comparison = compare_on_dev(ws, [versions.version(ws, AGENT, zero)], QUICK)
    assert comparison.scores[0].preference_n < dev.TELLING
    assert comparison.best == zero
    assert "too few to hold" in comparison.reasons[0]


def test_dev_rows_without_a_recorded_answer_are_said_to_be_none(monkeypatch):
    prompts = SimpleNamespace(
        id="dat_1",
        shape="prompts",
        counts={"train": 8, "dev": 3},
        manifest={"config": {"salt": "", "dev": 0.1, "gate": 0.1}},
    )
    monkeypatch.setattr(rows, "dataset_of", lambda ws, version: prompts)
    monkeypatch.setattr(rows, "datasets", lambda ws, agent: [prompts])
    monkeypatch.setattr(rows, "load_rows", lambda ws, dataset_id, split: [])
    version = SimpleNamespace(name="v1", agent="a")
    with pytest.raises(rows.NoDevRows, match="prompts without a recorded answer"):
        rows.dev_rows(None, [version])
    prompts.counts = {"train": 8}
    with pytest.raises(rows.NoDevRows, match="no rows in the dev split"):
        rows.dev_rows(None, [version])


@pytest.mark.slow
def test_what_cannot_be_ranked_is_refused_before_the_first_answer(home_with_feedback, monkeypatch):
    from thumbwheel.evaluation import evaluate as stage

    ws, add = home_with_feedback(cases=0, prompts=40, kinds=("thumb",), shapes=("chats",))
    monkeypatch.setattr(stage, "_replies", lambda *_: pytest.fail("something was asked"))
    with pytest.raises(DataError, match="no pair and not both good and bad answers"):
        evaluate(ws, versions.version(ws, AGENT, add("good")), QUICK)
