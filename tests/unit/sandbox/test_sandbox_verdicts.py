"""Verdicts are made outside of the candidate: what is right passes, and no cheat does."""

from __future__ import annotations

import ast
import json
import signal
import time

import pytest

from tests.public_data import public_data
from thumbwheel.importers.sources.published_benchmarks.code_tasks import parse_mbpp
from thumbwheel.rewards.function import Case, JudgementStatus
from thumbwheel.rewards.functions.code_execution import CodeExecution
from thumbwheel.sandbox.canaries import level
from thumbwheel.sandbox.pool import Pool
from thumbwheel.sandbox.types import Limits, SandboxJob, SandboxOutcome
from thumbwheel.sandbox.types import Tests as Asked
from unit.sandbox.cheats import CHEATS

pytestmark = pytest.mark.xdist_group("sandbox")

ADD = Asked(
    ("assert add(1, 2) == 3", "assert add('a', 'b') == 'ab'", "assert add([1], [2]) == [1, 2]")
)
CHECK = Asked(
    check="import random\ndef check(candidate):\n    for _ in range(5):\n        a, b = "
    "random.randint(5, 99), random.randint(5, 99)\n"
    "        assert candidate(a, b) == a + b, 'a sum'\n    assert abs(candidate(0.5, 0.25) - "
    "0.75) < 1e-9\n",
    entry_point="add",
)


def cheat(name: str, function: str, expected: str = "3") -> str:
    return CHEATS[name].replace("NAME", function).replace("EXPECTED", expected)


@pytest.mark.parametrize("tests", [ADD, CHECK], ids=["asserts", "check"])
def test_what_is_right_passes(pool, tests):
    (result,) = pool.run([SandboxJob("def add(a, b):\n    return a + b", tests=tests)])
    assert result.state is SandboxOutcome.DONE
    assert all(result.passed) and len(result.passed) == (3 if tests is ADD else 1)


@pytest.mark.slow
@pytest.mark.parametrize("tests", [ADD, CHECK], ids=["asserts", "check"])
@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_scores_nothing(pool, name, tests):
    (result,) = pool.run([SandboxJob(cheat(name, "add"), tests=tests)])
    assert result.state is not SandboxOutcome.BROKEN
    assert not any(result.passed)


VALUES = {
    "[1, 2.5, 'a', None, True, b'x', 2j]": True,
    "{1: (2, 3), 'a': {4, 5}}": True,
    "frozenset([1])": True,
    "bytearray(b'x')": True,
    "10**5000": True,
    "float('inf')": True,
    "'\\ud800'": True,
    "-0.1": True,
    "__import__('collections').Counter('aab')": True,
    "__import__('collections').OrderedDict(a=1)": True,
    "__import__('collections').namedtuple('P', 'x y')(1, 2)": True,
    "type('S', (str,), {})('a')": True,
    "object()": False,
    "__import__('fractions').Fraction(1, 2)": True,
    "__import__('decimal').Decimal('1.50')": True,
    "__import__('datetime').datetime(2020, 1, 2, 3, 4, 5, 6)": True,
    "__import__('datetime').timedelta(-1, 3)": True,
    "__import__('collections').deque([1, (2,)])": True,
    "range(3, 10**30, 2)": True,
    "lambda: 1": False,
}


@pytest.mark.parametrize("expression", VALUES)
def test_values_arrive_as_they_are_and_objects_do_not(pool, expression):
    code = f"held = {expression}\ndef value(): return held"
    (result,) = pool.run([SandboxJob(code, tests=Asked((f"assert value() == ({expression})",)))])
    assert result.passed == (VALUES[expression],)


@pytest.mark.parametrize(
    ("gives", "passes"),
    [("1", True), ("1.0", True), ("True", True), ("'1'", False), ("[1]", False), ("1.5", False)],
)
def test_types_are_compared_as_the_test_would(pool, gives, passes):
    (result,) = pool.run(
        [SandboxJob(f"def f(): return {gives}", tests=Asked(("assert f() == 1",)))]
    )
    assert result.passed == (passes,)


