"""The judge: runs the tests of a task in a sandbox of its own and asks the candidate's sandbox for values.

Tests of the form `assert EXPRESSION`: a call of a name that the judge does not know is the candidate's; it is sent as text, so that its
arguments are made there, and the value that comes back takes its place here, where the comparison happens. A call with names that the
test itself binds is sent with its arguments as values, as are those of a `check(candidate)` function. An object that is no data
stays with the candidate and is asked for its attributes and items. Of the setup the candidate gets what its questions need.
"""

from __future__ import annotations

import ast
import builtins
import collections
import dataclasses
import importlib
import sys
from collections.abc import Iterator
from functools import partial
from types import CodeType, ModuleType
from typing import Any

from .questions import ASK, Asked, asserted, bound, loaded, modules, needs, touched
from .wire import Talk, decode, encode

EVALUATES = frozenset({"exec", "compile", "code.__new__", "function.__new__", "marshal.loads", "pickle.find_class"}) | frozenset(
    {"ctypes.dlopen", "ctypes.dlsym", "os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen"}
)
"""Events of the interpreter by which a text or bytes become code or a process."""
MAKERS = (__file__, collections.__file__, dataclasses.__file__, "<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")
"""Files whose code evaluates what is not an answer: imports, the tests themselves, fields that were found to be names."""
PREDICATES = frozenset(name for kind in (str, set, float) for name in dir(kind) if name.startswith(("is", "startswith", "endswith")))
"""Methods of data whose truth would be the candidate's to choose, were its objects asked for them."""
MOST_TAKEN = 1 << 10
"""Items of an iterator that are asked for at once, at most."""
COMPARED = 1_000
"""Items of sets and dicts in one value: with more, chosen keys could make their comparison slow."""


class FromCandidate(Exception):
    """What the candidate raised."""


class TestsBroken(Exception):
    """The tests themselves cannot run."""


class Guard:
    """Lets nothing be evaluated once an answer is here, whatever way a test tries it: what an answer could say by that is a verdict."""

    def __init__(self) -> None:
        self.answered, self.refused = False, ""

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """A hook for the events of the interpreter."""
        if self.answered and event in EVALUATES and sys._getframe(1).f_code.co_filename not in MAKERS:
            self.refused = f"they evaluate ({event}) where an answer could be evaluated, and it would judge itself"
            raise TestsBroken(self.refused)


GUARD = Guard()


class Candidate:
    """A name of the candidate's program, as the tests see it."""

    def __init__(self, talk: Talk, name: str) -> None:
        self._talk, self._name, self.called = talk, name, False

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """What the candidate's function gives for these values."""
        self.called = True
        return value(self._talk, {"call": self._name, "arguments": encode(list(arguments), handed), "named": encode(named, handed)})


class Remote:
    """An object that the candidate holds. What it says of itself is data, and that is what tests compare; equal to nothing but itself."""

    def __init__(self, talk: Talk, name: str, number: int) -> None:
        self._talk, self._name, self._number = talk, name, number

    def _ask(self, question: dict[str, Any]) -> Any:
        return value(self._talk, {"object": self._number, **question})

    def __getattr__(self, name: str) -> Any:
        if name in PREDICATES:
            raise FromCandidate(f"an object of {self._name} is asked for {name}, which only data can answer")
        return self._ask({"attribute": name})

    def _told(self, name: str, kind: type) -> Any:
        found = self.__getattr__(name)()
        if type(found) is not kind:
            raise FromCandidate(f"an object of {self._name} gives no {kind.__name__} as its {name}")
        return found

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """What it gives for these values."""
        return self._ask({"arguments": encode(list(arguments), handed), "named": encode(named, handed)})

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        return str(self._told("__str__", str))

    def __repr__(self) -> str:
        return str(self._told("__repr__", str))

    def __len__(self) -> int:
        try:
            return int(self._told("__len__", int))
        except AttributeError:
            raise TypeError(f"an object of {self._name} has no length") from None  # what list() takes for "not known"

    def __getitem__(self, key: Any) -> Any:
        return self.__getattr__("__getitem__")(key)

    def __next__(self) -> Any:
        for found in self._ask({"take": 1}):
            return found
        raise FromCandidate("no further item")  # StopIteration would end a loop of the tests as if all had been asked

    def __iter__(self) -> Iterator[Any]:
        made = self.__getattr__("__iter__")()
        if not isinstance(made, Remote):
            raise FromCandidate(f"an object of {self._name} gives no iterator")
        return made._items()

    def _items(self) -> Iterator[Any]:
        number = 1
        while found := self._ask({"take": number}):
            yield from found
            number = min(2 * number, MOST_TAKEN)


