"""Links of OpenAPI: which operations take what another one gives.

A route says where in its result a part of other paths is (`gives`). The links to all operations
below that path are made here, so that clients, and tests, follow what was made by one request into
the next.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from thumbwheel.access.protocol import path_names

SUCCESS = re.compile("2..")


def add_links(document: dict[str, Any]) -> None:
    """Add the links to an OpenAPI document."""
    for path, operation in _operations(document):
        gives: Mapping[str, str] = operation.get("x-thumbwheel", {}).get("gives", {})
        links: dict[str, Any] = {}
        for prefix, pointer in gives.items():
            links |= _links(document, prefix, pointer, path_names(path))
        for status, response in operation["responses"].items():
            if links and SUCCESS.fullmatch(status) and status != "202":
                response["links"] = links


def _links(
    document: dict[str, Any], prefix: str, pointer: str, in_path: list[str]
) -> dict[str, Any]:
    """Return name -> link for each operation below the path `prefix`.

    Its last path parameter is read at `pointer` in the result; the others come from the request's
    own path.
    """
    links = {}
    for path, target in _operations(document):
        if path != prefix and not path.startswith(f"{prefix}/"):
            continue
        *others, last = path_names(prefix)
        if set(path_names(path)) - {last} <= {*others} & {*in_path}:
            parameters = {name: f"$request.path.{name}" for name in others}
            parameters[last] = f"$response.body#{pointer}"
            name = target["operationId"]
            links[name] = {"operationId": name, "parameters": parameters}
    return links


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (path, operation) for each operation of the document."""
    for path, methods in document["paths"].items():
        for operation in methods.values():
            yield path, operation
