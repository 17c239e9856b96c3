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
COMPARED = 1_000
"""Items of sets and dicts in one value: with more, chosen keys could make their comparison slow."""


class FromCandidate(Exception):
    """What the candidate raised."""


class TestsBroken(Exception):
    """The tests themselves cannot run."""


class Candidate:
    """A name of the candidate's program, as the tests see it."""

    def __init__(self, talk: Talk, name: str) -> None:
        self._talk, self._name, self.called = talk, name, False

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """What the candidate's function gives for these values."""
        self.called = True
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
    if isinstance(base, type) and issubclass(base, StopIteration | StopAsyncIteration):
        base = RuntimeError  # it would end a loop of the tests as if all had been asked
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
    except TestsBroken:
        raise
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

    def test() -> None:
        try:
            check(candidate)
        finally:
            if not candidate.called:
                raise TestsBroken("the check asks the candidate nothing")

    return test


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
        if not asserted(asked, tree.body):
            raise TestsBroken(f"the test {text[:200]!r} asserts nothing about the candidate")
        body = ast.fix_missing_locations(tree)
        local = {name: Candidate(talk, name) for name in asked.proxies}
        code = compile(body, "<test>", "exec", dont_inherit=True)
        found.append(lambda code=code, local=local: exec(code, {**space, **local}))
    return found


def asserted(asked: Asked, body: list[ast.stmt]) -> bool:
    """Put the questions into a test. Returns whether one of its own asserts depends on an answer."""
    found, answers = False, set[str]()
    for place, statement in enumerate(body):
        asked.seen = False
        if isinstance(statement, ast.Assert):
            read = {one.id for one in ast.walk(statement.test) if isinstance(one, ast.Name)}
            statement.test = asked.visit(statement.test)
            found |= not isinstance(statement.test, ast.Tuple) and (asked.seen or bool(read & answers))
        else:
            body[place] = asked.visit(statement)
            if asked.seen and isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
                answers |= {one.id for one in ast.walk(statement) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    return found


def own(setup: str, space: dict[str, Any]) -> set[str]:
    """Do what the setup needs no candidate for. Returns the known names; raises TestsBroken where a compound statement needs one.

    A plain assignment from the candidate's names, and a class, stay the candidate's.
    """
    known = set(vars(builtins)) | set(space)
    for statement in ast.parse(setup).body:
        needed = loaded(statement) - known
        plain = isinstance(statement, ast.Import | ast.ImportFrom | ast.FunctionDef)
        if plain or (not needed and not isinstance(statement, ast.ClassDef)):
            try:
                exec(compile(ast.Module([statement], []), "<setup>", "exec", dont_inherit=True), space)
            except Exception as error:  # noqa: BLE001 - whatever it was, the task cannot be judged
                raise TestsBroken(f"the setup: {type(error).__name__}: {error}") from None
            known |= set(space)
        elif isinstance(statement, ast.Try | ast.If | ast.For | ast.While | ast.With):
            raise TestsBroken(f"the setup {ast.unparse(statement)[:200]!r} needs {sorted(needed)} of the candidate")
    return known


def loaded(statement: ast.stmt) -> set[str]:
    """Names that a statement reads and does not itself make."""
    read, made = set[str](), set[str]()
    for one in ast.walk(statement):
        if isinstance(one, ast.Name):
            (read if isinstance(one.ctx, ast.Load) else made).add(one.id)
        elif isinstance(one, ast.alias):
            made.add((one.asname or one.name).partition(".")[0])
        elif isinstance(one, ast.FunctionDef | ast.ClassDef):
            made.add(one.name)
        elif isinstance(one, ast.arg):
            made.add(one.arg)
        elif isinstance(one, ast.ExceptHandler) and one.name:
            made.add(one.name)
    return read if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign) else read - made


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
