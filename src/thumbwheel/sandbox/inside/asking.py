"""What the judge asks the candidate's sandbox: values of calls, and attributes and items of objects
that stay there.

All that comes back is data. Nothing of it may be evaluated here: `Guard` sees to that.
"""

from __future__ import annotations

import ast
import builtins
import collections
import dataclasses
import os
import sys
from collections.abc import Iterator
from types import BuiltinMethodType, ModuleType
from typing import Any

from .wire import Talk, decode, encode

EVALUATES = frozenset(
    {"exec", "compile", "code.__new__", "function.__new__", "marshal.loads", "pickle.find_class"}
) | frozenset(
    {
        "ctypes.dlopen",
        "ctypes.dlsym",
        "os.system",
        "os.exec",
        "os.posix_spawn",
        "os.fork",
        "subprocess.Popen",
    }
)
"""Events of the interpreter by which a text or bytes become code or a process."""
MAKERS = (
    __file__.replace("asking.py", "judge.py"),
    ast.__file__,
    collections.__file__,
    dataclasses.__file__,
)
"""Files whose code evaluates what is not an answer, or only reads it: the tests themselves,
literals, fields that are names."""
IMPORTING = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")
LIBRARY = (collections.__file__.removesuffix("collections/__init__.py"), "<frozen")
"""Where that what imports evaluate has to lie."""
PREDICATES = frozenset(
    name
    for kind in (str, set, float)
    for name in dir(kind)
    if name.startswith(("is", "startswith", "endswith"))
)
"""Methods of data whose truth would be the candidate's to choose, were its objects asked for them."""
MUTABLE = (list, dict, set, bytearray, collections.deque)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
COMPARED = 100_000
"""Items of sets and dicts in one value."""


class FromCandidate(Exception):
    """What the candidate raised. `told`: how it is shown."""

    told = ""


class TestsBroken(Exception):
    """The tests themselves cannot run."""


class Guard:
    """Lets nothing be evaluated or written once an answer is here, whatever way a test tries it:
    what an answer could say by that is a verdict."""

    def __init__(self) -> None:
        self.answered, self.refused = False, ""

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """A hook for the events of the interpreter."""
        if (
            self.answered
            and (event in EVALUATES or event in ("open", "import"))
            and not self._harmless(event, arguments, sys._getframe(1))
        ):
            self.refused = (
                f"they evaluate or write ({event}) where an answer could be what is run, and it "
                "would judge itself"
            )
            raise TestsBroken(self.refused)

    def _harmless(self, event: str, arguments: tuple[Any, ...], frame: Any) -> bool:
        if event == "open":
            return not (isinstance(arguments[2], int) and arguments[2] & WRITING)
        if event == "import":  # with a path where it is a library in machine code
            return not arguments[1] or str(arguments[1]).startswith(LIBRARY)
        if frame.f_code.co_filename not in IMPORTING:
            return frame.f_code.co_filename in MAKERS
        code = {
            "exec": lambda: arguments[0].co_filename,
            "compile": lambda: arguments[1],
            "marshal.loads": lambda: frame.f_locals["bytecode_path"],
        }
        return str(code.get(event, str)()).startswith(LIBRARY)


GUARD = Guard()


class Candidate:
    """A name of the candidate's program, as the tests see it."""

    def __init__(self, talk: Talk, name: str) -> None:
        self._talk, self._name, self.called = talk, name, False

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """What the candidate's function gives for these values."""
        self.called = True
        return value(self._talk, {"call": self._name, **called_with(arguments, named)})

    def in_place(self, *arguments: Any, **named: Any) -> None:
        """Call it for what it does to its arguments: lists, dicts and sets are afterwards as it
        left them."""
        self.called = True
        changed = value(
            self._talk, {"call": self._name, **called_with(arguments, named), "back": True}
        )
        for mine, theirs in zip(arguments, changed, strict=True):
            if type(mine) is type(theirs) and isinstance(mine, MUTABLE):
                mine.clear()
                mine.update(theirs) if isinstance(mine, dict | set) else mine.extend(theirs)


