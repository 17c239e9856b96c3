"""The answer of a command, as the answer to a request: JSON for programs, and for the command line
of another machine the tables and lines that are seen beside the home."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response

from thumbwheel.access.protocol import EXIT, PAGE
from thumbwheel.core import present

JSON = "application/json"


def json_of(answer: present.Answer[Any]) -> bytes:
    """Return the answer's value as JSON, as `--json` prints it."""
    return present.json_text(answer.value, indent=None).encode("utf-8", "replace")


def page_of(answer: present.Answer[Any]) -> bytes:
    """Return the answer's tables and lines, as a terminal shows them, as JSON."""
    parts = [present.part_to_json(part) for part in answer.parts]
    content = {"parts": parts, "exit": answer.exit_code}
    return present.json_text(content, indent=None).encode("utf-8", "replace")


def response_of(answer: present.Answer[Any], *, as_page: bool, status: int = 200) -> Response:
    """Return the response to a request."""
    headers = {EXIT: str(answer.exit_code)} if answer.exit_code else {}
    if as_page:
        return Response(page_of(answer), status, headers, PAGE)
    return Response(json_of(answer), status, headers, JSON)


def wants_page(request: Request) -> bool:
    """Return whether the request accepts tables and lines instead of the value."""
    return PAGE in request.headers.get("accept", "")


def respond(request: Request, answer: present.Answer[Any], status: int = 200) -> Response:
    """Return the response in the form that the request asks for."""
    return response_of(answer, as_page=wants_page(request), status=status)