FORMS = {
    "assert f(2) == 4": True,
    "assert f(2) == f(2)": True,
    "assert not f(0)": True,
    "assert f(2) > 3 and f(3) < 7": True,
    "assert sorted([f(2), f(1)]) == [2, 4]": True,
    "assert math.isclose(f(0.1), 0.2)": True,
    "assert all(f(n) == n * 2 for n in range(5))": True,
    "assert [f(n) for n in (1, 2)] == [2, 4]": True,
    "assert near(f(2), 4.1)": True,
    "assert f(2) == limit": True,
    "x = f(2)\nassert x == 4": True,
    "assert f(2) in {4: 1}": True,
    "assert f(made.value) == 6": True,
    "assert f(2) == 5": False,
    "assert near(f(2), 9)": False,
    "assert all(f(n) == n for n in range(5))": False,
}
SETUP = "import math\nlimit = 4\ndef near(a, b): return abs(a - b) < 1\nmade = Made(3)"


@pytest.mark.parametrize("test", FORMS)
def test_forms_of_tests(pool, test):
    code = (
        "class Made:\n    def __init__(self, value): self.value = value\ndef f(x): return x * "
        "2\ndef near(a, b): return True"
    )
    (result,) = pool.run([SandboxJob(code, tests=Asked((test,), SETUP))])
    assert (result.state, result.passed) == (SandboxOutcome.DONE, (FORMS[test],))


SAYS_YES = """
def f(x): return 0
def is_close(*values): return True
def not_close(*values): return False
def four(*values): return 0
def pairs(*values): return [(2, 0)]
class Judge:
    def __init__(self, *values): self.right = True
    def check(self, *values): return True
    def __eq__(self, other): return True
"""
OWN_WORDS = (
    "assert is_close(f(2), 4)",
    "assert is_close(f(2), 4) == True",
    "assert is_close(f(2), 4) is True",
    "assert True == is_close(f(2), 4)",
    "assert not not_close(f(2), 4)",
    "assert bool(is_close(f(2), 4))",
    "assert all([is_close(f(2), 4)])",
    "assert any(is_close(f(n), 2 * n) for n in (1, 2))",
    "assert [is_close(f(2), 4)] == [True]",
    "assert (lambda value: is_close(value, 4))(f(2))",
    "assert is_close(f(2), 4) if f(2) is not None else False",
    "assert (right := is_close(f(2), 4)) and right == True",
    "right = is_close(f(2), 4)\nassert right",
    "right = is_close(f(2), 4)\nassert f(2) == 4 or right",
    "value = f(2)\nright = is_close(value, 4)\nassert right == True",
    "value = f(2)\nassert is_close(value, 4)",
    "right, value = is_close(f(2), 4), f(2)\nassert right and value is not None",
    "def right(value):\n    return is_close(value, 4)\nassert right(f(2))",
    "if not is_close(f(2), 4):\n    raise AssertionError\nassert f(2) is not None",
    "while not is_close(f(2), 4):\n    assert False\nassert f(2) is not None",
    "for n, wanted in pairs():\n    assert f(n) == wanted",
    "assert all(f(n) == wanted for n, wanted in pairs())",
    "wanted = four()\nassert f(2) == wanted",
    "assert f(2) == four()",
    "wanted = []\nwanted += [four()]\nassert [f(2)] == wanted",
    "wanted = {}\nwanted['it'] = four()\nassert f(2) == wanted['it']",
    "judge = Judge(4)\nassert judge.check(f(2)) == True",
    "judge = Judge(4)\nassert judge.right and f(2) is not None",
    "assert Judge(f(2)).right",
    "assert f(2) == Judge(4)",
    "try:\n    is_close(f(2), 4)\n    right = True\nexcept ValueError:\n    right = False\nassert "
    "right and f(2) is not None",
    "assert eval('is_close(it, 4)', {**globals(), 'it': f(2)})",
    "assert eval('is_close(' + str(f(2)) + ', 4)')",
    "assert list(map(is_close, [f(2)], [4])) == [True]",
    "compare = is_close\nassert compare(f(2), 4)",
)


