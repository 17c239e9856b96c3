"""Pages at other addresses that may ask the routes of dialects: preflights and their headers.

Origins are exact and never with a cookie: a page that is named may do what an app without a key may
do here, and no more. All other routes stay with the pages of this server.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from re import Pattern

from starlette.middleware.cors import CORSMiddleware

from thumbwheel.gateway.application import Scope, Send
from thumbwheel.gateway.request import Receive
from thumbwheel.server.growing_api import GrowingApi

METHODS = ("GET", "POST", "PATCH")
HEADERS = (
    "authorization",
    "content-type",
    "idempotency-key",
    "x-api-key",
    "x-internal-api-key",
)
PREFLIGHT_S = 600
"""Seconds for which a browser remembers the answer to a preflight."""


class DialectOrigins:
    """Around the application: requests of a named page to a dialect's route get its headers."""

    def __init__(self, app: GrowingApi, dialects: Sequence[str], origins: Sequence[str]) -> None:
        self.app = app
        self._dialects = dialects
        self._origins = frozenset(origin.encode() for origin in origins)
        self._cors = CORSMiddleware(
            app,  # type: ignore[arg-type] # the same protocol
            allow_origins=tuple(origins),
            allow_methods=METHODS,
            allow_headers=HEADERS,
            allow_credentials=False,
            max_age=PREFLIGHT_S,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if self._is_for_page(scope):
            await self._cors(scope, receive, send)  # type: ignore[arg-type] # the same protocol
        else:
            await self.app(scope, receive, send)

    def _is_for_page(self, scope: Scope) -> bool:
        if not self._origins:
            return False
        origins = [value for name, value in scope["headers"] if name == b"origin"]
        if len(origins) != 1 or origins[0] not in self._origins:
            return False
        path = scope["path"]
        return any(pattern.match(path) or pattern.match(f"{path}/") for pattern in self._paths)

    @cached_property
    def _paths(self) -> list[Pattern[str]]:
        """The paths of the dialects' routes, also without the slash at the end that leads there."""
        from starlette.routing import Route

        from thumbwheel.server.api.routers import dialect_router

        routes = dialect_router(self._dialects).routes
        return [route.path_regex for route in routes if isinstance(route, Route)]
