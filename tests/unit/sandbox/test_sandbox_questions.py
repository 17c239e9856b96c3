"""What the judge asks, of which names and objects, and what of a task's setup the candidate gets to
see."""

from __future__ import annotations

import pytest

from thumbwheel.sandbox.types import SandboxJob, SandboxOutcome
from thumbwheel.sandbox.types import Tests as Asked

pytestmark = pytest.mark.xdist_group("sandbox")

OBJECTS = """
class Stack:
    def __init__(self): self.items = []
    def push(self, item): self.items.append(item); return self
    def pop(self): return self.items.pop()
    def __len__(self): return len(self.items)
    def __str__(self): return f'Stack{self.items}'
    def __iter__(self): return iter(self.items)
    @staticmethod
    def two(x): return 2
class Near:
    def __sub__(self, other): return 0
    def __eq__(self, other): return True
def spins():
    yield from (1, 2, 3, 4)
    while True: pass
def sort(a): a.sort()
def fails(x): raise ValueError('negative', 10**5000)
def squares(count):
    for n in range(count): yield n * n
def same(x): return x
def apply(g, x): return g(x)
def sum(x): return 'ours'
def select(x): return x[0]
"""

OF_OBJECTS = {
    "assert list(squares(4)) == [0, 1, 4, 9]": True,
    "assert [n for n in squares(300)][-1] == 299 ** 2": True,
    "assert list(itertools.islice(squares(10**9), 3)) == [0, 1, 4]": True,
    "g = squares(9)\nassert next(g) == 0 and next(g) == 1": True,
    "assert next(squares(0)) == 0": False,
    "assert squares(2) == [0, 1]": False,
    "assert list(squares(2)) == [0, 2]": False,
    "s = Stack()\ns.push(3)\nassert s.pop() == 3": True,
    "s = Stack()\ns.push(3)\nassert s.pop() == 4": False,
    "assert Stack().push(4).items == [4]": True,
    "assert len(Stack().push(1)) == 1": True,
    "assert str(Stack().push(1)) == 'Stack[1]'": True,
    "assert sorted(Stack().push(2).push(1)) == [1, 2]": True,
    "assert same(Stack().push(5)).pop() == 5": True,
    "assert Stack.two(9) == 2": True,
    "assert all(Stack.two(n) == 2 for n in range(3))": True,
    "r = 5\nassert same(r) == 5": True,
    "def plus(n):\n    return same(n) + 1\nassert plus(3) == 4": True,
    "assert same(decimal.Decimal('1.5')) == decimal.Decimal('1.5')": True,
    "assert apply(lambda n: n + 1, 2) == 3": True,
    "assert select([7]) == 7": True,
    "assert same(1) == 2, f'not {same(1)}'": False,
    "assert same('abc').isdigit()": False,
    "assert Stack().startswith('a')": False,
    "s = Stack()\ns.name = 'n'\ns._name = 'm'\nassert (s.name, s._name) == ('n', 'm')": True,
    "s = Stack()\ns.items = [7]\nassert s.pop() == 7": True,
    "assert list(itertools.islice(spins(), 4)) == [1, 2, 3, 4]": True,
    "a = [3, 1, 2]\nsort(a)\nassert a == [1, 2, 3]": True,
    "a = {1}\nsort(a)\nassert a == {1}": False,
    "assert abs(Near() - 2) < 0.1": False,
    "assert Near() == 2": False,
    "assert fails(1)": False,
}


@pytest.mark.parametrize("test", OF_OBJECTS)
def test_objects_are_asked_for_what_is_data(pool, test):
    entry = "same" if "same(Stack" in test else None
    (result,) = pool.run([SandboxJob(OBJECTS, tests=Asked((test,), entry_point=entry))])
    assert (result.state, result.passed) == (SandboxOutcome.DONE, (OF_OBJECTS[test],))


def test_a_function_with_the_name_of_a_builtin_is_the_entry_point_where_the_task_says_so(pool):
    (result,) = pool.run(
        [SandboxJob(OBJECTS, tests=Asked(("assert sum([1]) == 'ours'",), entry_point="sum"))]
    )
    assert result.passed == (True,)


SETUPS = {
    "a constant": ("limit = 4", "assert f(2) == limit", "def f(x): return limit"),
    "a reference": (
        "def reference(x): return x * 2",
        "assert f(2) == reference(2)",
        "def f(x): return reference(x)",
    ),
    "a class with a reference": (
        "class R:\n    def go(x): return x * 2\nfour = 4",
        "assert f(2) == four",
        "def f(x): return R.go(x)",
    ),
    "what a question's data came from": (
        "def answers(): return [2, 4]\nrow = [len(answers())]\nwant = answers()[1]",
        "assert f(row) == want",
        "def f(x): return answers()[1]",
    ),
}


@pytest.mark.parametrize("name", SETUPS)
def test_a_setup_does_not_tell_the_candidate_what_is_right(pool, name):
    setup, test, code = SETUPS[name]
    (result,) = pool.run([SandboxJob(code, tests=Asked((test,), setup))])
    assert (result.state, result.passed) == (SandboxOutcome.DONE, (False,))