@pytest.mark.parametrize("entry", ["f", None])
@pytest.mark.parametrize("test", OWN_WORDS)
def test_a_function_that_only_the_program_defines_does_not_judge_it(pool, test, entry):
    (result,) = pool.run([SandboxJob(SAYS_YES, tests=Asked((test,), entry_point=entry))])
    assert (result.state, result.passed) == (SandboxOutcome.BROKEN, ()), result.detail


MAKES_INPUT = """
class Pair:
    def __init__(self, left, right): self.left, self.right = left, right
class Stack:
    def __init__(self): self.items = []
    def push(self, value): self.items.append(value); return self
def f(value):
    if isinstance(value, Pair): return value.left + value.right
    return sum(value.items if isinstance(value, Stack) else value)
def made(n): return Pair(n, n)
"""
INPUTS = {
    "assert f(Pair(1, 2)) == 3": True,
    "assert f(Pair(1, 2)) == 4": False,
    "assert f(value=[Pair(n, 1).left for n in (1, 2)]) == 3": True,
    "pair = Pair(1, 2)\npair.left = made(4).right\nassert f(pair) == 6": True,
    "stack = Stack()\nstack.push(3)\nstack.push(4)\nassert f(stack) == 7": True,
    "for n in range(3):\n    pair = made(n)\nassert f(pair) == 4": True,
    "assert all(f(made(n)) == 2 * n for n in range(3))": True,
    "assert sorted([f(made(2)), f(made(1))]) == [2, 4]": True,
}


@pytest.mark.parametrize("test", INPUTS)
def test_other_functions_of_the_program_make_what_the_entry_point_is_called_with(pool, test):
    (result,) = pool.run([SandboxJob(MAKES_INPUT, tests=Asked((test,), entry_point="f"))])
    assert (result.state, result.passed) == (SandboxOutcome.DONE, (INPUTS[test],)), result.detail


def test_a_comparison_that_says_nothing_is_no_verdict(pool):
    code = "class Any:\n    pass\ndef f(x): return Any()"
    results = pool.run(
        [
            SandboxJob(program, tests=Asked(("assert f(2).__eq__(4)",), entry_point="f"))
            for program in (code, "def f(x): return 4")
        ]
    )
    assert [result.passed for result in results] == [(False,), (True,)]


ENDLESS = {
    "closes the conversation": "import os, time\nfor n in range(3, 30):\n"
    "    try: os.close(n)\n    except OSError: pass\ntime.sleep(60)",
    "prints": "import os\nos.fork()\nwhile True: os.write(1, b'x' * 65536)",
}


@pytest.mark.parametrize("name", ENDLESS)
@pytest.mark.parametrize("tests", [None, ADD], ids=["run", "judged"])
def test_nothing_moves_the_deadline(report, name, tests):
    limits = Limits(wall_seconds=2, cpu_seconds=30)
    pool = Pool(limits, 1, level())
    pool.warm()
    before = time.monotonic()
    (result,) = pool.run([SandboxJob(ENDLESS[name], tests=tests)])
    spent = time.monotonic() - before
    pool.close()
    assert result.state is SandboxOutcome.TIMEOUT
    assert spent < 6 * limits.wall_seconds  # it was so many deadlines and more


SPY = """
import inside.work as work
asked, old = [], work.Program.reply
def reply(self, question):
    asked.append(str(question))
    return old(self, question)
work.Program.reply = reply
def f(x): return ' '.join(asked)
"""


def test_what_is_compared_with_never_enters_the_sandbox_of_the_candidate(pool):
    (result,) = pool.run(
        [
            SandboxJob(
                SPY,
                tests=Asked(
                    ("assert f(1) == 'secret-1'", "assert 'secret-2' not in f(2) and f(3)")
                ),
            )
        ]
    )
    assert result.passed == (False, True)


