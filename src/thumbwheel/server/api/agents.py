"""The agents of the home, for clients that list them."""

from __future__ import annotations

from fastapi import APIRouter, Request

from thumbwheel.access.needs import needs
from thumbwheel.access.types import Principal
from thumbwheel.core.config import Config
from thumbwheel.db.workspace import Workspace
from thumbwheel.models import versions
from thumbwheel.server.api.bodies import BoundedRoute


class ListedAgent(Config):
    """An agent of the home."""

    name: str
    """The name by which routes and commands take it."""


def router() -> APIRouter:
    """Return the router for the list of agents."""
    routes = APIRouter(route_class=BoundedRoute)

    @routes.get(
        "/api/agents", operation_id="agents.list", dependencies=[needs("read", by_row=True)]
    )
    def list_agents(request: Request) -> list[ListedAgent]:
        """List the agents that the caller may read, by name. An agent exists once something of it
        is stored."""
        principal: Principal = request.state.principal
        ws: Workspace = request.app.state.workspace
        names = sorted(agent.slug for agent in versions.agents(ws))
        return [ListedAgent(name=name) for name in names if principal.may("read", name)]

    return routes
