"""The docstrings under the fields of dataclasses, put where pydantic's schemas look for them.

Pydantic reads the docstrings of its own classes and of typed dictionaries itself, but of a
dataclass only those of its own fields, not those that it inherits.
"""

from __future__ import annotations

import ast
import inspect
import sys
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel

DESCRIPTION = "description"


@cache
def describe_fields(kind: Any) -> None:
    """Give the fields of all dataclasses that a type consists of the docstrings under them as their
    descriptions."""
    entered: set[Any] = set()
    waiting = [kind]
    while waiting:
        form = waiting.pop()
        waiting += typing.get_args(form)
        if not isinstance(form, type) or form in entered:
            continue
        entered.add(form)
        if is_dataclass(form):
            _describe(form)
        waiting += _inner(form)


def _inner(form: type) -> Iterator[Any]:
    """Yield the types of the fields of a class that has fields."""
    if issubclass(form, BaseModel):
        for field in form.model_fields.values():
            yield field.annotation
    elif is_dataclass(form) or typing.is_typeddict(form):
        yield from typing.get_type_hints(form, include_extras=True).values()


def _describe(form: type) -> None:
    words: dict[str, str] = {}
    for base in reversed(form.__mro__):
        if is_dataclass(base):
            words |= _words_of_module(base.__module__).get(base.__qualname__, {})
    for field in fields(form):
        if field.name in words and DESCRIPTION not in field.metadata:
            described = {**field.metadata, DESCRIPTION: words[field.name]}
            field.metadata = MappingProxyType(described)  # type: ignore[assignment]


@cache
def _words_of_module(module: str) -> Mapping[str, Mapping[str, str]]:
    """Return class -> field -> the docstring under it, of the classes of a module; nothing without
    its source."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, KeyError):
        return {}
    return {node.name: _words_of(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _words_of(node: ast.ClassDef) -> dict[str, str]:
    words = {}
    for statement, following in zip(node.body, node.body[1:], strict=False):
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            words[statement.target.id] = inspect.cleandoc(str(following.value.value))
    return words