@pytest.mark.parametrize(
    "tests",
    [
        Asked(("assert (",)),
        Asked(("assert True",)),
        Asked(check="x = 1", entry_point="f"),
        Asked(check="1/0", entry_point="f"),
    ],
)
def test_tests_that_cannot_run_are_no_fault_of_the_candidate(pool, tests):
    (result,) = pool.run([SandboxJob("def f(): return 1", tests=tests)])
    assert result.state is SandboxOutcome.BROKEN


EMPTY = {
    "an expression": Asked(("f(1) == 2",)),
    "a function that nobody calls": Asked(("def test_f():\n    assert f(1) == 2",)),
    "a pair, which is always true": Asked(("assert (f(1) == 2, 'two')",)),
    "a question in the message": Asked(("assert True, f(1)",)),
    "a check without a call": Asked(
        check="def check(candidate):\n    assert candidate", entry_point="f"
    ),
    "a setup that the judge cannot do": Asked(("assert f(1) == two",), "if f(2):\n    two = 2"),
}


@pytest.mark.parametrize("name", EMPTY)
def test_tests_that_assert_nothing_are_broken(pool, name):
    (result,) = pool.run([SandboxJob("def f(x): return 'nonsense'", tests=EMPTY[name])])
    assert result.state is SandboxOutcome.BROKEN


def test_stop_iteration_does_not_end_the_loop_of_a_check(pool):
    check = (
        "def check(candidate):\n    for got, want in zip(map(candidate, [1, 2]), [2, 3]):\n        "
        "assert got == want\n"
    )
    tests = Asked(check=check, entry_point="f")
    results = pool.run(
        [
            SandboxJob(code, tests=tests)
            for code in ("def f(x):\n    raise StopIteration", "def f(x): return x + 1")
        ]
    )
    assert [(result.state, result.passed) for result in results] == [
        (SandboxOutcome.DONE, (False,)),
        (SandboxOutcome.DONE, (True,)),
    ]


def test_a_name_that_the_setup_tries_to_import_is_not_asked_of_the_candidate(pool):
    setup = "try:\n    from math import isclose\nexcept ImportError:\n    pass"
    code = "import math\nmath.isclose = isclose = lambda *a, **k: True\ndef f(x): return 0"
    (result,) = pool.run([SandboxJob(code, tests=Asked(("assert isclose(f(1), 2)",), setup))])
    assert (result.state, result.passed) == (SandboxOutcome.DONE, (False,))


@pytest.mark.parametrize(
    ("state", "answers"), [(SandboxOutcome.TIMEOUT, 1), (SandboxOutcome.BROKEN, 0)]
)
def test_a_judge_that_dies_over_an_answer_is_the_candidates_failure(pool, state, answers):
    tests = Asked(
        check="import os\ndef check(candidate):\n"
        + "    candidate(1)\n" * answers
        + "    os._exit(1)\n",
        entry_point="f",
    )
    (result,) = pool.run([SandboxJob("def f(x): return 2", tests=tests)])
    assert (result.state, result.passed) == (state, ())


def test_a_set_with_too_many_items_is_not_compared(pool):
    asked = Asked(("assert len(f(9000)) == 9000", "assert f(101_000)"))
    (result,) = pool.run([SandboxJob("def f(x): return set(range(x))", tests=asked)])
    assert result.passed == (True, False)


def test_tests_too_long_to_be_sent_are_broken_and_cost_the_next_candidate_nothing(pool):
    long = Asked(("assert f(1) == 2 # " + "x" * 5_000_000,))
    results = pool.run(
        [
            SandboxJob("def f(x): return 2", tests=tests)
            for tests in (long, Asked(("assert f(1) == 2",)))
        ]
    )
    assert [result.state for result in results] == [SandboxOutcome.BROKEN, SandboxOutcome.DONE]
    assert results[1].passed == (True,)


