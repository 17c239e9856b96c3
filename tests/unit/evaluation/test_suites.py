"""What each suite asks, and what it makes of replies that are written here."""

import json
import math

import pytest

from tests.judges import always_the_first, prefers_longer
from tests.required import missing
from thumbwheel.core.errors import ConfigError
from thumbwheel.evaluation.guards import GuardState, guard_state
from thumbwheel.evaluation.policy import GatePolicy
from thumbwheel.evaluation.suite import SuiteContext
from thumbwheel.evaluation.suites import SUITES
from thumbwheel.evaluation.suites.code import _passed, pass_at
from thumbwheel.evaluation.types import (
    ANCHOR_NLL,
    ANCHOR_TASKS,
    LENGTH,
    Ask,
    AskLikelihood,
    EvaluationConfig,
    HeldOutCase,
    ModelAnswer,
    RecordedAnswer,
)
from thumbwheel.llm.fake import FakeServer
from thumbwheel.rewards.function import JudgementStatus, Score
from thumbwheel.stats.paired import no_change_halfwidth


def user(text):
    return [{"role": "user", "content": text}]


def case(name, reference, checker=None, settings=None, **slices):
    return HeldOutCase(
        name, name, f"msg_{name}", user(f"ask {name}"), reference, checker, settings, slices
    )


def replies(*texts, finish="stop"):
    return [(ModelAnswer(text, finish, len(text), 5, 0.1),) for text in texts]


def suite(name, cases=(), recorded=(), config=None, **more):
    return SUITES.get(name)(
        SuiteContext(list(cases), list(recorded), config or EvaluationConfig(), **more)
    )


def test_the_report_of_a_json_agent_compares_fields_whatever_their_case():
    cases = [case(str(n), {"swimlane": "Project", "priority": "High"}) for n in range(4)]
    good, half = (
        '{"swimlane": "PROJECT", "priority": "HIGH"}',
        '{"swimlane": "project", "priority": "LOW"}',
    )
    outcome = suite("json_agent", cases).outcome(
        replies("no json", half, half, half), replies(good, good, half, '{"swimlane": "Home"')
    )
    main = outcome.main(0.95)
    assert (main.name, main.before, main.after) == ("all fields right", 0.0, 0.5)
    measures = {measure.name: (measure.before, measure.after) for measure in outcome.measures}
    assert measures["answers that parse"] == (0.75, 0.75)
    assert measures["field swimlane"] == (0.75, 0.75) and measures["field priority"] == (0.0, 0.5)
    after = outcome.details["after"]
    assert (
        after["accuracy"],
        after["error_rate"],
        after["total_examples"],
        after["correct"],
        after["errors"],
    ) == (0.5, 0.25, 4, 2, 1)
    assert after["accuracy_by_field"] == {"swimlane": 0.75, "priority": 0.5}
    first, second = after["error_examples"]
    assert (
        first["index"] == 3
        and first["error"].startswith("no JSON")
        and "priority" in second["error"]
    )


def test_a_list_of_findings_is_compared_by_its_columns():
    findings = [{"type": "CONFLICT"}, {"type": "Relation"}]
    cases = [case("a", findings), case("b", json.dumps([]))]
    outcome = suite("json_agent", cases).outcome(
        replies("[]", "[]"), replies('[{"type": "relation"}, {"type": "Conflict"}]', "[]")
    )
    assert (outcome.main(0.95).before, outcome.main(0.95).after) == (0.5, 1.0)


def test_rewards_of_fresh_answers_leave_out_what_has_no_value_and_mark_an_optimised_judge():
    cases = [case(str(n), "yes") for n in range(3)]

    def rewards(answered):
        scores = [
            Score(float(answered_case.text == answered_case.reference))
            for answered_case in answered
        ]
        return {"": scores, "checker": scores}

    def lengths(side):
        return [math.nan if answer.text == "no" else 1.0 * len(answer.text) for answer in side]

    opinions = {"rm1": lambda prompts, sides: [lengths(side) for side in sides]}
    tested_suite = suite(
        "reward", cases, rewards=rewards, reward_models=opinions, optimised=frozenset({"rm1"})
    )
    outcome = tested_suite.outcome(replies("no", "yes", "maybe"), replies("yes", "yes", "yes"))
    assert (outcome.main(0.95).name, outcome.main(0.95).before, outcome.main(0.95).after) == (
        "mean reward",
        1 / 3,
        1.0,
    )
    assert outcome.judges == ("checker",)
    opinion = outcome.measures[-1]
    assert opinion.name == "mean score by rm1 (trained against it: no evidence)" and opinion.n == 2
    alone = suite("reward", cases, reward_models=opinions, optimised=frozenset({"rm1"})).outcome(
        replies("a", "b", "c"), replies("aa", "bb", "cc")
    )
    assert alone.main(0.95).name.startswith("mean score by rm1") and alone.judges == ("rm1",)


