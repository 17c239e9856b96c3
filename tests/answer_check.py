"""Compares answers of the API with its document: every field that is sent is declared there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any


def undeclared(document: Mapping[str, Any], method: str, path: str, value: Any) -> list[str]:
    """Return the fields of a JSON answer that the document's schema does not name, and those that
    it says are always there and are not. An answer of an operation without a schema has none."""
    for pattern, methods in document["paths"].items():
        expression = re.sub(r"\\{[^/]+?\\}", "[^/]+", re.escape(pattern))
        if method.lower() in methods and re.fullmatch(expression, path):
            content = methods[method.lower()]["responses"].get("200", {}).get("content", {})
            schema = content.get("application/json", {}).get("schema", {})
            return sorted(set(_undeclared(document, schema, value, "")))
    return []


def _undeclared(
    document: Mapping[str, Any], schema: Mapping[str, Any], value: Any, path: str
) -> Iterator[str]:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        schema = document["components"]["schemas"][name]
    forms = schema.get("anyOf") or schema.get("oneOf")
    if forms:
        faults_of_forms = [list(_undeclared(document, form, value, path)) for form in forms]
        yield from min(faults_of_forms, key=len)
        return
    if isinstance(value, Mapping):
        yield from _in_object(document, schema, value, path)
    elif isinstance(value, list):
        if schema.get("type") not in (None, "array"):
            yield f"{path}: it is a list"
        for item in value:
            yield from _undeclared(document, schema.get("items", {}), item, f"{path}[]")
    elif not _is_of(schema, value):
        yield f"{path}: {value!r} is no {schema.get('type') or schema.get('enum')}"


def _in_object(
    document: Mapping[str, Any], schema: Mapping[str, Any], value: Mapping[str, Any], path: str
) -> Iterator[str]:
    properties = schema.get("properties")
    if properties is None and schema.get("type") not in (None, "object"):
        yield f"{path}: it is an object"
    for name in schema.get("required", []):
        if name not in value:
            yield f"{path}.{name}: it is not there"
    rest = schema.get("additionalProperties", properties is None)
    for name, item in value.items():
        if properties and name in properties:
            yield from _undeclared(document, properties[name], item, f"{path}.{name}")
        elif isinstance(rest, Mapping):
            yield from _undeclared(document, rest, item, f"{path}.*")
        elif not rest:
            yield f"{path}.{name}: it is not declared"


def _is_of(schema: Mapping[str, Any], value: Any) -> bool:
    kinds: dict[str, tuple[type, ...]] = {
        "string": (str,),
        "integer": (int,),
        "number": (int, float),
        "boolean": (bool,),
        "null": (type(None),),
    }
    if "const" in schema:
        return bool(value == schema["const"])
    if "enum" in schema:
        return value in schema["enum"]
    if "type" not in schema:
        return True
    expected = kinds.get(schema["type"], ())
    if isinstance(value, bool):
        return bool in expected
    return isinstance(value, expected)
