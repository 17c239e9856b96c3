"""The commands as tools that an agent can call: each is a request of the API, made of the table of
routes. Not here: the protocol by which agents call them (`mcp_endpoint`)."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from thumbwheel.access.protocol import encode_request
from thumbwheel.core.errors import InputError
from thumbwheel.server.api.endpoint import WAIT, Operation, OperationEndpoint, Wait
from thumbwheel.server.api.parameters import Parameter
from thumbwheel.server.api.routers import operations


@dataclass(frozen=True)
class CommandTool:
    """A command that an agent can call."""

    operation: Operation

    @property
    def name(self) -> str:
        """Models take letters, digits and underscores: `dataset_why`."""
        return self.operation.route.operation.replace(".", "_").replace("-", "_")

    @property
    def description(self) -> str:
        """What the command does, without the example of how it is typed."""
        text = inspect.getdoc(self.operation.signature.function) or ""
        paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
        return "\n\n".join(part for part in paragraphs if not part.startswith("Example:"))

    @property
    def only_reads(self) -> bool:
        """Whether it changes nothing."""
        return self.operation.route.method == "GET"

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the tool's arguments."""
        properties: dict[str, Any] = {}
        required = []
        for parameter in self.operation.path_parameters:
            properties[parameter.name] = _schema(parameter)
            required.append(parameter.name)
        for parameter in self.operation.parameters:
            properties[parameter.name] = _schema(parameter)
            if parameter.required:
                required.append(parameter.name)
        if self.operation.is_job:
            properties[WAIT] = TypeAdapter(Wait).json_schema()
        return {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }

    def request(self, arguments: Mapping[str, Any]) -> tuple[str, bytes | None]:
        """Return (path with its query, body) of the request for a call with these arguments. Raises
        InputError if a path parameter is missing, no text, or contains a slash."""
        values = {name: value for name, value in arguments.items() if value is not None}
        for parameter in self.operation.path_parameters:
            text = values.get(parameter.name)
            if not isinstance(text, str):
                raise InputError(
                    f"tool {self.name!r}", f"it needs the text {parameter.name!r}", "Give it"
                )
            if "/" in text:  # it would be the path of another route, perhaps of another verb
                why = f"{parameter.name} {text[:80]!r} is no single part of a path"
                raise InputError(f"tool {self.name!r}", why, "Give a name without a slash")
        return encode_request(
            self.operation.route.path,
            values,
            has_body=OperationEndpoint(self.operation).takes_body,
            in_query=(WAIT,),
        )


def _schema(parameter: Parameter) -> dict[str, Any]:
    schema = TypeAdapter(parameter.kind).json_schema()
    if parameter.description:
        schema["description"] = parameter.description
    if parameter.default is not None:
        schema["default"] = TypeAdapter(Any).dump_python(parameter.default, mode="json")
    return schema


@cache
def tools() -> Mapping[str, CommandTool]:
    """Return name -> tool for all commands, except those that take or return a file."""
    by_name = {}
    for operation in operations().values():
        if operation.route.upload is None and operation.route.download is None:
            tool = CommandTool(operation)
            by_name[tool.name] = tool
    return by_name
