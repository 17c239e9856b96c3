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

from .asking import GUARD, Candidate, FromCandidate, TestsBroken, value
from .questions import ASK, Asked, InPlace, asserted, binds, bound, loaded, modules, needs, touched
from .verdict_source import Flow, Undecided, asked_function
from .wire import LATE, Talk, encode


class Test(NamedTuple):
    """A test, and the names that it binds itself: one that is missing there is the doing of an
    answer."""

    run: Callable[[], None]
    names: set[str]


def verdict(talk: Talk, job: dict[str, Any]) -> dict[str, Any]:
    """{"passed": [bool, ...], "detail": the first failure}, or {"broken": why the tests cannot
    run}."""
    sys.addaudithook(GUARD)
    warnings.filterwarnings(
        "error", "NotImplemented should not be used", DeprecationWarning
    )  # it is true, and no verdict
    try:
        tests = functional(talk, job) if job.get("check") else asserts(talk, job)
    except (TestsBroken, SyntaxError, ValueError) as error:
        return {"verdict": {"broken": f"{type(error).__name__}: {error}"[:2000]}}
    try:
        results = [one(test) for test in tests]
        if GUARD.refused:
            raise TestsBroken(GUARD.refused)
    except TestsBroken as error:
        return {"verdict": {"broken": str(error)[:2000]}}
    return {
        "verdict": {
            "passed": [text is None for text in results],
            "detail": next((text for text in results if text is not None), ""),
        }
    }


def one(test: Test) -> str | None:
    """What is wrong with the candidate by this test; None where nothing is."""
    try:
        test.run()
    except TestsBroken:
        raise
    except FromCandidate as error:
        return f"it raised: {error.told or said(error)}"[:2000]
    except AssertionError as error:
        return f"not as expected: {said(error)}"[:2000].removesuffix(": ")
    except (NameError, ImportError) as error:
        if isinstance(error, UnboundLocalError) or error.name in test.names:
            return said(error)
        raise TestsBroken(said(error)) from None
    except Exception as error:  # noqa: BLE001 - what the candidate gave cannot be compared
        return f"{type(error).__name__}: {said(error)}"[:2000]
    return None


def said(error: BaseException) -> str:
    """Its text; what it holds may be an answer that cannot be shown."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - whatever the answer is
        return f"{type(error).__name__} over an answer that cannot be shown"


def functional(talk: Talk, job: dict[str, Any]) -> list[Test]:
    """The `check` function of a task, for the candidate's entry point; names of the task's own head
    are the judge's."""
    space: dict[str, Any] = {"__name__": "tests"}
    setup, tree = job.get("setup") or "", InPlace().visit(ast.parse(job["check"]))
    try:
        for text in (job.get("head") or "", setup):
            exec(compile(text, "<tests>", "exec", LATE, dont_inherit=True), space)
        exec(compile(ast.fix_missing_locations(tree), "<tests>", "exec", dont_inherit=True), space)
        check = space["check"]
    except BaseException as error:  # noqa: BLE001 - whatever it was, the task cannot be judged
        raise TestsBroken(f"{type(error).__name__}: {error}") from None
    candidate = Candidate(talk, job["entry_point"])
    space[job["entry_point"]] = candidate

    def test() -> None:
        share(talk, ast.parse(setup).body, set(), space, job["entry_point"])
        try:
            check(candidate)
        finally:
            if not candidate.called:
                raise TestsBroken("the check asks the candidate nothing")

    return [Test(test, bound(tree))]


def asserts(talk: Talk, job: dict[str, Any]) -> list[Test]:
    """One test per assert statement of the task."""
    space: dict[str, Any] = {"__name__": "tests", ASK: lambda text: value(talk, {"ask": text})}
    setup, entry = ast.parse(job.get("setup") or "").body, job.get("entry_point")
    known = own(setup, space) - {entry}
    classes = {one.name for one in setup if isinstance(one, ast.ClassDef)}
    found, needed = [], set[str]()
    for text in job["tests"]:
        for name in modules(ast.parse(text)) - known:
            space[name] = importlib.import_module(name)
            known.add(name)
        # a class of the setup is the judge's, unless a test has nothing else to ask: then it is the
        # outline of what was asked for
        asked, tree = next(
            (one for names in (known, known - classes) if (one := questioned(text, names, entry))),
            (None, None),
        )
        if asked is None or tree is None:
            raise TestsBroken(f"the test {text[:200]!r} asserts nothing about the candidate")
        code = compile(ast.fix_missing_locations(tree), "<test>", "exec", dont_inherit=True)
        run = partial(
            asserting, code, space, {name: Candidate(talk, name) for name in asked.proxies}
        )
        found.append(Test(run, bound(tree)))
        needed |= asked.needed | asked.proxies
    try:
        share(talk, setup, needed, space, entry)
    except FromCandidate as error:
        return [Test(partial(failing, error), set()) for _ in found]
    return found


