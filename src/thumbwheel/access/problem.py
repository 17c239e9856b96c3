"""An error as the answer to a request: problem+json (RFC 9457).

`type` names the class of core/errors.py, by which a client knows the exit code of the command line;
`what`, `why` and `fix` are what the command line prints.
"""

from __future__ import annotations

from http import HTTPStatus

from fastapi import Request
from fastapi.responses import JSONResponse

from thumbwheel.access.protocol import PROBLEM_TYPE
from thumbwheel.access.types import Principal
from thumbwheel.core.errors import Busy, ThumbwheelError, Unauthenticated

CONTENT_TYPE = "application/problem+json"


def problem(error: ThumbwheelError, status: int | None = None) -> JSONResponse:
    """Return the error as a problem response, with its own status or `status`."""
    code = status or error.http_status
    content = {
        "type": PROBLEM_TYPE + type(error).__name__,
        "title": HTTPStatus(code).phrase,
        "status": code,
        "detail": _text(str(error)),
        "what": _text(error.what),
        "why": _text(error.why),
        "fix": _text(error.fix),
    }
    if error.field is not None:
        content["field"] = _text(error.field)
    headers = {}
    if isinstance(error, Busy):
        headers["retry-after"] = str(error.retry_after)
    if isinstance(error, Unauthenticated):
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(content, code, headers, CONTENT_TYPE)


def shown_to(request: Request, error: ThumbwheelError) -> ThumbwheelError:
    """Return the error without names that the principal may not see."""
    principal: Principal | None = getattr(request.state, "principal", None)
    return error.shown(sees_everything=principal is not None and principal.may("read", None))


def answered_with(status: int, error: ThumbwheelError) -> ThumbwheelError:
    """Set the error's HTTP status, instead of the one of its class, and return it."""
    error.http_status = status
    return error


def _text(text: str) -> str:
    """Return the text with escapes for characters that JSON in UTF-8 cannot hold."""
    return text.encode("utf-8", "backslashreplace").decode()
