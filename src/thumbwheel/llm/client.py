"""A client for OpenAI-compatible servers: one JSON request, one JSON reply, tried again where
trying again can help.

What a server answers is untrusted data: this module checks that it is a JSON object and no more.
"""

from __future__ import annotations

import random
import time
from typing import Any

import httpx2

from thumbwheel.core.addresses import RefusedAddress, leads_to_loopback
from thumbwheel.core.errors import ModelError

RETRIED = frozenset({408, 409, 429, 500, 502, 503, 504})
"""Statuses after which the same request may succeed."""
FIRST_WAIT, MAX_WAIT = 0.5, 30.0
"""Seconds before the second attempt, doubled for each further one; and the most that a server may
ask for."""
REFUSED = frozenset({400, 413, 422})
"""Statuses of a request that will never succeed."""


class RequestRefused(ModelError):
    """The server will not answer this request, now or later: too long for it, or in a form that it
    does not take."""


class Client:
    """`model` at `url` (as `http://127.0.0.1:8000/v1`). Thread-safe; close it."""

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key: str | None = None,
        timeout: float = 120.0,
        attempts: int = 4,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        """Create a client. `transport` restricts where requests may go; without one they go
        wherever `url` leads."""
        self.url, self.model, self._attempts = url.rstrip("/"), model, attempts
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        limits = httpx2.Limits(max_connections=None)  # the caller bounds how many run at once
        self._http = httpx2.Client(
            headers=headers,
            timeout=httpx2.Timeout(timeout, connect=10.0),
            limits=limits,
            transport=transport,
            trust_env=not leads_to_loopback(url),
        )

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send `body`, to which the model is added, and return the reply. Raises as `send` does."""
        return self._object(self.send("POST", path, {"model": self.model} | body))

    def get(self, path: str) -> dict[str, Any]:
        """Return the object at `path`. Raises as `send` does."""
        return self._object(self.send("GET", path))

    def send(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx2.Response:
        """Send a request and return the reply, whatever it holds. Raises ModelError if no attempt
        succeeds, RequestRefused if none can."""
        why, wait = "", 0.0
        for attempt in range(self._attempts):
            time.sleep(wait)
            wait = FIRST_WAIT * 2**attempt * random.uniform(0.5, 1.0)
            try:
                reply = self._http.request(method, f"{self.url}/{path}", json=body)
            except RefusedAddress as error:
                raise self._error(str(error)) from None
            except (httpx2.TransportError, OSError) as error:
                why = f"{type(error).__name__}: {error}"
                continue
            except httpx2.InvalidURL as error:
                raise self._error(str(error)) from None
            if reply.status_code < 300:
                return reply
            why = f"HTTP {reply.status_code}: {' '.join(reply.text.split())[:300]}"
            if reply.status_code not in RETRIED:
                raise self._error(
                    why, RequestRefused if reply.status_code in REFUSED else ModelError
                )
            wait = max(wait, _retry_after(reply))
        raise self._error(f"{self._attempts} attempts failed, the last with {why}")

    def close(self) -> None:
        self._http.close()

    def _object(self, reply: httpx2.Response) -> dict[str, Any]:
        try:
            content = reply.json()
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise self._error(f"its reply is no JSON object: {reply.text[:100]!r}")
        return content

    def _error(self, why: str, kind: type[ModelError] = ModelError) -> ModelError:
        return kind(
            f"model {self.model!r} at {self.url}",
            why,
            "Check that the server runs, its URL, the model's name and the key",
        )


def _retry_after(reply: httpx2.Response) -> float:
    """Return the seconds that the server asks to wait, at most MAX_WAIT; 0 if it names none."""
    try:
        return min(max(float(reply.headers.get("retry-after", 0)), 0.0), MAX_WAIT)
    except ValueError:
        return 0.0