STOOD = {
    "the reference under the name that is asked for": (
        "",
        "def f(x): return x * 2",
        "assert f(2) == 4",
        (False,),
    ),
    "an outline of the function": (
        "def f(x): return x * 2",
        "def f(x): pass",
        "assert f(2) == 4",
        (True,),
    ),
    "an outline of the class": (
        "class S:\n    def solve(self, x): return x + 1",
        "class S:\n    def solve(self, x): pass",
        "assert S().solve(1) == 2",
        (True,),
    ),
    "an import over a function of the program": (
        "def merge(a, b): return sorted(a + b)\ndef f(a, b): return merge(a, b)",
        "from heapq import *",
        "assert f([2], [1]) == [1, 2]",
        (True,),
    ),
    "wanted values that are made with what a question needs": (
        "def f(x): return expected[len(x)]",
        "def make(n): return list(range(n))\ndef reference(x): return sum(v * v for v in "
        "x)\nexpected = {}\n"
        "for n in range(5): expected[n] = reference(make(n))",
        "assert f(make(3)) == expected[3]",
        (False,),
    ),
    "a class that is a reference": (
        "def f(x): return Ref().solve(x)",
        "class Ref:\n    def solve(self, x): return x * 2",
        "assert f(3) == Ref().solve(3)",
        (False,),
    ),
    "a class that compares": (
        "class E:\n    def __eq__(self, other): return True\ndef f(x): return E()",
        "class H:\n    @staticmethod\n    def same(a, b): return a == b",
        "assert H.same(f(3), 6)",
        (False,),
    ),
    "a type in an annotation that comes later": (
        "def f(x): return x.value",
        "def make(v) -> Node: return Node(v)\nclass Node:\n    def "
        "__init__(self, "
        "v): "
        "self.value = v",
        "assert f(make(3)) == 3",
        (True,),
    ),
}


@pytest.mark.parametrize("name", STOOD)
def test_a_program_comes_after_the_setup_and_gets_no_answer_from_it(pool, name):
    code, setup, test, passed = STOOD[name]
    (result,) = pool.run(
        [
            SandboxJob(
                code, tests=Asked((test,), setup, entry_point="S" if "class S" in setup else "f")
            )
        ]
    )
    assert (result.state, result.passed) == (SandboxOutcome.DONE, passed), result.detail


def test_what_the_program_says_about_its_own_answer_is_no_verdict(pool):
    code = "def isclose(a, b): return True\ndef f(x): return 0"
    (result,) = pool.run(
        [SandboxJob(code, tests=Asked(("assert not (not isclose(f(1), 2))",), entry_point="f"))]
    )
    assert result.state is SandboxOutcome.BROKEN


NO_ESCAPE = {
    "a number too long for a message": ("def f(x): return 10**5000", "assert c(1) == 2, c(1)"),
    "a message that raises": (
        "class E:\n    def __str__(self): raise ValueError('mine')\ndef f(x): return E()",
        "r = c(1)\n    assert r == 2, r",
    ),
    "a key that cannot be shown": ("def f(x): return 10**5000", "assert {1: 2}[c(1)] == 2"),
    "a name that is missing after an exception": (
        "def f(x): raise ValueError",
        "try:\n        r = c(1)\n    except ValueError:\n        pass\n    assert r == 2",
    ),
    "a name that is missing after a loop": (
        "def f(x): return []",
        "for v in c(3):\n        pass\n    assert v == 2",
    ),
    "a frame of the exact length": ("def f(x): return 'x' * 4194230", "assert c(c(1)) == 2"),
    "a method where data is expected": (
        "class S(dict): pass\ndef f(x): return S() if x == 1 else 3",
        "assert c(c(1).items) == 1",
    ),
    "a text that UTF-8 has not": ("def f(x): raise ValueError('\\ud800')", "assert c(1) == 2"),
}


@pytest.mark.parametrize("name", NO_ESCAPE)
def test_no_answer_turns_a_wrong_program_into_a_task_that_cannot_be_judged(pool, name):
    code, body = NO_ESCAPE[name]
    (result,) = pool.run(
        [SandboxJob(code, tests=Asked(check=f"def check(c):\n    {body}", entry_point="f"))]
    )
    assert result.state is not SandboxOutcome.BROKEN and not any(result.passed)
    result.detail.encode()


def test_a_check_sees_what_was_raised_and_what_was_changed_in_place(pool):
    check = (
        "def check(candidate):\n    a = [3, 1, 2]\n    candidate(a)\n    assert a == [1, 2, 3]\n  "
        "  try:\n        candidate(None)\n"
        "    except ValueError as error:\n        assert str(error) == 'nothing' and error.args "
        "== ('nothing',)\n"
        "    else:\n        assert 0\n"
    )
    code = "def f(a):\n    if a is None: raise ValueError('nothing')\n    a.sort()"
    (result,) = pool.run([SandboxJob(code, tests=Asked(check=check, entry_point="f"))])
    assert (result.state, result.passed) == (SandboxOutcome.DONE, (True,)), result.detail


