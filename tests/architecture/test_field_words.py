"""Every field of a request, an answer and a parameter says in a few words what it is: clients are
made of /api/openapi.json, and their authors read nothing else."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from tests.surface import document
from thumbwheel.app.job_kinds import job_kinds
from thumbwheel.app.settings import sections
from thumbwheel.core.field_words import describe_fields

pytestmark = pytest.mark.slow

METHODS = {"get", "post", "put", "delete"}


@dataclass(frozen=True)
class Parent:
    """A class that another one derives from."""

    size: int
    """In bytes."""


@dataclass(frozen=True)
class Child(Parent):
    """A class with fields of its own and of its parent."""

    name: str
    """What it is called."""


class Holder(BaseModel):
    """A class that holds a dataclass."""

    children: list[Child]


def fields_without_words(content: dict[str, Any]) -> Iterator[str]:
    for name, schema in content["components"]["schemas"].items():
        for field, described in schema.get("properties", {}).items():
            if not described.get("description"):
                yield f"{name}.{field}"


def parameters_without_words(content: dict[str, Any]) -> Iterator[str]:
    for path, operations in content["paths"].items():
        for method in METHODS & operations.keys():
            for parameter in operations[method].get("parameters", []):
                if not parameter.get("description"):
                    yield f"{method} {path} {parameter['name']}"


def test_every_field_and_every_parameter_has_words() -> None:
    content = document()
    assert list(fields_without_words(content)) == []
    assert list(parameters_without_words(content)) == []


def test_words_under_fields_of_dataclasses_are_their_descriptions() -> None:
    describe_fields(list[Holder] | None)
    properties = TypeAdapter(Child).json_schema()["properties"]
    assert properties["size"]["description"] == "In bytes."
    assert properties["name"]["description"] == "What it is called."


def test_every_setting_and_every_field_of_a_job_has_words() -> None:
    waiting: list[type[BaseModel]] = [*sections().values()]
    waiting += [kind.spec for kind in job_kinds().values()]
    entered: set[type[BaseModel]] = set()
    bare = []
    while waiting:
        settings = waiting.pop()
        if settings in entered:
            continue
        entered.add(settings)
        for name, field in settings.model_fields.items():
            if not field.description:
                bare.append(f"{settings.__name__}.{name}")
            waiting += _classes_in(field.annotation)
    assert bare == []


def _classes_in(kind: Any) -> Iterator[type[BaseModel]]:
    """Yield the classes of settings that a type consists of."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for part in typing.get_args(kind):
        yield from _classes_in(part)
