"""Judging: rewards are weighted means of what applies, order is kept, and no function can stop,
block or falsify the others."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.required import missing
from tests.waiting import until
from thumbwheel.core.errors import ConfigError
from thumbwheel.sandbox.canaries import level
from thumbwheel.sandbox.types import SandboxRefused
from thumbwheel.training.judge import JudgeRequest, RewardJudge

ROW = {
    "row_id": "row_1",
    "prompt": [{"role": "user", "content": "q"}],
    "reference": "7",
    "checker": None,
    "checker_config": None,
}


def ask(text: str, finish: str = "stop", **row) -> JudgeRequest:
    whole = ROW | row
    return JudgeRequest(whole, text, finish, whole["prompt"])


@pytest.fixture
def judge():
    judges: list[RewardJudge] = []

    def make(functions, *more, **settings):
        judges.append(RewardJudge(functions, *more, **settings))
        return judges[-1]

    yield make
    for opened in judges:
        opened.close()


def test_the_rows_own_checker_judges(judge):
    fields = {"checker": "json_fields", "reference": {"a": 1}}
    pattern = {"checker": "regex", "checker_config": {"pattern": "^yes"}}
    asks = [
        ask("so #### 7"),
        ask("8"),
        ask('{"a": 1}', **fields),
        ask("{", **fields),
        ask("yes", **pattern),
        ask("no", **pattern),
        ask("x", reference=None),
        ask("x", checker="no such"),
        ask("x", checker="regex", checker_config={}),
    ]
    rewards = judge({"checker": 2.0}).judge(asks)
    assert [reward.value for reward in rewards] == [1, 0, 1, 0, 1, 0, None, None, None]
    assert [reward.well_formed for reward in rewards[:4]] == [None, None, True, False]
    assert [dict(reward.failures) for reward in rewards[5:]] == [
        {},
        {},
        {"checker": "blocked"},
        {"checker": "blocked"},
    ]


def test_users_functions_get_prompt_answer_reference_and_the_row(judge):
    rewards = judge({"user_rewards:seen": 1.0, "user_rewards:right": 1.0}).judge(
        [ask("7"), ask("8", "length")]
    )
    assert [reward.value for reward in rewards] == [1.0, 0.0]
    assert not any(reward.failures for reward in rewards)


def test_the_value_is_the_weighted_mean_of_what_applies(judge):
    functions = {"checker": 3.0, "user_rewards:sometimes": 1.0, "user_rewards:length": 0.0}
    first, second, third = judge(functions).judge([ask("A: 8"), ask("7"), ask("x", reference=None)])
    assert (first.value, second.value, third.value) == (0.25, 1.0, None)
    assert first.parts == {
        "checker": 0.0,
        "user_rewards:sometimes": 1.0,
        "user_rewards:length": 0.4,
    }
    assert third.parts == {
        "checker": None,
        "user_rewards:sometimes": None,
        "user_rewards:length": 0.1,
    }


class Scores:
    """A reward model: the length, and no number for the empty answer."""

    def training_rewards(self, groups):
        assert all(answer.prompt == ROW["prompt"] for answers in groups for answer in answers)
        return [
            [float(len(answer.text)) if answer.text else math.nan for answer in answers]
            for answers in groups
        ]


def test_a_reward_model_is_one_more_part(judge):
    rewards = judge({"checker": 1.0}, Scores(), 0.5).judge([ask("7"), ask("abc"), ask("")])
    assert [reward.value for reward in rewards] == [pytest.approx(1.0), pytest.approx(1.0), 0.0]
    assert rewards[2].failures == {"reward_model": "returned nan"}
    alone = judge({}, Scores(), 2.0).judge([ask("abc"), ask("")])
    assert [reward.value for reward in alone] == [3.0, None]


@pytest.mark.parametrize(
    ("deed", "kind"),
    [
        ("loop", "timed out"),
        ("spin", "timed out"),
        ("exit", "raised SystemExit"),
        ("os exit", "process died"),
        ("segfault", "process died"),
        ("memory", "raised MemoryError"),
        ("raise", "raised ZeroDivisionError"),
        ("interrupt", "raised KeyboardInterrupt"),
        ("recursion", "raised RecursionError"),
        ("nan", "returned nan"),
        ("inf", "returned -inf"),
        ("text", "returned str"),
        ("list", "returned list"),
        ("complex", "returned complex"),
        ("close", "process died"),
        ("flood", "process died"),
        ("unknown", "raised KeyError"),
    ],
)
def test_a_hostile_function_costs_its_own_judgement_only(judge, deed, kind):
    rewards = judge({"user_rewards:hostile": 1.0, "checker": 1.0}, timeout=1.0).judge(
        [ask("fine"), ask(deed), ask("fine")]
    )
    assert [reward.parts["user_rewards:hostile"] for reward in rewards] == [0.5, None, 0.5]
    assert rewards[1].failures == {"user_rewards:hostile": kind}
    assert [reward.parts["checker"] for reward in rewards] == [0.0, 0.0, 0.0]
    assert rewards[1].value == 0.0  # the checker's alone


def test_a_function_of_the_table_judges_with_its_settings(judge):
    rewards = judge(
        {"length": 1.0, "regex": 3.0},
        settings={"length": {"most": 1}, "regex": {"pattern": "^yes"}},
    ).judge([ask("yes yes"), ask("no")])
    assert [reward.parts for reward in rewards] == [
        {"length": 0.0, "regex": 1.0},
        {"length": 1.0, "regex": 0.0},
    ]
    assert [reward.value for reward in rewards] == [0.75, 0.25]


@pytest.mark.slow
def test_a_program_that_hangs_is_wrong_and_the_start_of_the_sandbox_costs_no_answer_its_time(judge):
    try:
        level()
    except SandboxRefused as error:
        missing("sandbox", str(error))
    tests = {"checker": "code_execution", "reference": {"tests": ["assert f() == 1"]}}
    codes = [
        "def f():\n    return 1",
        "def f():\n    while True: pass",
        "import time\ndef f():\n    time.sleep(999)",
        "def f(): return 2",
    ]
    rewards = judge({"checker": 1.0}, timeout=4.0).judge([ask(code, **tests) for code in codes])
    assert [(reward.value, dict(reward.failures)) for reward in rewards] == [
        (1.0, {}),
        (0.0, {}),
        (0.0, {}),
        (0.0, {}),
    ]


@pytest.mark.parametrize(
    "settings", [{"checker": {"a": 1}}, {"regex": {}}, {"length": {"mots": 1}}]
)
def test_settings_that_nothing_reads_are_refused_at_the_start(settings):
    with pytest.raises(ConfigError, match=r"checker|regex|mots"):
        RewardJudge({"checker": 1.0, "length": 1.0}, settings=settings)


def test_defect_2c1_a_fresh_answer_is_never_credited_with_what_was_said_of_a_logged_one(judge):
    output = dict.fromkeys(
        ("thumb", "rating", "score", "edit_distance", "outcome", "decision"), 1.0
    )
    row = {
        "value": 5.0,
        "label": True,
        "feedback_ids": ["f1"],
        "trace_ids": ["t1"],
        "feedback": [{"kind": "thumb", "value": True}],
    }
    (rewards,) = judge(output).judge([ask("7", **row)])
    assert (rewards.value, set(rewards.parts.values()), rewards.failures) == (None, {None}, {})


def test_what_is_printed_is_no_verdict(judge, capfd):
    rewards = judge({"user_rewards:prints": 1.0}).judge([ask("x")] * 3)
    assert [reward.value for reward in rewards] == [0.25] * 3
    assert capfd.readouterr().out == ""


def test_order_is_kept_over_many_workers_and_the_caller_is_not_blocked(judge):
    two_workers = judge(
        {"user_rewards:length": 1.0, "user_rewards:hostile": 0.0}, timeout=3.0, workers=2
    )
    asks = [ask("loop"), *(ask("x" * count) for count in range(60))]
    started = [two_workers.start(each) for each in asks]
    later = two_workers.start(ask("abc"))
    assert not all(reply.done() for reply in started[0].replies.values())
    assert [round(rewards.value * 10) for rewards in two_workers.finish(started)] == [4, *range(60)]
    assert two_workers.finish([later])[0].value == pytest.approx(0.3)


def test_a_failure_is_said_once_with_its_reason(judge, capsys):
    judge({"user_rewards:hostile": 1.0}).judge([ask("raise")] * 5)
    output = capsys.readouterr().err
    assert output.count("division by zero") == 1


@pytest.mark.parametrize("name", ["no_such", "user_rewards:no_such", "no_such_module:f", "regex"])
def test_a_function_that_cannot_be_had_is_refused_at_the_start(name):
    with pytest.raises(ConfigError, match=name.split(":")[-1]):
        RewardJudge({"checker": 1.0, name: 1.0})


@pytest.mark.parametrize(
    "functions", [{}, {"checker": 0.0}, {"checker": -1.0}, {"checker": math.inf}]
)
def test_weights_without_a_mean_are_refused(functions):
    with pytest.raises(ConfigError, match="weight"):
        RewardJudge(functions)


def test_closing_ends_the_processes_even_at_work(judge):
    slow_judge = judge({"user_rewards:hostile": 1.0}, timeout=60.0)
    slow_judge.start(ask("loop"))
    time.sleep(0.3)
    (process,) = slow_judge._processes
    number = process._child.pid
    slow_judge.close()
    assert not Path(f"/proc/{number}").exists() or os.name != "posix"
    slow_judge.close()


@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere a process ends when it next reads its pipe"
)
def test_a_killed_parent_leaves_no_process_behind():
    work = """
import os, time
from test_judge import ask
from thumbwheel.training.judge import RewardJudge
judge = RewardJudge({"user_rewards:hostile": 1.0}, timeout=60.0)
judge.start(ask("spin"))
time.sleep(0.5)
print(judge._processes[0]._child.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    rewards = subprocess.run(
        [sys.executable, "-c", work],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    child = int(rewards.stdout)
    until(lambda: not _running(child))


def _running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
