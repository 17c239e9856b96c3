"""Code tasks with tests: MBPP (also its sanitized form) and HumanEval, as cases with the checker
`code_execution`.

The reference is {"tests": [assert lines], "setup": code before them, "entry_point": name or null,
"check": code of check(candidate) or null}. MBPP names no entry point: it is the function of the
solution that the tests call, so that no other function of a program judges that one, and a task
about a `sum` asks the program for it. Of the tests of MBPP the prompt shows the first, because
nothing else names the function; the others stay hidden. The canonical solution becomes a trace of
the case, so that it can be scored like any answer.
"""

from __future__ import annotations

import ast
import warnings
from typing import Any

from thumbwheel.core.python_source import parse_module
from thumbwheel.importers.fields import clip, list_at, name_of, text_at
from thumbwheel.importers.source import JsonLines, Row
from thumbwheel.importers.types import AnyRecord, CaseRecord, TraceRecord, Unreadable

CHECKER = "code_execution"
MBPP_EXAMPLE = (
    '{"task_id": 2, "text": "Write a function to add two numbers.", "code": "def add(a, b):\\n    '
    'return a + b", "test_setup_code": "",'
    ' "test_list": ["assert add(1, 2) == 3", "assert add(0, 0) == 0"], "challenge_test_list": []}'
)
HUMANEVAL_EXAMPLE = (
    '{"task_id": "HumanEval/900", "prompt": "def add(a, b):\\n    \\"\\"\\"The sum.\\"\\"\\"\\n", '
    '"entry_point": "add",'
    ' "canonical_solution": "    return a + b\\n", "test": "def check(candidate):\\n    assert '
    'candidate(1, 2) == 3\\n"}'
)


def claims_mbpp(row: Row) -> bool:
    """Return whether the row is a task with a list of tests."""
    return {"task_id", "code", "test_list"} <= row.keys()


def parse_mbpp(row: dict[str, Any]) -> list[AnyRecord]:
    """Return the case and its solution. Raises Unreadable if it has no tests."""
    tests = _lines(row, "test_list")
    if not tests:
        raise Unreadable("it has no tests")
    setup = row.get("test_setup_code")
    if setup is not None and not isinstance(setup, str):
        raise Unreadable(f"test_setup_code {clip(setup)} is no text")
    setup_lines = _lines(row, "test_imports")
    if setup:
        setup_lines = [*setup_lines, setup]
    task = text_at(row, "text" if "text" in row else "prompt")
    prompt = f"{task}\n\nIt has to pass this test:\n\n```python\n{tests[0]}\n```"
    code = text_at(row, "code")
    all_tests = tests + _lines(row, "challenge_test_list")
    reference = {
        "tests": all_tests,
        "setup": "\n".join(setup_lines),
        "entry_point": entry_point(code, all_tests),
        "check": None,
    }
    return _records(f"mbpp/{_id(row)}", prompt, reference, code)


def entry_point(solution: str, tests: list[str]) -> str | None:
    r"""Return the name of the function under test: the one that the solution defines and all tests
    call; None if that is ambiguous.

    A class beside it only builds the function's arguments. If two functions remain, the inner one
    is under test, because the outer one takes its result: for `assert close(area(2), 4)` the prompt
    must not ask for `close`.

    >>> solution = "def close(a, b): return a == b\ndef area(x): return x * x"
    >>> entry_point(solution, ["assert close(area(2), 4)"])
    'area'
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            body = parse_module(solution).body
            trees = [parse_module(test) for test in tests]
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    functions, classes = _definitions(body)
    called_by_all = set.intersection(*(set(_called(tree)) for tree in trees))
    candidates = (called_by_all & functions) or (called_by_all & classes)
    if len(candidates) > 1:
        outer = set[str]().union(*(_outer(tree, candidates) for tree in trees))
        candidates -= outer
    return candidates.pop() if len(candidates) == 1 else None


def _definitions(body: list[ast.stmt]) -> tuple[set[str], set[str]]:
    """Return (names of functions, imports and assigned variables; names of classes)."""
    functions, classes = set[str](), set[str]()
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.add(statement.name)
        elif isinstance(statement, ast.ClassDef):
            classes.add(statement.name)
        elif isinstance(statement, ast.Assign):
            functions |= {target.id for target in statement.targets if isinstance(target, ast.Name)}
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            names = [alias.asname or alias.name for alias in statement.names]
            functions |= {name.partition(".")[0] for name in names}
    return functions, classes


def _called(tree: ast.AST) -> dict[str, list[ast.Call]]:
    """Return the calls by the name they are made on: `a` for `a(...)` and for `a.b(...)`."""
    calls: dict[str, list[ast.Call]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            base = node.func
            while isinstance(base, ast.Attribute):
                base = base.value
            if isinstance(base, ast.Name):
                calls.setdefault(base.id, []).append(node)
    return calls


def _outer(tree: ast.AST, names: set[str]) -> set[str]:
    """Return the `names` that are called with another one's result as an argument."""
    outer = set[str]()
    for name, calls in _called(tree).items():
        if name not in names:
            continue
        for call in calls:
            arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
            inner = set[str]().union(*map(_called, arguments))
            if inner & (names - {name}):
                outer.add(name)
    return outer


def claims_humaneval(row: Row) -> bool:
    """Return whether the row is a task with the name of its function and its test."""
    return {"task_id", "prompt", "entry_point", "test"} <= row.keys()


def parse_humaneval(row: dict[str, Any]) -> list[AnyRecord]:
    """Return the case and its solution, which continues the prompt."""
    code = text_at(row, "prompt")
    task = "Complete this function; answer with the whole code."
    reference = {
        "tests": [],
        "setup": "",
        "entry_point": text_at(row, "entry_point"),
        "check": text_at(row, "test"),
    }
    prompt = f"{task}\n\n```python\n{code.strip()}\n```"
    return _records(_id(row), prompt, reference, code + text_at(row, "canonical_solution"))


def _id(row: Row) -> str:
    name = name_of(row.get("task_id"))
    if name is None:
        raise Unreadable("its task_id is empty")
    return name


def _lines(row: Row, key: str) -> list[str]:
    lines = list_at(row, key)
    for line in lines:
        if not isinstance(line, str):
            raise Unreadable(f"{key} holds {clip(line)}, which is no code")
    return lines


def _records(name: str, prompt: str, reference: Row, solution: str) -> list[AnyRecord]:
    case = {
        "id": name,
        "input": prompt,
        "reference": reference,
        "checker": CHECKER,
        "group": name,
    }
    trace = {
        "case": name,
        "input": prompt,
        "output": f"```python\n{solution.strip()}\n```",
        "metadata": {"gold": True},
    }
    return [CaseRecord.model_validate(case), TraceRecord.model_validate(trace)]


MBPP = JsonLines(parse_mbpp, claims_mbpp, MBPP_EXAMPLE, reason="a task with a list of tests")
HUMANEVAL = JsonLines(
    parse_humaneval,
    claims_humaneval,
    HUMANEVAL_EXAMPLE,
    reason="a task with the name of its function and its test",
)
