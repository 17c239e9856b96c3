"""Which error is answered with which problem: ours, FastAPI's, and those of a request that is not
readable; and what the document of the API says of problems."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from thumbwheel.access.problem import CONTENT_TYPE, problem, shown_to
from thumbwheel.core import log
from thumbwheel.core.errors import InputError, NotFound, ThumbwheelError

FORM = re.compile(r"^(list\[)?([A-Z][a-z]+){2,}\]?$")
"""The name of one of several forms of a body, which is no field that a client wrote."""
CLIENT_LEFT = 499
"""The status of a request whose client left before it was whole, as nginx counts it."""
SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "what": {"type": "string"},
        "why": {"type": "string"},
        "fix": {"type": "string"},
        "field": {"type": "string", "description": "The parameter that it is about."},
    },
}
REASONS: Mapping[int, str] = {
    400: "The request cannot mean anything here.",
    401: "Nobody is known to ask.",
    403: "Whoever asks may not do this.",
    404: "Something that it names does not exist here.",
    409: "Its state forbids it, or the idempotency key is in use.",
    412: "It has changed since: If-Match names an older state.",
    413: "The body is too large.",
    415: "The body is of a type that is not read here.",
    422: "A parameter is missing, unknown or impossible, or the data does not permit it.",
    429: "Too much waits already; send it again after Retry-After.",
    501: "A part that this needs is not installed on the server.",
    503: "The disk or the database of the server cannot take it.",
    507: "The disk refuses it, or a quota of stored rows is used up.",
}


def documented() -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI responses for problems, which every operation has."""
    content = {CONTENT_TYPE: {"schema": dict(SCHEMA)}}
    return {status: {"description": why, "content": content} for status, why in REASONS.items()}


def add_handlers(api: FastAPI) -> None:
    """Make the application answer every error with a problem."""

    @api.exception_handler(ThumbwheelError)
    def refuse(request: Request, error: ThumbwheelError) -> JSONResponse:
        return problem(shown_to(request, error))

    @api.exception_handler(RequestValidationError)
    def refuse_invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return problem(invalid(error.errors()), 422)

    @api.exception_handler(HTTPException)
    def refuse_otherwise(request: Request, error: HTTPException) -> JSONResponse:
        phrase = HTTPStatus(error.status_code).phrase
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            allowed = (error.headers or {}).get("Allow", "others")
            refusal: ThumbwheelError = InputError(
                f"method {request.method}", "the path does not take it", f"It takes {allowed}"
            )
        elif error.status_code == HTTPStatus.NOT_FOUND:
            path = request.url.path
            refusal = NotFound(f"path {path!r}", "there is nothing", "See /api/openapi.json")
        else:
            refusal = InputError("the request", str(error.detail) or phrase, "Correct it")
        response = problem(refusal, error.status_code)
        response.headers.update(error.headers or {})
        return response

    @api.exception_handler(ClientDisconnect)
    def leave(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=CLIENT_LEFT)  # which nobody reads but the metrics

    @api.exception_handler(Exception)
    def fail(request: Request, error: Exception) -> JSONResponse:
        log.logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        failure = ThumbwheelError(
            "the request", "the server failed at it; its log says how", "Report it"
        )
        return problem(failure, 500)


def invalid(errors: Sequence[Mapping[str, Any]]) -> InputError:
    """Return the first of pydantic's errors as an InputError."""
    first = errors[0]
    if first["type"] == "json_invalid":
        where = f"{first['ctx']['error']} at character {first['loc'][-1]}"
        return InputError("the body", f"it is not JSON: {where}", "Correct it")
    parts = [str(part) for part in first["loc"] if part not in ("body", "query", "path")]
    location = [part for part in parts if not FORM.search(part)]
    name = ".".join(location) or "the body"
    value = first.get("input")
    shown = "" if first["type"] == "missing" else f" = {_shortened(value)}"
    if first["type"] == "extra_forbidden":
        error = InputError(f"parameter {name!r}", "there is no such parameter", "Leave it out")
    else:
        error = InputError(f"parameter {name!r}{shown}", str(first["msg"]), "Correct it")
    error.field = next((part for part in location if not part.isdigit()), None)
    return error


def _shortened(value: Any) -> str:
    try:
        text = json.dumps(value, default=str)
    except (ValueError, RecursionError):
        text = "..."
    return text if len(text) <= 100 else f"{text[:100]}..."