class Remote:
    """An object that the candidate holds. What it says of itself is data, and that is what tests
    compare; equal to nothing but itself.

    Arithmetic and comparison are not asked of it: `abs(answer - 2) < 0.1` would be its own verdict.
    """

    def __init__(self, talk: Talk, name: str, number: int) -> None:
        self.__dict__["__held__"] = talk, name, number

    def __ask__(self, question: dict[str, Any]) -> Any:
        talk, _, number = self.__dict__["__held__"]
        return value(talk, {"object": number, **question})

    def __getattr__(self, name: str) -> Any:
        if name in PREDICATES:
            raise FromCandidate(
                f"an object of {self.__dict__['__held__'][1]} is asked for {name}, which only "
                "data can answer"
            )
        return self.__ask__({"attribute": name})

    def __setattr__(self, name: str, held: Any) -> None:
        self.__getattr__("__setattr__")(name, held)

    def __told__(self, name: str, kind: type) -> Any:
        found = self.__getattr__(name)()
        if type(found) is not kind:
            raise FromCandidate(f"an object gives no {kind.__name__} as its {name}")
        return found

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """What it gives for these values."""
        return self.__ask__(called_with(arguments, named))

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        return str(self.__told__("__str__", str))

    def __repr__(self) -> str:
        return str(self.__told__("__repr__", str))

    def __len__(self) -> int:
        try:
            return int(self.__told__("__len__", int))
        except AttributeError:
            raise TypeError(
                "an object without a length"
            ) from None  # what list() takes for "not known"

    def __getitem__(self, key: Any) -> Any:
        return self.__getattr__("__getitem__")(key)

    def __setitem__(self, key: Any, held: Any) -> None:
        self.__getattr__("__setitem__")(key, held)

    def __delitem__(self, key: Any) -> None:
        self.__getattr__("__delitem__")(key)

    def __enter__(self) -> Any:
        return self.__getattr__("__enter__")()

    def __exit__(self, *_: object) -> None:
        self.__getattr__("__exit__")(None, None, None)

    def __next__(self) -> Any:
        for found in self.__ask__({"take": 1}):
            return found
        raise FromCandidate(
            "no further item"
        )  # StopIteration would end a loop of the tests as if all had been asked

    def __iter__(self) -> Iterator[Any]:
        made = self.__getattr__("__iter__")()
        if not isinstance(made, Remote):
            raise FromCandidate("an object that gives no iterator")
        while found := made.__ask__({"take": 1}):  # one by one: the next one may take for ever
            yield found[0]


def called_with(arguments: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """The part of a question that says what to call with."""
    return {"arguments": encode(list(arguments), handed), "named": encode(named, handed)}


def handed(held: Any) -> tuple[str, int]:
    """An object of the candidate's as it knows it; raises TestsBroken for any other, which cannot
    be handed over."""
    if isinstance(held, Remote):
        _, name, number = held.__dict__["__held__"]
        return name, number
    if isinstance(held, BuiltinMethodType) and not isinstance(held.__self__, ModuleType):
        raise FromCandidate(
            f"a method of {type(held.__self__).__name__} where the test expects data"
        )
    raise TestsBroken(
        f"they hand an object ({type(held).__name__}) to the candidate, which only data can be"
    )


def value(talk: Talk, question: dict[str, Any]) -> Any:
    """Ask the candidate; raises what it raised, as a class that is also FromCandidate."""
    talk.send(question)
    answer = talk.receive()
    GUARD.answered = True

    def read(given: Any) -> Any:
        try:
            return decode(bounded(given), lambda name, number: Remote(talk, name, number))
        except ValueError as error:
            raise FromCandidate(f"no value: {error}") from None

    if "value" in answer:
        return read(answer["value"])
    base = getattr(builtins, str(answer.get("raised")), Exception)
    if isinstance(base, type) and issubclass(base, StopIteration | StopAsyncIteration):
        base = RuntimeError  # it would end a loop of the tests as if all had been asked
    ordinary = (
        isinstance(base, type)
        and issubclass(base, Exception)
        and not issubclass(base, AssertionError)
    )
    kind = type(
        "Raised",
        (FromCandidate, base) if ordinary and base is not Exception else (FromCandidate,),
        {},
    )
    arguments = read(answer.get("arguments", ["list", []]))
    try:
        made = kind(*arguments)
    except Exception:  # noqa: BLE001 - a class may want others
        made = FromCandidate(*arguments)
    made.told = str(answer.get("text"))
    raise made


def bounded(given: Any) -> Any:
    """`given`; raises ValueError where its sets and dicts have too many items."""
    held, waiting = 0, [given]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            held += (
                len(one[1])
                if one and one[0] in ("set", "frozenset", "dict") and isinstance(one[1], list)
                else 0
            )
            waiting += one
    if held > COMPARED:
        raise ValueError(f"{held} items in sets and dicts; at most {COMPARED} are compared")
    return given