def test_anchors_are_two_guards():
    tested_suite = suite("regression")
    asks = tested_suite.asks()
    texts, tasks = (
        [item for item in asks if isinstance(item, kind)] for kind in (AskLikelihood, Ask)
    )
    assert (
        len(texts) >= GatePolicy().min_guard
        and no_change_halfwidth(len(tasks), 0.95) < GatePolicy().margin_tasks
    )  # so that the built-in set guards
    right = [
        str(item.reference) if not isinstance(item.reference, dict) else json.dumps(item.reference)
        for item in tested_suite.cases
    ]
    before = [((-10.0, 10),)] * len(texts) + replies(*right)
    after = [((-15.0, 10),)] * len(texts) + replies(*(["?"] * len(tasks)))
    outcome = tested_suite.outcome(before, after)
    guards = {item.name: (item.before, item.after, item.n) for item in outcome.guards}
    assert guards == {ANCHOR_NLL: (1.0, 1.5, len(texts)), ANCHOR_TASKS: (1.0, 0.0, len(tasks))}
    assert {guard_state(item, GatePolicy())[0] for item in outcome.guards} == {GuardState.WORSE}
    assert {
        guard_state(item, GatePolicy())[0] for item in tested_suite.outcome(before, before).guards
    } == {GuardState.HOLDS}
    silent = tested_suite.outcome(
        [()] * len(texts) + replies(*right), [()] * len(texts) + replies(*right)
    )
    assert [item.name for item in silent.guards] == [
        ANCHOR_TASKS
    ] and silent.dropped.total() == len(texts)


def test_anchors_of_the_owner_replace_the_built_in_ones(tmp_path):
    (tmp_path / "mine.yaml").write_text("texts: [One two three.]\n")
    tested_suite = suite("regression", config=EvaluationConfig(anchors=str(tmp_path / "mine.yaml")))
    assert [ask.texts for ask in tested_suite.asks()] == [("One two three.",)]
    with pytest.raises(ConfigError, match="textes"):
        (tmp_path / "mine.yaml").write_text("textes: []\n")
        suite("regression", config=EvaluationConfig(anchors=str(tmp_path / "mine.yaml"))).asks()


@pytest.mark.parametrize(
    ("script", "after", "agrees"), [(prefers_longer, 0.75, 1.0), (always_the_first, 0.5, 0.0)]
)
def test_a_judge_is_asked_in_both_orders(script, after, agrees):
    with FakeServer(script) as server:
        config = EvaluationConfig(judge_url=server.url, judge_model="m")
        tested_suite = suite("judge", [case(str(n), None) for n in range(2)], config=config)
        outcome = tested_suite.outcome(replies("short", "same"), replies("a long one", "same"))
        assert len(server.requests) == 2  # the equal answers are a tie without a question
    main = outcome.main(0.95)
    assert (main.before, main.after) == (1 - after, after)
    assert (outcome.details["win_rate"], outcome.details["agrees_with_itself"]) == (after, agrees)


def test_a_key_in_the_address_of_a_judge_is_refused():
    with pytest.raises(ValueError, match="key_variable"):
        EvaluationConfig(judge_url="https://me:secret@host/v1")


def test_a_checker_that_is_not_here_is_part_of_what_decides_the_result():
    cases = [
        case("a", "x"),
        case("b", "x", "of_a_plugin"),
        case("c", "x", "regex", {"pattern": "("}),
    ]
    content = suite("success", cases).content()
    assert len(content) == 3 and "'of_a_plugin'" in " ".join(content) and "ExactAnswer 2" in content
    outcome = suite("success", cases).outcome(replies("x", "x", "x"), replies("x", "x", "x"))
    assert (
        outcome.main(0.95).n == 1
        and outcome.blocked == {}
        and set(outcome.dropped) == set(content) - {"ExactAnswer 2"}
    )


