"""What the API and its clients agree on beside the routes."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import quote, urlencode

DOCUMENT = "/api/openapi.json"
"""Where the server describes its routes."""
PAGE = "application/vnd.thumbwheel.page+json"
"""The tables and lines of a result."""
EXIT = "x-thumbwheel-exit"
"""The header with the exit code of the command, where it is not 0."""
PROBLEM_TYPE = "urn:thumbwheel:error:"
"""What a problem's type begins with; the name of the class in core/errors.py follows."""


def path_names(path: str) -> list[str]:
    """Return the parameters in a route's path, in order.

    >>> path_names("/api/agents/{agent}/runs/{run}/metrics")
    ['agent', 'run']
    """
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]


def encode_request(
    path: str, values: Mapping[str, Any], *, has_body: bool, in_query: Collection[str] = ()
) -> tuple[str, bytes | None]:
    """Return (path with its query, body) of a request with these JSON values.

    `values` must have all parameters of the path. The others form the JSON body, or the query if
    the route takes no body; the names `in_query` are always in the query.

    >>> encode_request("/api/agents/{agent}/traces", {"agent": "a b", "n": 1}, has_body=False)
    ('/api/agents/a%20b/traces?n=1', None)
    """
    rest = dict(values)
    for name in path_names(path):
        part = quote(str(rest.pop(name)), safe="", errors="surrogatepass")
        path = path.replace(f"{{{name}}}", part)
    query = {}
    for name in list(rest):
        if not has_body or name in in_query:
            query[name] = _query_value(rest.pop(name))
    if query:
        path += "?" + urlencode(query, doseq=True, errors="surrogatepass")
    return path, json.dumps(rest).encode() if has_body else None


def _query_value(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value
