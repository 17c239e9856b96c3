"""The judge: runs the tests of a task in a sandbox of its own and asks the candidate's sandbox for
values.

Tests of the form `assert EXPRESSION`: a call of a name that the judge does not know is the
candidate's; it is sent as text, so that its arguments are made there, and the value that comes back
takes its place here, where the comparison happens. A call with names that the test itself binds is
sent with its arguments as values, as are those of a `check(candidate)` function. An object that is
no data stays with the candidate and is asked for its attributes and items. Of the setup the
candidate gets what its questions need.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import sys
import warnings
from collections.abc import Callable
from functools import partial
from types import CodeType, ModuleType
from typing import Any, NamedTuple

from .candidate_proxy import GUARD, CandidateError, CandidateName, TestsBroken, ask
from .protocol import ANNOTATIONS_FLAG, Channel, encode
from .questions import (
    ASK,
    InPlace,
    QuestionTransformer,
    asserted,
    binds,
    bound,
    loaded,
    modules,
    needs,
    touched,
)
from .verdict_source import Flow, Undecided, asked_function


class Test(NamedTuple):
    """A test, and the names that it binds itself: one that is missing there is the doing of an
    answer."""

    run: Callable[[], None]
    names: set[str]


def verdict(channel: Channel, job: dict[str, Any]) -> dict[str, Any]:
    """Run the tests and return {"passed": [bool, ...], "detail": the first failure}, or {"broken":
    why the tests cannot run}."""
    sys.addaudithook(GUARD)
    # NotImplemented is true, and no verdict
    warnings.filterwarnings("error", "NotImplemented should not be used", DeprecationWarning)
    try:
        tests = (
            check_function_test(channel, job) if job.get("check") else assert_tests(channel, job)
        )
    except (TestsBroken, SyntaxError, ValueError) as error:
        return {"verdict": {"broken": f"{type(error).__name__}: {error}"[:2000]}}
    try:
        results = [run_test(test) for test in tests]
        if GUARD.refused:
            raise TestsBroken(GUARD.refused)
    except TestsBroken as error:
        return {"verdict": {"broken": str(error)[:2000]}}
    failures = [text for text in results if text is not None]
    passed = [text is None for text in results]
    return {"verdict": {"passed": passed, "detail": failures[0] if failures else ""}}


def run_test(test: Test) -> str | None:
    """Return why the candidate fails this test; None if it passes. Raises TestsBroken if the test
    itself cannot run."""
    try:
        test.run()
    except TestsBroken:
        raise
    except CandidateError as error:
        return f"it raised: {error.shown or error_text(error)}"[:2000]
    except AssertionError as error:
        return f"not as expected: {error_text(error)}"[:2000].removesuffix(": ")
    except (NameError, ImportError) as error:
        if isinstance(error, UnboundLocalError) or error.name in test.names:
            return error_text(error)
        raise TestsBroken(error_text(error)) from None
    except Exception as error:  # noqa: BLE001 - what the candidate gave cannot be compared
        return f"{type(error).__name__}: {error_text(error)}"[:2000]
    return None


def error_text(error: BaseException) -> str:
    """Return the error's text, or a replacement if its content is an answer that cannot be
    shown."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - whatever the answer is
        return f"{type(error).__name__} over an answer that cannot be shown"


def check_function_test(channel: Channel, job: dict[str, Any]) -> list[Test]:
    """Return the `check` function of a task as a test of the candidate's entry point; names of the
    task's own head are the judge's. Raises TestsBroken."""
    space: dict[str, Any] = {"__name__": "tests"}
    setup, tree = job.get("setup") or "", InPlace().visit(ast.parse(job["check"]))
    try:
        for text in (job.get("head") or "", setup):
            exec(compile(text, "<tests>", "exec", ANNOTATIONS_FLAG, dont_inherit=True), space)
        exec(compile(ast.fix_missing_locations(tree), "<tests>", "exec", dont_inherit=True), space)
        check = space["check"]
    except BaseException as error:  # noqa: BLE001 - whatever it was, the task cannot be judged
        raise TestsBroken(f"{type(error).__name__}: {error}") from None
    candidate = CandidateName(channel, job["entry_point"])
    space[job["entry_point"]] = candidate

    def test() -> None:
        send_setup(channel, ast.parse(setup).body, set(), space, job["entry_point"])
        try:
            check(candidate)
        finally:
            if not candidate.called:
                raise TestsBroken("the check asks the candidate nothing")

    return [Test(test, bound(tree))]


