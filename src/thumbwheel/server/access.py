"""Puts the gate before the API. What a route needs is said beside its path, by
`thumbwheel.access.needs.needs`; nothing is served by an application in which a route does not.
"""

from __future__ import annotations

from fastapi import APIRouter, FastAPI

from thumbwheel.access.gate import AccessGate
from thumbwheel.access.needs import check_routes
from thumbwheel.access.routes import router as access_router
from thumbwheel.server.api.problem import documented
from thumbwheel.server.login import router as login_router

MOST_BYTES = 64 * 1024
"""Of a body about logins, keys or users."""


def protect(api: FastAPI, gate: AccessGate, *last: APIRouter) -> None:
    """Send every request through the gate; the routers `last` come after all others. Raises
    AssertionError if a route does not declare what it needs."""
    api.state.gate = gate
    for router in (login_router(gate), access_router(gate)):
        api.include_router(router, responses=documented(), max_body_size=MOST_BYTES)
    for router in last:
        api.include_router(router)
    check_routes(api)
