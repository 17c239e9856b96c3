"""Untrusted pickles as inert data: the opcodes are interpreted here, nothing is imported and
nothing is called, whatever a file asks for.

Containers, numbers and texts become themselves; dates become ISO text; an object of a listed class
becomes a `Standin`, its class name and its fields. Everything else that a pickle can name or do is
refused as a whole, and so is what is too large, too deep, or grows when it is taken apart. To take
one more class, add its module to CLASSES or a reader to READERS.
"""

from __future__ import annotations

import math
import pickletools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from itertools import product
from typing import Any

from thumbwheel.importers.types import Unreadable

MOST_BYTES = 128 * 2**20
"""Of the file."""
MOST_OPCODES = 20_000_000
"""Steps to read it."""
MOST_PARTS = 2_000_000
"""Values that come out."""
MOST_TEXT = 256 * 2**20
"""Characters that come out."""
DEEPEST = 100
"""Levels of nesting."""
SHORT = 24
"""Characters that a number in a key counts as."""
LONGEST_NUMBER = 64
"""Bits of the largest whole number."""
CLASSES = re.compile(
    r"toolboxv2\.mods\.isaa\.base\.Agent\.(types|agent|checkpoint_manager|config)\Z"
)
NAME = re.compile(r"[A-Z][A-Za-z0-9_]{0,63}\Z")


BROKEN = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    MemoryError,
    RecursionError,
    StopIteration,
)
"""What following a broken pickle may raise."""


@dataclass(frozen=True)
class Global:
    """A class or function that the pickle names; it stays a name."""

    module: str
    name: str

    @property
    def is_listed(self) -> bool:
        """Whether objects of it become stand-ins."""
        return bool(CLASSES.match(self.module) and NAME.match(self.name))


@dataclass(eq=False)
class Standin:
    """An object of a listed class: its name, the arguments that made it, its fields."""

    name: str
    arguments: tuple[Any, ...] = ()
    fields: dict[Any, Any] = field(default_factory=dict)


class _Mark:
    """Where a group on the stack begins."""


def unpickle(data: bytes) -> Any:
    """Return the value of a pickle, see the module. Raises Unreadable for a pickle that is refused,
    broken or too large."""
    if len(data) > MOST_BYTES:
        raise Unreadable(
            f"the pickle has {len(data):,} bytes, more than the {MOST_BYTES:,} that are taken"
        )
    machine = _Machine()
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if count >= MOST_OPCODES:
                raise Unreadable(f"the pickle takes more than {MOST_OPCODES:,} steps")
            machine.step(opcode.name, argument)
        if len(machine.stack) != 1 or isinstance(machine.stack[0], _Mark):
            raise Unreadable("the pickle ends in the middle")
        return machine.stack[0]
    except Unreadable:
        raise
    except BROKEN as error:
        raise Unreadable(f"the pickle is broken: {error or type(error).__name__}") from None