def handed(held: Any) -> tuple[str, int]:
    """An object of the candidate's as it knows it; raises TestsBroken for any other, which cannot be handed over."""
    if not isinstance(held, Remote):
        raise TestsBroken(f"they hand an object ({type(held).__name__}) to the candidate, which only data can be")
    return held._name, held._number


def value(talk: Talk, question: dict[str, Any]) -> Any:
    """Ask the candidate; raises what it raised, as a class that is also FromCandidate."""
    talk.send(question)
    answer = talk.receive()
    GUARD.answered = True
    if "value" in answer:
        try:
            return decode(bounded(answer["value"]), lambda name, number: Remote(talk, name, number))
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
    sys.addaudithook(GUARD)
    try:
        results = [one(test) for test in (functional(talk, job) if job.get("check") else asserts(talk, job))]
        if GUARD.refused:
            raise TestsBroken(GUARD.refused)
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


def functional(talk: Talk, job: dict[str, Any]) -> list[Any]:
    """The `check` function of a task, for the candidate's entry point; names of the task's own head are the judge's."""
    space: dict[str, Any] = {"__name__": "tests"}
    try:
        for text in (job.get("head") or "", job.get("setup") or "", job["check"]):
            exec(compile(text, "<tests>", "exec", dont_inherit=True), space)
        check = space["check"]
    except BaseException as error:  # noqa: BLE001 - whatever it was, the task cannot be judged
        raise TestsBroken(f"{type(error).__name__}: {error}") from None
    candidate = Candidate(talk, job["entry_point"])
    space[job["entry_point"]] = candidate

    def test() -> None:
        share(talk, job.get("setup") or "", set(), space)
        try:
            check(candidate)
        finally:
            if not candidate.called:
                raise TestsBroken("the check asks the candidate nothing")

    return [test]


def asserts(talk: Talk, job: dict[str, Any]) -> list[Any]:
    """One test per assert statement of the task."""
    space: dict[str, Any] = {"__name__": "tests", ASK: lambda text: value(talk, {"ask": text})}
    setup = job.get("setup") or ""
    known = own(setup, space) - {job.get("entry_point")}
    found, needed = [], set[str]()
    for text in job["tests"]:
        tree = ast.parse(text)
        for name in modules(tree) - known:
            space[name] = importlib.import_module(name)
            known.add(name)
        asked = Asked(known, bound(tree))
        if not asserted(asked, tree.body):
            raise TestsBroken(f"the test {text[:200]!r} asserts nothing about the candidate")
        code = compile(ast.fix_missing_locations(tree), "<test>", "exec", dont_inherit=True)
        found.append(partial(asserting, code, space, {name: Candidate(talk, name) for name in asked.proxies}))
        needed |= asked.needed | asked.proxies
    try:
        share(talk, setup, needed, space)
    except FromCandidate as error:
        return [partial(failing, error) for _ in found]
    return found


def asserting(code: CodeType, space: dict[str, Any], more: dict[str, Any]) -> None:
    """A test: names that it changes are its own."""
    exec(code, {**space, **more})


def failing(error: Exception) -> None:
    """A test whose setup the candidate's program could not do."""
    raise error


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


def share(talk: Talk, setup: str, needed: set[str], space: dict[str, Any]) -> None:
    """Give the candidate the imports of a setup and what makes these names; data go as values that were made here.

    The rest of a setup may hold what is right. Raises what the candidate raises over it.
    """
    body = ast.parse(setup).body
    chosen: set[ast.stmt] = {statement for statement in body if isinstance(statement, ast.Import | ast.ImportFrom)}
    values, waiting, done = dict[str, Any](), set(needed), set[str]()
    while waiting:
        name = waiting.pop()
        done.add(name)
        if name in space and (held := data(space[name])) is not None:
            values[name] = held
            continue
        for statement in body:
            if statement not in chosen and name in touched(statement):
                chosen.add(statement)
                waiting |= needs(statement) - done
    found = [ast.unparse(statement) for statement in body if statement in chosen]
    found += [f"import {name}" for name in sorted(done) if isinstance(space.get(name), ModuleType) and name not in bound(ast.parse(setup))]
    if found or values:
        value(talk, {"setup": "\n".join(found), "values": values})


def data(held: Any) -> Any:
    """The value for the wire; None for what is no data."""
    try:
        return encode(held)
    except ValueError:
        return None
