"""What users and clients see: the options of every command and the fields of every request.

`python -m tests.surface` writes both snapshots anew; their difference belongs into the commit that
made it. tests/unit/app/test_surface.py compares.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

from tests.worlds.api_world import commands_client
from thumbwheel.app.command_table import leaves
from thumbwheel.cli.main import command_line
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace

FOLDER = Path(__file__).parent
NO_SCHEMAS: dict[str, Any] = {"components": {"schemas": {}}}
COMMANDS, OPERATIONS = FOLDER / "commands.txt", FOLDER / "operations.txt"


def command_lines() -> Iterator[str]:
    """Yield a line for each parameter of each command, as `--help` shows it."""
    for path, command in leaves(command_line()):
        yield f"{path}: {_joined(command.help or '')}"
        for parameter in command.params:
            names = "/".join([*parameter.opts, *parameter.secondary_opts])
            is_required = " required" if parameter.required else ""
            is_repeated = " repeated" if parameter.multiple else ""
            help_text = _joined(getattr(parameter, "help", "") or "")
            kind = _kind(parameter)
            yield f"{path} {names} <{kind}>{is_required}{is_repeated}: {help_text}"


def _joined(text: str) -> str:
    return " ".join(text.split())


def _kind(parameter: Any) -> str:
    annotation = parameter.type_descriptor.annotation
    name = getattr(annotation, "__name__", str(annotation))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        name = "|".join(str(member.value) for member in annotation)
    bounds = (parameter.min, parameter.max)
    return name if bounds == (None, None) else f"{name} {parameter.min}..{parameter.max}"


def operation_lines(document: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each operation of an OpenAPI document, for each field of its request and
    each kind of answer, and then for each field of each schema."""
    for path, methods in sorted(document["paths"].items()):
        for method, operation in sorted(methods.items()):
            start = f"{method.upper()} {path}"
            yield f"{start}: {operation.get('operationId')}"
            yield from (f"{start} {line}" for line in _request_lines(document, operation))
            yield f"{start} answers {' '.join(sorted(operation['responses']))}"
            yield from (f"{start} answers {line}" for line in _answer_lines(operation))
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield from (f"{name}: {field}" for field in _fields(NO_SCHEMAS, schema))


def _request_lines(document: dict[str, Any], operation: dict[str, Any]) -> Iterator[str]:
    for parameter in operation.get("parameters", []):
        is_required = " required" if parameter.get("required") else ""
        yield f"{parameter['in']} {parameter['name']}{is_required}"
    content = operation.get("requestBody", {}).get("content", {})
    for media_type, body in sorted(content.items()):
        for field in _fields(document, body.get("schema", {})):
            yield f"body {media_type} {field}"


def _answer_lines(operation: dict[str, Any]) -> Iterator[str]:
    for status, response in sorted(operation["responses"].items()):
        for media_type, body in sorted(response.get("content", {}).items()):
            if status.startswith("2"):
                yield f"{status} {media_type} {_named(body.get('schema', {}))}"


def _named(schema: dict[str, Any]) -> str:
    """Return a schema in one word: TurnResult, [Job], A|B."""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "items" in schema:
        return f"[{_named(schema['items'])}]"
    forms = [_named(form) for form in schema.get("anyOf", ())]
    return "|".join(forms) or str(schema.get("type", "anything"))


def _fields(document: dict[str, Any], schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield the paths of the fields of a schema; a class that holds itself is entered once."""
    yield from sorted(set(_each_field(document, schema, path, ())))


def _each_field(
    document: dict[str, Any], schema: dict[str, Any], path: str, entered: tuple[str, ...]
) -> Iterator[str]:
    reference = schema.get("$ref")
    if reference:
        if reference in entered:
            return
        name = reference.rpartition("/")[2]
        schema = document["components"]["schemas"].get(name, {})
        entered = (*entered, reference)
    for form in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from _each_field(document, form, path, entered)
    if "items" in schema:
        yield from _each_field(document, schema["items"], f"{path}[]", entered)
    if isinstance(schema.get("additionalProperties"), dict):
        yield from _each_field(document, schema["additionalProperties"], f"{path}.*", entered)
    required = schema.get("required", [])
    for name, inner in schema.get("properties", {}).items():
        field = f"{path}.{name}".lstrip(".")
        yield f"{field} required" if name in required else field
        yield from _each_field(document, inner, field, entered)


def document() -> dict[str, Any]:
    """Return /api/openapi.json of a new home."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Workspace.open(Home(Path(folder) / "home"), Sources({}, "none", {})) as ws,
        commands_client(ws) as client,
    ):
        content: dict[str, Any] = client.get("/api/openapi.json").json()
    return content


def text_of(lines: Iterator[str]) -> str:
    """Return the lines as the text of a snapshot."""
    return "".join(f"{line}\n" for line in lines)
