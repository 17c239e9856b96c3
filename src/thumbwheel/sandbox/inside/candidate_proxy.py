"""What the judge asks the candidate's sandbox: values of calls, and attributes and items of objects
that stay there.

All that comes back is data. Nothing of it may be evaluated here: `AnswerGuard` sees to that.
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

from .protocol import Channel, decode, encode

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
TRUSTED_FILES = (
    __file__.replace("candidate_proxy.py", "judge.py"),
    ast.__file__,
    collections.__file__,
    dataclasses.__file__,
)
"""Files whose code evaluates no answer, or only reads it: the tests themselves, literals, fields
that are names."""
IMPORTING = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")
LIBRARY = (collections.__file__.removesuffix("collections/__init__.py"), "<frozen")
"""Folders from which imports may evaluate code."""
PREDICATES = frozenset(
    name
    for kind in (str, set, float)
    for name in dir(kind)
    if name.startswith(("is", "startswith", "endswith"))
)
"""Methods of data whose truth would be the candidate's to choose, if objects were asked."""
MUTABLE = (list, dict, set, bytearray, collections.deque)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
MAX_ITEMS = 100_000
"""Items of sets and dicts in one value."""


class CandidateError(Exception):
    """What the candidate raised; `shown` is its text."""

    shown = ""


class TestsBroken(Exception):
    """The tests themselves cannot run."""


class AnswerGuard:
    """Lets nothing be evaluated or written once an answer is here, whatever way a test tries it:
    what an answer could say by that is a verdict."""

    def __init__(self) -> None:
        self.has_answer, self.refused = False, ""

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Handle an event of the interpreter (audit hook). Raises TestsBroken for tests that
        evaluate or write where an answer could be the code that is run."""
        if (
            self.has_answer
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
            return frame.f_code.co_filename in TRUSTED_FILES
        code = {
            "exec": lambda: arguments[0].co_filename,
            "compile": lambda: arguments[1],
            "marshal.loads": lambda: frame.f_locals["bytecode_path"],
        }
        return str(code.get(event, str)()).startswith(LIBRARY)


GUARD = AnswerGuard()


class CandidateName:
    """A name of the candidate's program, as the tests see it."""

    def __init__(self, channel: Channel, name: str) -> None:
        self._channel, self._name, self.called = channel, name, False

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the candidate's function with these values and return its result."""
        self.called = True
        return ask(self._channel, {"call": self._name, **call_arguments(arguments, named)})

    def in_place(self, *arguments: Any, **named: Any) -> None:
        """Call the function for its effect on its arguments: lists, dicts and sets are changed as
        it changed them."""
        self.called = True
        changed = ask(
            self._channel, {"call": self._name, **call_arguments(arguments, named), "back": True}
        )
        for argument, changed_argument in zip(arguments, changed, strict=True):
            if type(argument) is type(changed_argument) and isinstance(argument, MUTABLE):
                argument.clear()
                argument.update(changed_argument) if isinstance(
                    argument, dict | set
                ) else argument.extend(changed_argument)


class RemoteObject:
    """An object that the candidate holds. What it says of itself is data, and that is what tests
    compare; equal to nothing but itself.

    Arithmetic and comparison are not asked of it: `abs(answer - 2) < 0.1` would be its own verdict.
    """

    def __init__(self, channel: Channel, name: str, number: int) -> None:
        self.__dict__["__held__"] = channel, name, number

    def __ask__(self, question: dict[str, Any]) -> Any:
        channel, _, number = self.__dict__["__held__"]
        return ask(channel, {"object": number, **question})

    def __getattr__(self, name: str) -> Any:
        if name in PREDICATES:
            raise CandidateError(
                f"an object of {self.__dict__['__held__'][1]} is asked for {name}, which only "
                "data can answer"
            )
        return self.__ask__({"attribute": name})

    def __setattr__(self, name: str, value: Any) -> None:
        self.__getattr__("__setattr__")(name, value)

    def __own__(self, name: str, kind: type) -> Any:
        result = self.__getattr__(name)()
        if type(result) is not kind:
            raise CandidateError(f"an object gives no {kind.__name__} as its {name}")
        return result

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the candidate's object with these values and return its result."""
        return self.__ask__(call_arguments(arguments, named))

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        return str(self.__own__("__str__", str))

    def __repr__(self) -> str:
        return str(self.__own__("__repr__", str))

    def __len__(self) -> int:
        try:
            return int(self.__own__("__len__", int))
        except AttributeError:
            # list() takes a TypeError for "length not known"
            raise TypeError("an object without a length") from None

    def __getitem__(self, key: Any) -> Any:
        return self.__getattr__("__getitem__")(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.__getattr__("__setitem__")(key, value)

    def __delitem__(self, key: Any) -> None:
        self.__getattr__("__delitem__")(key)

    def __enter__(self) -> Any:
        return self.__getattr__("__enter__")()

    def __exit__(self, *_: object) -> None:
        self.__getattr__("__exit__")(None, None, None)

    def __next__(self) -> Any:
        for item in self.__ask__({"take": 1}):
            return item
        # StopIteration would end a loop of the tests as if all had been asked
        raise CandidateError("no further item")

    def __iter__(self) -> Iterator[Any]:
        iterator = self.__getattr__("__iter__")()
        if not isinstance(iterator, RemoteObject):
            raise CandidateError("an object that gives no iterator")
        while items := iterator.__ask__({"take": 1}):  # one by one: the next one may take for ever
            yield items[0]


def call_arguments(arguments: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a question that holds the arguments of a call."""
    return {
        "arguments": encode(list(arguments), object_reference),
        "named": encode(named, object_reference),
    }


def object_reference(value: Any) -> tuple[str, int]:
    """Return the class name and number by which the candidate knows an object of its own. Raises
    CandidateError for a built-in method and TestsBroken for any other object, which cannot be
    handed over."""
    if isinstance(value, RemoteObject):
        _, name, number = value.__dict__["__held__"]
        return name, number
    if isinstance(value, BuiltinMethodType) and not isinstance(value.__self__, ModuleType):
        raise CandidateError(
            f"a method of {type(value.__self__).__name__} where the test expects data"
        )
    raise TestsBroken(
        f"they hand an object ({type(value).__name__}) to the candidate, which only data can be"
    )


def ask(channel: Channel, question: dict[str, Any]) -> Any:
    """Ask the candidate and return its answer. Raises the candidate's exception as a class that is
    also CandidateError."""
    channel.send(question)
    answer = channel.receive()
    GUARD.has_answer = True

    def read(encoded: Any) -> Any:
        try:
            return decode(
                check_size(encoded), lambda name, number: RemoteObject(channel, name, number)
            )
        except ValueError as error:
            raise CandidateError(f"no value: {error}") from None

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
    bases: tuple[type, ...] = (CandidateError,)
    if ordinary and base is not Exception:
        bases = (CandidateError, base)
    kind = type("Raised", bases, {})
    arguments = read(answer.get("arguments", ["list", []]))
    try:
        error = kind(*arguments)
    except Exception:  # noqa: BLE001 - a class may want others
        error = CandidateError(*arguments)
    error.shown = str(answer.get("text"))
    raise error


def check_size(encoded: Any) -> Any:
    """Return `encoded`. Raises ValueError if its sets and dicts have too many items."""
    items, pending = 0, [encoded]
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            hashed = part and part[0] in ("set", "frozenset", "dict")
            if hashed and isinstance(part[1], list):
                items += len(part[1])
            pending += part
    if items > MAX_ITEMS:
        raise ValueError(f"{items} items in sets and dicts; at most {MAX_ITEMS} are compared")
    return encoded