class _Machine:
    """The stack and the memo of a pickle that is being followed."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.copied = 0

    def step(self, name: str, argument: Any) -> None:
        """Do what one opcode says."""
        if name in _VALUES:
            self.stack.append(_bounded(argument))
        elif name in _FIXED:
            self.stack.append(_FIXED[name]())
        elif name in _DOES:
            _DOES[name](self, argument)
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise Unreadable(f"the pickle uses {name}, which is refused")

    def pop(self) -> Any:
        """Pop the value on top. Raises IndexError if there is none, Unreadable for a mark."""
        value = self.stack.pop()
        if isinstance(value, _Mark):
            raise Unreadable("the pickle is broken: a mark where a value belongs")
        return value

    def group(self) -> list[Any]:
        """Pop the values above the last mark, and the mark itself."""
        positions = reversed(range(len(self.stack)))
        mark = next(position for position in positions if isinstance(self.stack[position], _Mark))
        values = self.stack[mark + 1 :]
        del self.stack[mark:]
        return values

    def put(self, index: int) -> None:
        """Remember the top."""
        self.memo[index] = self.stack[-1]

    def extend(self, items: list[Any]) -> None:
        """Add to the list, or the set, which is a list here too, on top."""
        if not isinstance(self.stack[-1], list):
            raise Unreadable("the pickle is broken: it adds to what is no list")
        self.stack[-1].extend(items)

    def update(self, items: list[Any]) -> None:
        """Set keys of the dict on top."""
        if not isinstance(self.stack[-1], dict):
            raise Unreadable("the pickle is broken: it sets items of what is no dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, str | int | float | bool | type(None)):
                key = self.key(key)
            self.stack[-1][key] = value

    def key(self, value: Any) -> str:
        """Return a key that is neither text nor number as a text: a new one each time, which is
        counted before it is made."""
        parts: tuple[Any, ...] = ()
        if isinstance(value, tuple):
            parts = value
        elif isinstance(value, Standin):
            parts = value.arguments
        for part in parts:
            self.spend(len(repr(part)) if isinstance(part, str) else SHORT)
        return _key(value)

    def dictionary(self, items: list[Any]) -> None:
        """Push a new dict with these items."""
        self.stack.append({})
        self.update(items)

    def push_global(self, module: Any, name: Any) -> None:
        """Push a name. Raises Unreadable if it is on no list."""
        reference = Global(str(module), str(name))
        key = reference.module, reference.name
        if not (reference.is_listed or key in READERS or key in PLAIN):
            raise Unreadable(
                f"the pickle names {reference.module}.{reference.name}, which is refused"
            )
        self.stack.append(reference)

    def make(self, function: Any, arguments: Any) -> None:
        """Push the value that stands for calling `function` with `arguments`. Raises Unreadable if
        the call is refused."""
        if not isinstance(function, Global) or not isinstance(arguments, tuple):
            raise Unreadable("the pickle calls something that is no class")
        reader = READERS.get((function.module, function.name))
        if reader:
            self.spend(sum(len(text) for text in arguments if isinstance(text, str)))
            self.stack.append(reader(*arguments))
        elif function.is_listed:
            self.stack.append(Standin(function.name, arguments))
        else:
            raise Unreadable(
                f"the pickle calls {function.module}.{function.name}, which is refused"
            )

    def build(self) -> None:
        """Give the stand-in on top its fields."""
        state, standin = self.pop(), self.stack[-1]
        if not isinstance(standin, Standin):
            raise Unreadable("the pickle sets the state of what is no listed class")
        for part in state if isinstance(state, tuple) else (state,):
            if part is not None and not isinstance(part, dict):
                raise Unreadable("the pickle sets a state that is no dict")
            self.spend(100 * len(part or ()))
            standin.fields |= part or {}

    def spend(self, size: int) -> None:
        """Count what is copied: a short pickle can ask for the same large copy again and again."""
        self.copied += size
        if self.copied > MOST_TEXT:
            raise Unreadable("the pickle asks for more copies than its size allows")


def _bounded(value: Any) -> Any:
    if isinstance(value, int) and value.bit_length() > LONGEST_NUMBER:
        raise Unreadable(f"the pickle holds a number of {value.bit_length():,} bits")
    return value


def _key(value: Any) -> str:
    if isinstance(value, tuple):
        if all(isinstance(part, str | int | float | bool | type(None)) for part in value):
            return repr(value)
    elif isinstance(value, Standin) and len(value.arguments) == 1:
        (argument,) = value.arguments
        if isinstance(argument, str):
            return argument
    raise Unreadable("the pickle holds a dict with keys that are no texts or numbers")


_VALUES = {
    "INT",
    "BININT",
    "BININT1",
    "BININT2",
    "LONG",
    "LONG1",
    "LONG4",
    "FLOAT",
    "BINFLOAT",
    "STRING",
    "BINSTRING",
    "SHORT_BINSTRING",
    "BINBYTES",
    "SHORT_BINBYTES",
    "BINBYTES8",
    "BYTEARRAY8",
    "UNICODE",
    "BINUNICODE",
    "SHORT_BINUNICODE",
    "BINUNICODE8",
}
_FIXED: Mapping[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": list,
    "MARK": _Mark,
}
_DOES: Mapping[str, Callable[[_Machine, Any], Any]] = {
    "POP": lambda m, _: m.stack.pop(),
    "POP_MARK": lambda m, _: m.group(),
    "DUP": lambda m, _: m.stack.append(m.stack[-1]),
    "GET": lambda m, index: m.stack.append(m.memo[index]),
    "BINGET": lambda m, index: m.stack.append(m.memo[index]),
    "LONG_BINGET": lambda m, index: m.stack.append(m.memo[index]),
    "PUT": lambda m, index: m.put(index),
    "BINPUT": lambda m, index: m.put(index),
    "LONG_BINPUT": lambda m, index: m.put(index),
    "MEMOIZE": lambda m, _: m.put(len(m.memo)),
    "TUPLE": lambda m, _: m.stack.append(tuple(m.group())),
    "TUPLE1": lambda m, _: m.stack.append((m.pop(),)),
    "TUPLE2": lambda m, _: m.stack.append((m.pop(), m.pop())[::-1]),
    "TUPLE3": lambda m, _: m.stack.append((m.pop(), m.pop(), m.pop())[::-1]),
    "LIST": lambda m, _: m.stack.append(m.group()),
    "FROZENSET": lambda m, _: m.stack.append(m.group()),
    "APPEND": lambda m, _: m.extend([m.pop()]),
    "APPENDS": lambda m, _: m.extend(m.group()),
    "ADDITEMS": lambda m, _: m.extend(m.group()),
    "DICT": lambda m, _: m.dictionary(m.group()),
    "SETITEM": lambda m, _: m.update([m.pop(), m.pop()][::-1]),
    "SETITEMS": lambda m, _: m.update(m.group()),
    "GLOBAL": lambda m, names: m.push_global(*names.split(" ", 1)),
    "STACK_GLOBAL": lambda m, _: m.push_global(*(m.pop(), m.pop())[::-1]),
    "REDUCE": lambda m, _: m.make(*(m.pop(), m.pop())[::-1]),
    "NEWOBJ": lambda m, _: m.make(*(m.pop(), m.pop())[::-1]),
    "BUILD": lambda m, _: m.build(),
}
"""Opcode -> what it does. What is missing here is refused: persistent ids, the extension registry,
buffers, INST, OBJ and NEWOBJ_EX."""


def _moment(kind: type[Any]) -> Callable[..., str]:
    def read(state: Any, *more: Any) -> str:
        packed = state.encode("latin-1") if isinstance(state, str) else state
        zones = [argument for argument in more if isinstance(argument, timezone)]
        others = [argument for argument in more if argument is not None and argument not in zones]
        if isinstance(packed, bytes) and len(packed) in (4, 6, 10) and not others:
            return str(kind(packed, *zones).isoformat())
        if all(type(argument) is int for argument in (state, *more)):
            return str(kind(state, *more).isoformat())
        raise Unreadable(f"the pickle holds an impossible {kind.__name__}")

    return read


def _span(*numbers: Any) -> timedelta:
    return timedelta(*(number for number in numbers if isinstance(number, int | float)))


def _zone(offset: Any, *name: Any) -> timezone:
    return timezone(offset)


def _list(items: Any = (), *length: Any) -> list[Any]:
    if not isinstance(items, list) and items != ():
        raise Unreadable("the pickle makes a set of what is no list")
    return items or []


def _dict(*factory: Any) -> dict[Any, Any]:
    if not all(isinstance(argument, Global) for argument in factory):
        raise Unreadable("the pickle makes a dict of something")
    return {}


def _encoded(text: Any, encoding: Any) -> bytes:
    if not isinstance(text, str) or encoding != "latin1":
        raise Unreadable(f"the pickle encodes to {encoding!r}")
    return text.encode("latin-1")


def _member(owner: Any, name: Any) -> Standin:
    """Return a member of a listed enum by its name. Raises Unreadable for any other attribute."""
    if not isinstance(owner, Global) or not owner.is_listed or not isinstance(name, str):
        raise Unreadable("the pickle takes an attribute of what is no listed class")
    return Standin(owner.name, (name.lower(),))


def _rebuilt(owner: Any, base: Any, state: Any) -> Standin:
    if not isinstance(owner, Global) or not owner.is_listed or state is not None:
        raise Unreadable("the pickle rebuilds what is no listed class")
    return Standin(owner.name)


BUILTINS = ("builtins", "__builtin__")
PLAIN = set(product(BUILTINS, ("list", "dict", "int", "str", "float", "object")))
"""Names that may be an argument (of a defaultdict, say); nothing is made of them, except by a
reader."""
READERS: Mapping[tuple[str, str], Callable[..., Any]] = {
    ("datetime", "datetime"): _moment(datetime),
    ("datetime", "date"): _moment(date),
    ("datetime", "time"): _moment(time),
    ("datetime", "timedelta"): _span,
    ("datetime", "timezone"): _zone,
    ("collections", "OrderedDict"): _dict,
    ("collections", "defaultdict"): _dict,
    ("collections", "deque"): _list,
    ("_codecs", "encode"): _encoded,
    **{(module, "set"): _list for module in BUILTINS},
    **{(module, "frozenset"): _list for module in BUILTINS},
    **{(module, "getattr"): _member for module in BUILTINS},
    **{(module, "_reconstructor"): _rebuilt for module in ("copyreg", "copy_reg")},
}
"""(module, name) -> what a call of it stands for."""


def as_json(value: Any) -> Any:
    """Return `value` of `unpickle` as JSON values. Raises Unreadable if it contains itself, is too
    deep, or grows beyond the limits."""
    return _Flattener().value(value, 0)


class _Flattener:
    """Counts what comes out, so that what stands in a pickle once and is used a billion times ends
    early."""

    def __init__(self) -> None:
        self.parts = self.text = 0

    def value(self, value: Any, depth: int) -> Any:
        """Return `value` as JSON values. Raises Unreadable beyond the limits."""
        self.parts += 1
        self.text += len(value) if isinstance(value, str | bytes | bytearray) else 0
        if depth > DEEPEST or self.parts > MOST_PARTS or self.text > MOST_TEXT:
            raise Unreadable(
                "the pickle is nested too deep, or grows beyond all bounds when it is taken apart"
            )
        if isinstance(value, Standin):
            inner = value.fields
            if len(value.arguments) == 1 and not value.fields and value.arguments[0] is not None:
                inner = value.arguments[0]
            return self.value(inner, depth + 1)
        if isinstance(value, dict):
            return {self.key(key): self.value(part, depth + 1) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(part, depth + 1) for part in value]
        if isinstance(value, timedelta):
            return value.total_seconds()
        if isinstance(value, float) and not math.isfinite(value):
            return str(value)
        if value is None or isinstance(value, str | int | float):
            return value
        return f"<{type(value).__name__}>"

    def key(self, key: Any) -> str:
        """Return a key as text and count its length; `value` checks the limit."""
        text = str(key)
        self.text += len(text)
        return text
