"""The judge: runs the tests of a task in a sandbox of its own and asks the candidate's sandbox for values.

Tests of the form `assert EXPRESSION`: a call of a name that the judge does not know is the candidate's; it is sent as text, so that its
arguments are made there, and the value that comes back takes its place here, where the comparison happens. A call inside a
comprehension or a lambda is sent with its arguments as values, as are those of a `check(candidate)` function.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import sys
from typing import Any

from .wire import Talk, decode, encode

ASK = "__ask__"
COMPARED = 20_000
"""Items of sets and dicts in one value: with more, chosen keys could make their comparison slow."""


class FromCandidate(Exception):
    """What the candidate raised."""


class TestsBroken(Exception):
    """The tests themselves cannot run."""


class Candidate:
    """A name of the candidate's program, as the tests see it."""

    def __init__(self, talk: Talk, name: str) -> None:
        self._talk, self._name = talk, name

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """What the candidate's function gives for these values."""
        return value(self._talk, {"call": self._name, "arguments": encode(list(arguments)), "named": encode(named)})


def value(talk: Talk, question: dict[str, Any]) -> Any:
    """Ask the candidate; raises what it raised, as a class that is also FromCandidate."""
    talk.send(question)
    answer = talk.receive()
    if "value" in answer:
        try:
            return decode(bounded(answer["value"]))
        except ValueError as error:
            raise FromCandidate(f"no value: {error}") from None
    base = getattr(builtins, str(answer.get("raised")), Exception)
    ordinary = isinstance(base, type) and issubclass(base, Exception) and not issubclass(base, AssertionError)
    kind = type("Raised", (FromCandidate, base) if ordinary and base is not Exception else (FromCandidate,), {})
    text = str(answer.get("text"))
    try:
        made = kind(text)
    except TypeError:  # UnicodeError and its like want more than a text
        made = FromCandidate(text)
    raise made


def bounded(given: Any) -> Any:
    """`given`; raises ValueError where its sets and dicts have too many items."""
    held, waiting = 0, [given]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            held += len(one[1]) if one and one[0] in ("set", "frozenset", "dict") and isinstance(one[1], list) else 0
            waiting += one
    if held > COMPARED:
        raise ValueError(f"{held} items in sets and dicts; at most {COMPARED} are compared")
    return given


def verdict(talk: Talk, job: dict[str, Any]) -> dict[str, Any]:
    """{"passed": [bool, ...], "detail": the first failure}, or {"broken": why the tests cannot run}."""
    try:
        tests = [functional(talk, job)] if job.get("check") else asserts(talk, job)
        results = [one(test) for test in tests]
    except (TestsBroken, SyntaxError, ValueError) as error:
        return {"verdict": {"broken": f"{type(error).__name__}: {error}"[:2000]}}
    return {"verdict": {"passed": [text is None for text in results], "detail": next((text for text in results if text is not None), "")}}


def one(test: Any) -> str | None:
    """What is wrong with the candidate by this test; None where nothing is."""
    try:
        test()
    except FromCandidate as error:
        return f"it raised: {error}"[:2000]
    except AssertionError as error:
        return f"not as expected{': ' if str(error) else ''}{error}"[:2000]
    except NameError as error:
        raise TestsBroken(str(error)) from None
    except Exception as error:  # noqa: BLE001 - what the candidate gave cannot be compared
        return f"{type(error).__name__}: {error}"[:2000]
    return None


def functional(talk: Talk, job: dict[str, Any]) -> Any:
    """The `check` function of a task, for the candidate's entry point; names of the task's own head are the judge's."""
    space: dict[str, Any] = {"__name__": "tests"}
    try:
        for text in (job.get("head") or "", job["check"]):
            exec(compile(text, "<tests>", "exec", dont_inherit=True), space)
        check = space["check"]
    except BaseException as error:  # noqa: BLE001 - whatever it was, the task cannot be judged
        raise TestsBroken(f"{type(error).__name__}: {error}") from None
    candidate = Candidate(talk, job["entry_point"])
    space[job["entry_point"]] = candidate
    return lambda: check(candidate)


def asserts(talk: Talk, job: dict[str, Any]) -> list[Any]:
    """One test per assert statement of the task."""
    space: dict[str, Any] = {"__name__": "tests", ASK: lambda text: value(talk, {"ask": text})}
    known = own(job.get("setup") or "", space)
    found = []
    for text in job["tests"]:
        tree = ast.parse(text)
        for name in {one.id for one in ast.walk(tree) if isinstance(one, ast.Name)} & sys.stdlib_module_names - known:
            space[name] = importlib.import_module(name)
            known.add(name)
        asked = Asked(known)
        body = ast.fix_missing_locations(asked.visit(tree))
        local = {name: Candidate(talk, name) for name in asked.proxies}
        if not asked.seen:
            raise TestsBroken(f"the test {text[:200]!r} asks the candidate nothing")
        code = compile(body, "<test>", "exec", dont_inherit=True)
        found.append(lambda code=code, local=local: exec(code, {**space, **local}))
    return found


def own(setup: str, space: dict[str, Any]) -> set[str]:
    """Do what the judge can do of the setup by itself: imports, functions, and assignments from known names. Returns the known names."""
    known = set(vars(builtins)) | set(space)
    for statement in ast.parse(setup).body:
        used = {one.id for one in ast.walk(statement) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}
        plain = isinstance(statement, ast.Import | ast.ImportFrom | ast.FunctionDef)
        if plain or (isinstance(statement, ast.Assign | ast.AnnAssign) and used <= known):
            exec(compile(ast.Module([statement], []), "<setup>", "exec", dont_inherit=True), space)
            known |= set(space)
    return known


class Asked(ast.NodeTransformer):
    """Puts a question in the place of every outermost call of the candidate."""

    def __init__(self, known: set[str]) -> None:
        self.known, self.bound, self.proxies, self.seen = known, set[str](), set[str](), False

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """A call: the candidate's, or one whose arguments may hold one."""
        names = {inner.id for inner in ast.walk(node.func) if isinstance(inner, ast.Name)}
        if not isinstance(node.func, ast.Name | ast.Attribute) or names & self.known or names & self.bound:
            return self.generic_visit(node)
        self.seen = True
        used = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
        if used & self.bound and isinstance(node.func, ast.Name):
            self.proxies.add(node.func.id)
            return self.generic_visit(node)
        return ast.Call(ast.Name(ASK, ast.Load()), [ast.Constant(ast.unparse(node))], [])

    def _inner(self, node: Any, names: set[str]) -> ast.AST:
        before, self.bound = self.bound, self.bound | names
        found = self.generic_visit(node)
        self.bound = before
        return found

    def _comprehension(self, node: Any) -> ast.AST:
        return self._inner(node, {one.id for part in node.generators for one in ast.walk(part.target) if isinstance(one, ast.Name)})

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension  # noqa: N815 - ast's names

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        """A lambda binds its arguments."""
        return self._inner(node, {one.arg for one in node.args.args})