def test_an_answer_is_not_written_to_a_file_and_imported(pool):
    check = (
        "import os, sys\ndef check(candidate):\n    with open('zz.py', 'w') as file: "
        "file.write(candidate(1))\n"
        "    sys.path.insert(0, os.getcwd())\n    import zz\n    assert zz.g(1) == 2\n"
    )
    code = "def f(x): return \"def g(x): return type('E', (), {'__eq__': lambda s, o: True})()\""
    (result,) = pool.run([SandboxJob(code, tests=Asked(check=check, entry_point="f"))])
    assert not any(result.passed)


SHARED = """
import math
class Node:
    def __init__(self, value): self.value, self.children = value, []
root = Node(half(8))
for n in range(2):
    rows.append(n) if n else None
root.children.append(Node(2))
def double(x): return factor * x
"""


def test_what_the_questions_need_of_a_setup_is_there(pool):
    setup = SHARED.replace("for n", "factor, rows = 2, [[n] for n in range(2)]\nfor n")
    code = (
        "def half(x): return x // 2\ndef f(x): return math.floor(x.value + len(x.children))\ndef "
        "g(x): return x"
    )
    tests = (
        "assert f(root) == 5",
        "assert g(double(3)) == 6",
        "assert g(rows) == [[0], [1], 1]",
        "assert f(Node(1.5)) == 1",
    )
    (result,) = pool.run([SandboxJob(code, tests=Asked(tests, setup))])
    assert (result.state, result.passed) == (SandboxOutcome.DONE, (True,) * 4), result.detail


EVALUATED = (
    "__import__('sys').modules['inside.judge'].__dict__.update(run_test=lambda test: None) or 3"
)
EVALUATING = {
    "asked whole": (Asked(("assert eval(f(1)) == 4",)), (False,)),
    "executed by the candidate": (Asked(("exec(f(1))\nassert f(2) == 4",)), (False,)),
    "by a name": (Asked(("x = f(1)\nassert eval(x) == 4",)), ()),
    "by a function of the setup": (
        Asked(("assert value(f(1)) == 4",), "def value(text): return eval(text)"),
        (),
    ),
    "by a check": (
        Asked(check="def check(candidate):\n    assert eval(candidate(1)) == 4", entry_point="f"),
        (),
    ),
    "caught by a check": (
        Asked(
            check="def check(c):\n    try:\n        assert eval(c(1)) == 4\n"
            "    except Exception:\n        pass",
            entry_point="f",
        ),
        (),
    ),
    "timed": (Asked(("assert timeit.timeit(f(1), number=1) < 9",)), ()),
    "run by a shell": (Asked(("assert os.system(f(1)) == 0",)), ()),
}


@pytest.mark.parametrize("name", EVALUATING)
def test_an_answer_is_not_evaluated_where_it_is_judged(pool, name):
    tests, passed = EVALUATING[name]
    (result,) = pool.run([SandboxJob(f"def f(x): return {EVALUATED!r}", tests=tests)])
    assert (result.state, result.passed) == (
        SandboxOutcome.DONE if passed else SandboxOutcome.BROKEN,
        passed,
    )


def test_a_literal_may_be_read_from_an_answer(pool):
    test = (
        "import ast, calendar\nassert f(1) and ast.literal_eval(f(1)) == [1, 2] and "
        "calendar.isleap(2024)"
    )
    (result,) = pool.run([SandboxJob("def f(x): return '[1, 2]'", tests=Asked((test,)))])
    assert (result.state, result.passed) == (SandboxOutcome.DONE, (True,)), result.detail


def test_a_pickle_that_calls_is_not_loaded_where_it_is_judged(pool):
    code = (
        "import pickle\nclass R:\n    def __reduce__(self): return eval, ('4',)\ndef f(x): return "
        "pickle.dumps(R())"
    )
    (result,) = pool.run([SandboxJob(code, tests=Asked(("assert pickle.loads(f(1)) == 4",)))])
    assert result.state is SandboxOutcome.BROKEN


def test_a_check_may_make_its_own_types_after_an_answer(pool):
    check = (
        "def check(candidate):\n    assert candidate(1) == 1\n    from collections import "
        "namedtuple\n    import calendar, dataclasses\n"
        "    point = namedtuple('P', 'x y')(1, 2)\n    assert candidate(point.y) == 2\n"
    )
    (result,) = pool.run(
        [SandboxJob("def f(x): return x", tests=Asked(check=check, entry_point="f"))]
    )
    assert (result.state, result.passed) == (SandboxOutcome.DONE, (True,))


def test_tests_that_hand_over_what_is_no_data_are_broken(pool):
    (result,) = pool.run(
        [SandboxJob(OBJECTS, tests=Asked(("k = 2\nassert apply(lambda n: n + k, 2) == 4",)))]
    )
    assert result.state is SandboxOutcome.BROKEN