def questioned(text: str, known: set[str], entry: str | None) -> tuple[Asked, ast.Module] | None:
    """A test with its questions in place; None where it asserts nothing about the candidate."""
    tree = ast.parse(text)
    asked = Asked(known, bound(tree))
    try:
        function = asked_function(tree, asked.theirs, entry)
    except Undecided as error:
        raise TestsBroken(
            f"the test {text[:200]!r} calls {error}, which only the program defines: name the one "
            "that it is about as entry_point"
        ) from None
    if (
        function is not None
        and (name := Flow(tree, asked.theirs, function).verdict_by()) is not None
    ):
        raise TestsBroken(
            f"in the test {text[:200]!r} the program itself would say whether its answer is "
            f"right: {name!r} is not known here, "
            f"and the test is about {function!r}"
        )
    return (asked, tree) if asserted(asked, tree.body) else None


def asserting(code: CodeType, space: dict[str, Any], more: dict[str, Any]) -> None:
    """A test: names that it changes are its own."""
    exec(code, {**space, **more})


def failing(error: Exception) -> None:
    """A test whose setup the candidate's program could not do."""
    raise error


def own(setup: list[ast.stmt], space: dict[str, Any]) -> set[str]:
    """Do what the setup needs no candidate for. Returns the known names; raises TestsBroken where a
    compound statement needs one.

    A plain assignment from the candidate's names, and a class that needs them, stay the
    candidate's.
    """
    known = set(vars(builtins)) | set(space)
    for statement in setup:
        needed = loaded(statement) - known
        if not needed or isinstance(statement, ast.Import | ast.ImportFrom | ast.FunctionDef):
            try:
                exec(
                    compile(
                        ast.Module([statement], []), "<setup>", "exec", LATE, dont_inherit=True
                    ),
                    space,
                )
            except Exception as error:  # noqa: BLE001 - whatever it was, the task cannot be judged
                raise TestsBroken(f"the setup: {type(error).__name__}: {error}") from None
            known |= set(space)
        elif isinstance(statement, ast.Try | ast.If | ast.For | ast.While | ast.With):
            raise TestsBroken(
                f"the setup {ast.unparse(statement)[:200]!r} needs {sorted(needed)} of the "
                "candidate"
            )
    return known


def share(
    talk: Talk, setup: list[ast.stmt], needed: set[str], space: dict[str, Any], entry: str | None
) -> None:
    """Give the candidate the imports of a setup and what makes these names; data go as values that
    were made here.

    The rest of a setup may hold what is right, and what it has under the name that the program is
    asked for certainly does. Raises what the candidate raises over it.
    """
    body = [one for one in setup if entry is None or entry not in binds(one)]
    chosen: set[ast.stmt] = {one for one in body if isinstance(one, ast.Import | ast.ImportFrom)}
    defined = set().union(
        *(
            binds(one)
            for one in body
            if isinstance(one, ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom)
        )
    )
    made = set().union(*map(binds, body))
    values, waiting, done = dict[str, Any](), needed - {entry}, set[str]()
    while waiting:
        name = waiting.pop()
        done.add(name)
        if name in space and (held := data(space[name])) is not None:
            values[name] = held
            continue
        for one in body if name in made else ():
            if one not in chosen and name in (binds(one) if name in defined else touched(one)):
                chosen.add(one)
                waiting |= needs(one) - done - {entry}
    found = [ast.unparse(one) for one in body if one in chosen]
    found += [
        f"import {name}"
        for name in sorted(done - defined)
        if isinstance(space.get(name), ModuleType)
    ]
    if found or values:
        value(talk, {"setup": "\n".join(found), "values": values})


def data(held: Any) -> Any:
    """The value for the wire; None for what is no data."""
    try:
        return encode(held)
    except ValueError:
        return None
