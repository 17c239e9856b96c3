"""What the gateway itself answers with instead of passing a call on, in the words of the API that
was asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from thumbwheel.core.errors import Busy, Conflict, InputError, ModelError, ThumbwheelError
from thumbwheel.models.types import Family

FAULTS_OF_OURS: dict[type[ThumbwheelError], int] = {InputError: 400, Conflict: 503, ModelError: 502}
"""Where a call of a model is answered otherwise than a request of the API (`http_status`): the
caller asked rightly, and what should answer is not in order. What the caller did ask wrongly is 400
in all APIs that are spoken here."""
KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}


class Refusal(Exception):
    """A call that is answered by the gateway: `status`, and the reason as its text."""

    def __init__(
        self, status: int, message: str, headers: Mapping[bytes, bytes] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})

    @classmethod
    def of(cls, error: ThumbwheelError) -> Refusal:
        """Return the refusal with the message of `error` and the status for its type."""
        for kind, status in FAULTS_OF_OURS.items():
            if isinstance(error, kind):
                return cls(status, str(error))
        headers = {}
        if isinstance(error, Busy):
            headers[b"retry-after"] = str(error.retry_after).encode()
        return cls(error.http_status, str(error), headers)


def error_body(family: Family, status: int, message: str) -> bytes:
    """Return the error body in the form that clients of this API expect.

    >>> error_body("ollama", 404, "no such model")
    b'{"error": "no such model"}'
    """
    kind = KINDS.get(status, "api_error")
    body: dict[str, Any]
    if family == "ollama":
        body = {"error": message}
    elif family == "anthropic":
        body = {"type": "error", "error": {"type": kind, "message": message}}
    else:
        body = {"error": {"message": message, "type": kind, "param": None, "code": None}}
    return json.dumps(body).encode()
