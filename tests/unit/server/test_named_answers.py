"""The document of the API names what every operation answers, down to the single field."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from tests.surface import document

JSON = "application/json"
pytestmark = pytest.mark.slow


@cache
def api() -> dict[str, Any]:
    return document()


def answers() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (operation, schema) of each answer of 2xx that is JSON."""
    for path, methods in api()["paths"].items():
        for method, operation in methods.items():
            for code, response in operation["responses"].items():
                content = response.get("content", {})
                if code.startswith("2") and JSON in content:
                    yield f"{method.upper()} {path} {code}", content[JSON].get("schema", {})


def unnamed(schema: dict[str, Any]) -> bool:
    """Return whether a schema is neither a named one, nor a list or choice of named ones."""
    if "$ref" in schema:
        return False
    if schema.get("type") == "array":
        return unnamed(schema["items"])
    choices = schema.get("anyOf", [])
    return not choices or any(map(unnamed, choices))


def references(part: Any) -> Iterator[str]:
    if isinstance(part, dict):
        if "$ref" in part:
            yield part["$ref"].rpartition("/")[2]
        for child in part.values():
            yield from references(child)
    elif isinstance(part, list):
        for child in part:
            yield from references(child)


def schemas_of_answers() -> dict[str, dict[str, Any]]:
    """Return the schemas that answers consist of, however deep."""
    schemas = api()["components"]["schemas"]
    waiting = [name for _, schema in answers() for name in references(schema)]
    reached: dict[str, dict[str, Any]] = {}
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached[name] = schemas[name]
            waiting += references(schemas[name])
    return reached


def says_nothing(field: dict[str, Any]) -> bool:
    """Return whether a field has neither a type nor a description: then it may be anything, and
    nobody knows what."""
    return not field.keys() - {"title", "default"}


def test_every_answer_has_a_named_schema() -> None:
    named = dict(answers())
    assert len(named) > 100
    assert [operation for operation, schema in named.items() if unnamed(schema)] == []


def test_every_field_of_an_answer_has_a_type_or_says_what_it_holds() -> None:
    schemas = schemas_of_answers()
    fields = [
        (f"{name}.{field}", about)
        for name, schema in schemas.items()
        for field, about in schema.get("properties", {}).items()
    ]
    assert len(fields) > 1000
    assert [field for field, about in fields if says_nothing(about)] == []
    # an object with no named field at all would be a schema in name only
    objects = [name for name, schema in schemas.items() if schema.get("type") == "object"]
    assert [name for name in objects if not schemas[name].get("properties")] == []


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("ShownTrace", "steps"),
        ("RowOrigin", "feedback"),
        ("LearnedClassifier", "report"),
        ("LabelStatus", "bands"),
        ("LabelAgreement", "panels"),
        ("StoredCalibration", "counts"),
        ("StartedExperiment", "forecast"),
        ("ShownExperiment", "inputs"),
        ("ReplayedVerdict", "is"),
        ("VersionReport", "summary"),
        ("ServerEvent", "content"),
    ],
)
def test_what_was_an_object_without_fields_names_them(name: str, field: str) -> None:
    schema = schemas_of_answers()[name]
    assert field in schema["properties"]
    assert field in schema["required"]