def assert_tests(channel: Channel, job: dict[str, Any]) -> list[Test]:
    """Return one test per assert statement of the task."""
    space: dict[str, Any] = {"__name__": "tests", ASK: lambda text: ask(channel, {"ask": text})}
    setup, entry = ast.parse(job.get("setup") or "").body, job.get("entry_point")
    judge_names = run_setup(setup, space) - {entry}
    classes = {statement.name for statement in setup if isinstance(statement, ast.ClassDef)}
    tests, needed = [], set[str]()
    for text in job["tests"]:
        for name in modules(ast.parse(text)) - judge_names:
            space[name] = importlib.import_module(name)
            judge_names.add(name)
        # a class of the setup is the judge's, unless a test has nothing else to ask: then it is the
        # outline of what was asked for
        questioned = put_questions(text, judge_names, entry)
        questioned = questioned or put_questions(text, judge_names - classes, entry)
        if questioned is None:
            raise TestsBroken(f"the test {text[:200]!r} asserts nothing about the candidate")
        transformer, tree = questioned
        code = compile(ast.fix_missing_locations(tree), "<test>", "exec", dont_inherit=True)
        candidates = {name: CandidateName(channel, name) for name in transformer.proxies}
        tests.append(Test(partial(run_assert, code, space, candidates), bound(tree)))
        needed |= transformer.needed | transformer.proxies
    try:
        send_setup(channel, setup, needed, space, entry)
    except CandidateError as error:
        return [Test(partial(raise_error, error), set()) for _ in tests]
    return tests


def put_questions(
    text: str, judge_names: set[str], entry: str | None
) -> tuple[QuestionTransformer, ast.Module] | None:
    """Return a test with its questions in place; None if it asserts nothing about the candidate.
    Raises TestsBroken if it calls several functions that only the program defines."""
    tree = ast.parse(text)
    transformer = QuestionTransformer(judge_names, bound(tree))
    is_candidate_call = transformer.is_candidate_call
    try:
        function = asked_function(tree, is_candidate_call, entry)
    except Undecided as error:
        raise TestsBroken(
            f"the test {text[:200]!r} calls {error}, which only the program defines: name the one "
            "that it is about as entry_point"
        ) from None
    decider = None
    if function is not None:
        decider = Flow(tree, is_candidate_call, function).verdict_by()
    if decider is not None:
        raise TestsBroken(
            f"in the test {text[:200]!r} the program itself would say whether its answer is "
            f"right: {decider!r} is not known here, and the test is about {function!r}"
        )
    return (transformer, tree) if asserted(transformer, tree.body) else None


def run_assert(code: CodeType, space: dict[str, Any], more: dict[str, Any]) -> None:
    """Run a test; names that it changes stay its own."""
    exec(code, {**space, **more})


def raise_error(error: Exception) -> None:
    """Raise `error`: the test of a setup that the candidate's program could not run."""
    raise error


def run_setup(setup: list[ast.stmt], space: dict[str, Any]) -> set[str]:
    """Run the statements of the setup that need no candidate. Returns the known names. Raises
    TestsBroken if a compound statement needs one, or a statement fails.

    A plain assignment from the candidate's names, and a class that needs them, stay the
    candidate's.
    """
    names = set(vars(builtins)) | set(space)
    for statement in setup:
        needed = loaded(statement) - names
        if not needed or isinstance(statement, ast.Import | ast.ImportFrom | ast.FunctionDef):
            module = ast.Module([statement], [])
            try:
                code = compile(module, "<setup>", "exec", ANNOTATIONS_FLAG, dont_inherit=True)
                exec(code, space)
            except Exception as error:  # noqa: BLE001 - whatever it was, the task cannot be judged
                raise TestsBroken(f"the setup: {type(error).__name__}: {error}") from None
            names |= set(space)
        elif isinstance(statement, ast.Try | ast.If | ast.For | ast.While | ast.With):
            raise TestsBroken(
                f"the setup {ast.unparse(statement)[:200]!r} needs {sorted(needed)} of the "
                "candidate"
            )
    return names


def send_setup(
    channel: Channel,
    setup: list[ast.stmt],
    needed: set[str],
    space: dict[str, Any],
    entry: str | None,
) -> None:
    """Send the candidate the imports of a setup and the statements that define these names; data
    are sent as values that were computed here.

    The rest of the setup may contain the reference solution, and the definition of the entry point
    certainly does, so it stays outside. Raises the candidate's exception over the setup.
    """
    imports = ast.Import | ast.ImportFrom
    body = [statement for statement in setup if entry is None or entry not in binds(statement)]
    chosen: set[ast.stmt] = {statement for statement in body if isinstance(statement, imports)}
    defined, assigned = set[str](), set[str]()
    for statement in body:
        assigned |= binds(statement)
        if isinstance(statement, ast.FunctionDef | ast.ClassDef | imports):
            defined |= binds(statement)

    # follow what each name needs; what is data goes as a value
    values, waiting, done = dict[str, Any](), needed - {entry}, set[str]()
    while waiting:
        name = waiting.pop()
        done.add(name)
        if name in space and (encoded := as_data(space[name])) is not None:
            values[name] = encoded
            continue
        makes = binds if name in defined else touched
        makers = [statement for statement in body if name in makes(statement)]
        for statement in set(makers) - chosen if name in assigned else ():
            chosen.add(statement)
            waiting |= needs(statement) - done - {entry}

    lines = [ast.unparse(statement) for statement in body if statement in chosen]
    modules = [name for name in done - defined if isinstance(space.get(name), ModuleType)]
    lines += [f"import {name}" for name in sorted(modules)]
    if lines or values:
        ask(channel, {"setup": "\n".join(lines), "values": values})


def as_data(held: Any) -> Any:
    """Return the value for the wire; None for a value that is no data."""
    try:
        return encode(held)
    except ValueError:
        return None