def test_pass_at_k_is_the_unbiased_estimate():
    from itertools import combinations

    outcomes = [1, 0, 0, 1, 0]
    for k in (1, 2, 3):
        chosen = list(combinations(outcomes, k))
        assert pass_at(5, 2, k) == pytest.approx(
            sum(any(program) for program in chosen) / len(chosen)
        )
    assert pass_at(3, 2, 2) == 1.0


def test_prose_in_place_of_a_program_does_not_take_the_task_away():
    prose, none = (
        Score.none(JudgementStatus.NOT_APPLICABLE, "no block"),
        Score.none(JudgementStatus.BLOCKED, "no sandbox"),
    )
    assert _passed([Score(1.0), prose]) == 1
    assert _passed([Score(1.0), none]) is None


def test_programs_are_really_run():
    task = case("add", {"tests": ["assert add(1, 2) == 3"], "entry_point": "add"}, "code_execution")
    tested_suite = suite("code", [task], config=EvaluationConfig(samples=2))
    (asked,) = tested_suite.asks()
    assert (asked.samples, asked.temperature) == (2, 0.8)
    right, wrong = (
        ModelAnswer("def add(a, b):\n    return a + b\n", "stop", 5),
        ModelAnswer("def add(a, b):\n    return a - b\n", "stop", 5),
    )
    outcome = tested_suite.outcome([(wrong, wrong)], [(right, wrong)])
    if outcome.main is None:
        missing("sandbox", "no sandbox on this machine")
    assert (outcome.main(0.95).before, outcome.main(0.95).after) == (0.0, 0.5)
    assert suite("code", [task], config=EvaluationConfig(samples=2, pass_at=3)).unfit()


def test_a_benchmark_scores_the_checks_that_were_not_skipped(tmp_path):
    tasks = """
id: basics
tasks:
  - {id: greet, prompt: Greet Ada., tags: [tone],
     checks: [{type: contains, text: ada}, {type: tool_called, tool: mail}]}
  - {id: object, prompt: JSON., complexity: phd,
     checks: [{type: json_valid}, {type: json_has_key, key: a.b}, {type: max_tokens, n: 14}]}
  - {id: picture, prompt: See., modality: [image], checks: [{type: json_valid}]}
"""
    (tmp_path / "tasks.yaml").write_text(tasks)
    tested_suite = suite("benchmark", config=EvaluationConfig(benchmark=str(tmp_path)))
    outcome = tested_suite.outcome(
        replies("Hello.", "{}" + " " * 20), replies("Hello, Ada.", '{"a":{"b":2}}')
    )
    main = outcome.main(0.95)
    assert (main.before, main.after, main.n) == (pytest.approx(1 / 6), 1.0, 2)
    assert outcome.dropped == {"the task needs more than text": 1}
    greet = outcome.details["after"][0]
    assert (greet["task_id"], greet["score"], greet["total_checks"], greet["tokens_out"]) == (
        "greet",
        1.0,
        1,
        11,
    )
    assert [item["skipped"] for item in greet["checks"]] == [False, True]
    assert {item.name for item in outcome.slices} == {
        "complexity=tutorial",
        "complexity=phd",
        "tag=tone",
    }
    nested = "{type: all_of, checks: [{type: latency_lte, ms: 5}]}"
    (tmp_path / "tasks.yaml").write_text(
        f"tasks: [{{id: a, prompt: b, checks: [{nested}, {{type: json_valid}}]}}]"
    )
    tested_suite = suite("benchmark", config=EvaluationConfig(benchmark=str(tmp_path)))
    slow, untimed = (
        [(ModelAnswer("x", "stop", 1, seconds=9.0),)],
        [(ModelAnswer("x", "stop", 1, seconds=None),)],
    )
    outcome = tested_suite.outcome(
        slow, untimed
    ).details  # nobody timed the one, so time counts for neither
    assert [
        (item["total_checks"], item["passed"])
        for item in (outcome["before"][0], outcome["after"][0])
    ] == [(1, 0), (1, 0)]
    (tmp_path / "tasks.yaml").write_text(
        "tasks: [{id: a, prompt: b, checks: [{type: contain, text: x}]}]"
    )
    with pytest.raises(ConfigError, match="Did you mean 'contains'"):
        suite("benchmark", config=EvaluationConfig(benchmark=str(tmp_path))).asks()