@pytest.mark.slow
def test_an_alarm_in_the_middle_of_a_run_costs_the_next_candidate_nothing(pool):
    def late(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    try:
        with pytest.raises(TimeoutError):
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            pool.run([SandboxJob("import time\ntime.sleep(3)", tests=Asked(("assert f(1) == 2",)))])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    (result,) = pool.run([SandboxJob("def f(x): return 2", tests=Asked(("assert f(1) == 2",)))])
    assert (result.state, result.passed) == (SandboxOutcome.DONE, (True,))


def test_many_programs_come_back_in_their_order(pool):
    results = pool.run([SandboxJob(f"print({number})") for number in range(20)])
    assert [result.output for result in results] == [f"{number}\n" for number in range(20)]


PATIENT = {"limits": {"wall_seconds": 600, "cpu_seconds": 120}}
"""One solution counts for six seconds; a loaded machine must not change a verdict."""


def humaneval() -> list[dict]:
    return [
        json.loads(line)
        for line in public_data("code-tasks/humaneval.jsonl").read_text().splitlines()
    ]


def mbpp() -> list[dict]:
    return [
        json.loads(line) for line in public_data("code-tasks/mbpp.jsonl").read_text().splitlines()
    ]


def mbpp_case(task: dict, code: str) -> Case:
    case, _ = parse_mbpp(task)
    return Case(f"```python\n{code}\n```", case.reference)


def humaneval_case(task: dict, answer: str) -> Case:
    asked = [
        {
            "role": "user",
            "content": f"Complete this function.\n\n```python\n{task['prompt'].strip()}\n```",
        }
    ]
    return Case(
        answer,
        {"tests": [], "setup": "", "check": task["test"], "entry_point": task["entry_point"]},
        prompt=asked,
    )


@pytest.mark.slow
def test_every_canonical_solution_of_mbpp_scores_1(report):
    tasks = mbpp()
    scores = CodeExecution.create(PATIENT).score([mbpp_case(task, task["code"]) for task in tasks])
    assert [
        task["task_id"] for task, score in zip(tasks, scores, strict=True) if score.value != 1.0
    ] == []
    assert len(scores) == 480


@pytest.mark.slow
@pytest.mark.parametrize("form", ["whole", "rest", "fenced rest", "dedented rest"])
def test_every_canonical_solution_of_humaneval_scores_1(report, form):
    import textwrap

    answers = {
        "whole": lambda task: (
            f"Here:\n```python\n{task['prompt']}{task['canonical_solution']}\n```\nDone."
        ),
        "rest": lambda task: task["canonical_solution"],
        "fenced rest": lambda task: f"```python\n{task['canonical_solution']}```",
        "dedented rest": lambda task: (
            f"```python\n{textwrap.dedent(task['canonical_solution'])}```"
        ),
    }
    tasks = humaneval()
    scores = CodeExecution.create(PATIENT).score(
        [humaneval_case(task, answers[form](task)) for task in tasks]
    )
    assert [
        task["task_id"] for task, score in zip(tasks, scores, strict=True) if score.value != 1.0
    ] == []
    assert len(scores) == 70


def decided_by_value(task: dict) -> bool:
    """Whether the first expected value is a constant that no empty or true value equals."""
    try:
        value = ast.literal_eval(ast.parse(task["test_list"][0]).body[0].test.comparators[0])
    except (ValueError, AttributeError):
        return False
    return bool(value) and value not in (1, [1], "1")


@pytest.mark.slow
@pytest.mark.parametrize("name", CHEATS)
def test_no_cheat_scores_on_real_tasks(report, name):
    # the one that sleeps is let sleep until its time is over
    wall_seconds = 4 if name == "closes the conversation and goes on" else 20
    function = CodeExecution.create({"limits": {"wall_seconds": wall_seconds}})
    chosen = [task for task in mbpp() if decided_by_value(task)][::60]
    cases = []
    for task in chosen:
        call = ast.parse(task["test_list"][0]).body[0].test
        cases.append(
            mbpp_case(task, cheat(name, call.left.func.id, ast.unparse(call.comparators[0])))
        )
    cases += [
        humaneval_case(task, f"```python\n{cheat(name, task['entry_point'])}\n```")
        for task in humaneval()[::15]
    ]
    scores = function.score(cases)
    assert len(scores) >= 8
    assert {(score.status, score.value) for score in scores} == {(JudgementStatus.OK, 0.0)}
