"""Every reward function that is listed keeps the contract: one score per answer, in order, whatever
the answer is."""

import re
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.third_party import names
from thumbwheel.core.config import Config
from thumbwheel.core.errors import ConfigError
from thumbwheel.rewards.checker import refusal
from thumbwheel.rewards.function import LONGEST_ANSWER, Case, JudgementStatus, RewardFunction, Score
from thumbwheel.rewards.functions import FUNCTIONS

SETTINGS = {
    "judge": {"url": "http://127.0.0.1:9/v1", "model": "none", "attempts": 1},
    "learned": {"classifier": "no-such-file"},
    "regex": {"pattern": "(yes )+please"},
    "reward_model": {"model": "no-such-folder"},
}
OF_FORM = {"format_compliance", "length"}
"""They judge the form of an answer, which a wrong one may have."""
HOSTILE = {
    "empty": "",
    "nul and surrogates": "\x00\ud800\uffff{",
    "deep arrays": "[" * 100_000,
    "deep objects": '{"a":' * 20_000 + "1" + "}" * 20_000,
    "deep in a string": '{"a": "' + "[" * 5_000 + '"}',
    "huge integer": "9" * 150_000,
    "huge integer in JSON": '{"a": ' + "9" * 150_000 + "}",
    "huge exponent": "1e999999999999",
    "huge exponent in JSON": '{"a": 1e999999999999}',
    "NaN": '{"a": NaN}',
    "open strings": '"' * 99_999,
    "escapes": '{"a": "' + "\\" * 150_001,
    "open boxes": "\\boxed{" * 25_000,
    "marks": "####" * 40_000,
    "lines": "\n" * 190_000 + "A:",
    "blanks": " \t" * 90_000 + "A: 1",
    "commas": "1," * 90_000,
    "slashes": "1/" * 90_000,
    "division by zero": "1/0",
    "too long": "a" * (LONGEST_ANSWER + 1),
}
REFERENCES = (None, "5", "x", 5, 0.5, True, {"a": 1}, [1], "#### 5", '{"a": 1}')


@pytest.fixture(params=names(FUNCTIONS))
def function(request):
    return FUNCTIONS.get(request.param).create(SETTINGS.get(request.param, {}))


def function_name(function):
    return next(name for name in FUNCTIONS.names() if FUNCTIONS.get(name) is type(function))


def test_it_is_a_function_with_a_documented_config(function):
    assert isinstance(function, RewardFunction)
    assert issubclass(type(function).Config, Config)
    assert all(field.description for field in type(function).Config.model_fields.values())
    with pytest.raises(ConfigError, match="no_such_setting"):
        type(function).create(function.config.model_dump() | {"no_such_setting": 1})


OWNERS_ALONE = {
    "code_execution": {"limits", "trusted_code"},
    "judge": set(FUNCTIONS.get("judge").Config.model_fields) - {"criteria"},
    "learned": {"classifier"},
    "regex": {"timeout"},
    "reward_model": {"device", "model"},
}
"""Settings that lower safety, name an address, a variable, a model or a path, or raise a limit."""
SOUNDS_LIKE_ONE = re.compile(
    "url|host|address|endpoint|path|file|folder|home|secret|key|variable|model|classifier|device|trust|timeout|seconds|limit|parallel|attempt"
)


def test_a_case_may_bring_what_is_declared_and_nothing_else(function):
    kind = type(function)
    settings = set(kind.Config.model_fields)
    assert kind.case_settings <= settings - OWNERS_ALONE.get(function_name(function), set())
    assert [name for name in kind.case_settings if SOUNDS_LIKE_ONE.search(name)] == []
    for name in settings:
        reason = refusal(function_name(function), {name: None}, None)
        assert (reason is None) == (name in kind.case_settings)


def test_a_function_that_declares_nothing_takes_nothing_from_a_case():
    assert RewardFunction.case_settings == Broken.case_settings == frozenset()


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_answers_are_scores_in_bounded_time(function, name):
    start = time.thread_time()
    for reference in REFERENCES:
        (score,) = function.score([Case(HOSTILE[name], reference)])
        assert isinstance(score, Score)
        assert (
            score.value in (None, 0.0) or function_name(function) in OF_FORM
        )  # none of them is a right answer
    assert time.thread_time() - start < 5


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(answers=st.lists(st.tuples(st.text(max_size=60), st.sampled_from(REFERENCES)), max_size=8))
def test_one_score_per_answer_in_order_and_deterministic(function, answers):
    given_answers = [Case(text, reference) for text, reference in answers]
    scores = function.score(given_answers)
    assert scores == [function.score([item])[0] for item in given_answers]
    for item in scores:
        assert (item.value is not None) == (item.status is JudgementStatus.OK)
        assert item.value is None or 0 <= item.value <= 1
        assert item.well_formed in (True, False, None)


def test_too_long_is_failed_not_wrong(function):
    (score,) = function.score([Case("a" * (LONGEST_ANSWER + 1), "5")])
    assert (score.status, score.value) == (JudgementStatus.FAILED, None)
    assert str(LONGEST_ANSWER) in score.evidence["reason"]


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (None, JudgementStatus.OK),
        (0.0, JudgementStatus.FAILED),
        (float("inf"), JudgementStatus.OK),
        (float("nan"), JudgementStatus.OK),
    ],
)
def test_a_score_cannot_contradict_itself(value, status):
    with pytest.raises(ValueError, match="score"):
        Score(value, status)


class Broken(RewardFunction[Config]):
    Config = Config

    def judge(self, case):
        if case.text == "raise":
            raise ZeroDivisionError("by nothing")
        return Score(float(case.text))


def test_what_raises_and_what_leaves_its_range_are_failures_and_the_others_are_judged():
    scores = Broken.create({}).score([Case("0.5"), Case("raise"), Case("1.5"), Case("1")])
    assert [score.value for score in scores] == [0.5, None, None, 1.0]
    assert [score.status for score in scores] == [
        JudgementStatus.OK,
        JudgementStatus.FAILED,
        JudgementStatus.FAILED,
        JudgementStatus.OK,
    ]
    assert "ZeroDivisionError" in scores[1].evidence["reason"]
    assert "0..1" in scores[2].evidence["reason"]