@pytest.mark.parametrize(
    "pattern",
    ["../*.yaml", "tasks/../../*.yaml", "{elsewhere}/*.yaml", "link.yaml", "linked/*.yaml"],
)
def test_a_benchmark_reads_no_file_out_of_its_folder(tmp_path, pattern):
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "sent"
    for tested_suite in (elsewhere, folder):
        tested_suite.mkdir()
    secret = "tasks: [{id: secret, prompt: 'the secret', checks: [{type: json_valid}]}]"
    for location in (elsewhere / "secret.yaml", tmp_path / "secret.yaml"):
        location.write_text(secret)
    (folder / "link.yaml").symlink_to(elsewhere / "secret.yaml")
    (folder / "linked").symlink_to(elsewhere)
    path = folder / "suite.yaml"
    path.write_text(f"tasks: []\ntask_pattern: {pattern.format(elsewhere=elsewhere)!r}")
    with pytest.raises(ConfigError, match="outside the folder"):
        suite("benchmark", config=EvaluationConfig(benchmark=str(path))).asks()


TIMES_NINE = "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
ENDLESS = {
    "a check that holds itself": "tasks: [{id: a, prompt: b, checks: &c [{type: any_of, checks: "
    "*c}]}]",
    "billions of values": f"a: &a [x]\n{TIMES_NINE}"
    "tasks: [{id: a, prompt: b, checks: [{type: any_of, checks: *i}]}]",
    "nesting": "tasks: " + "[" * 5000,
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_benchmark_without_end_is_refused(tmp_path, name):
    path = tmp_path / "suite.yaml"
    path.write_text(ENDLESS[name])
    with pytest.raises(ConfigError, match=r"nested|values|recursion|depth"):
        suite("benchmark", config=EvaluationConfig(benchmark=str(path))).asks()


def test_a_benchmark_adds_the_files_that_it_names_once_and_not_those_that_they_name(tmp_path):
    (tmp_path / "more").mkdir()
    task = "{{id: {name}, prompt: b, checks: [{{type: json_valid}}]}}"
    path = tmp_path / "suite.yaml"
    path.write_text(f"tasks: [{task.format(name='a')}]\ntask_pattern: '**/*.yaml'")
    (tmp_path / "more" / "b.yaml").write_text(
        f"tasks: [{task.format(name='b')}]\ntask_pattern: '*.yaml'"
    )
    (tmp_path / "more" / "c.yaml").write_text(
        f"tasks: [{task.format(name='c')}]\ntask_pattern: '*.yaml'"
    )
    (tmp_path / "more" / "note.txt").write_text("no task")
    assert [
        task.id for task in suite("benchmark", config=EvaluationConfig(benchmark=str(path))).tasks
    ] == ["a", "b", "c"]


def test_recorded_answers_that_do_not_fit_are_counted():
    rows = [
        RecordedAnswer("r1", "g1", user("q"), None, "yes", True, pair="r1"),
        RecordedAnswer("r1", "g1", user("q"), None, "no", False, pair="r1"),
    ]
    rows += [
        RecordedAnswer("r2", "g2", user("long"), None, "yes", True, pair="r2"),
        RecordedAnswer("r2", "g2", user("long"), None, "no", False, pair="r2"),
    ]
    tested_suite = suite("preference", recorded=rows)
    assert [ask.texts for ask in tested_suite.asks()] == [("yes", "no"), ("yes", "no")]
    outcome = tested_suite.outcome([((-2.0, 2), (-1.0, 2)), ()], [((-1.0, 2), (-2.0, 2)), ()])
    assert (outcome.main(0.95).before, outcome.main(0.95).after) == (0.0, 1.0)
    assert (
        outcome.dropped == {"recorded answer does not fit the model": 2}
        and outcome.guards[0].after == 0.5
    )


def test_the_length_of_wrong_answers_is_no_measure():
    """A pretrained base talks where people want one word: learning the word is no collapse."""
    cases = [case(str(number), "work", "exact_answer") for number in range(40)]
    wrong, right = "It depends on many things, and " * 4, "work"
    talkative = suite("success", cases).outcome(replies(*[wrong] * 40), replies(*[right] * 40))
    (length,) = (guard for guard in talkative.guards if guard.name == LENGTH)
    assert length.n == 0 and guard_state(length, GatePolicy())[0] is GuardState.UNMEASURED

    half = suite("success", cases).outcome(
        replies(*[right] * 30, *[wrong] * 10), replies(*["work " * 3] * 30, *[right] * 10)
    )
    (length,) = (guard for guard in half.guards if guard.name == LENGTH)
    assert (length.n, length.before, length.after) == (30, 4, 15)
    assert guard_state(length, GatePolicy())[0] is GuardState.WORSE
