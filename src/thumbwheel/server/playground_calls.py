"""Calls of the playground: a page, whose person has a session and no key, asks a deployed version.

Such a call goes the way of every call: through the gateway, which records it, counts it against the
agent's budget and streams the answer. It differs in two points. Whoever may rate the agent may make
it, and it reaches every deployed version, also one that the gate has not decided on.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response

from thumbwheel.access.needs import needs
from thumbwheel.access.turn_route import TurnRoute
from thumbwheel.access.types import Grants, Principal
from thumbwheel.app.routing_table import tried_choice
from thumbwheel.core.ids import slug_of
from thumbwheel.gateway.application import ADMITTED, EXCHANGE, AdmittedCall, Gateway
from thumbwheel.gateway.routing import Choice
from thumbwheel.models.versions import require_agent

PASSED_ON = frozenset(
    [
        b"accept",
        b"content-length",
        b"content-type",
        b"x-thumbwheel-metadata",
        b"x-thumbwheel-session",
    ]
)
"""Headers of the page that reach the gateway; its cookie and its proof of origin do not."""
ModelName = Annotated[str, Path(pattern=r"^[a-z0-9][a-z0-9_.\-]{0,62}$")]
"""The name of an alias or a version."""


class PlaygroundCall(Response):
    """A chat request that the gateway answers."""

    def __init__(self, gateway: Gateway, caller: Principal, agent: str, choice: Choice) -> None:
        super().__init__()
        self._gateway = gateway
        self._path = f"/a/{agent}/v1/chat/completions"
        grants: Grants = {agent: frozenset({"call"})}
        self._admitted = AdmittedCall(replace(caller, grants=grants), choice)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        """Let the gateway answer the request (ASGI)."""
        call_scope = {
            **scope,
            "path": self._path,
            "query_string": b"",
            "headers": [header for header in scope["headers"] if header[0] in PASSED_ON],
            ADMITTED: self._admitted,
        }
        try:
            await self._gateway(call_scope, receive, send)
        finally:
            if EXCHANGE in call_scope:  # the server counts it
                scope[EXCHANGE] = call_scope[EXCHANGE]


def router() -> APIRouter:
    """Return the route that the playground's script asks."""
    routes = APIRouter(route_class=TurnRoute)

    @routes.post(
        "/api/agents/{agent}/playground/{model}",
        operation_id="playground.ask",
        include_in_schema=False,
        dependencies=[needs("rate", recorded=False)],
    )
    def ask(request: Request, agent: str, model: ModelName) -> Response:
        """Answer a chat request by an alias (`live`) or a version (`v3`)."""
        state = request.app.state
        asked_agent = require_agent(state.workspace, slug_of(agent))
        choice = tried_choice(state.workspace, asked_agent, model)
        return PlaygroundCall(state.gateway, request.state.principal, asked_agent.slug, choice)

    return routes
