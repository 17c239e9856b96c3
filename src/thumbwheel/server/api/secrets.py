"""Keys of providers are stored by name. A value comes in, and none ever goes out."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Request
from fastapi import Path as PathParameter
from pydantic import Field

from thumbwheel.access.needs import needs
from thumbwheel.access.types import Principal
from thumbwheel.core.config import Config
from thumbwheel.core.errors import InputError, at_field
from thumbwheel.core.secret_store import LONGEST, SecretStore, check_name
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.versions import require_agent
from thumbwheel.server.api.bodies import BoundedRoute
from thumbwheel.server.api.parameters import NO_NUL

Name = Annotated[
    str,
    PathParameter(
        pattern=NO_NUL, min_length=1, max_length=64, description="The name of the secret."
    ),
]
Secret = Annotated[str, Field(max_length=LONGEST, json_schema_extra={"format": "password"})]


class SecretRequest(Config):
    """A secret to be stored."""

    value: Secret
    """The key itself"""
    of_agent: str | None = None
    """The agent whose owners may name it [default: the home's owner alone]"""


class StoredName(Config):
    """A secret that is stored now."""

    name: str
    """Its name"""
    agent: str | None
    """Whose it is; null: the home's"""


def router() -> APIRouter:
    """Return the router for storing secrets."""
    routes = APIRouter(route_class=BoundedRoute)

    @routes.put(
        "/api/secrets/{name}",
        operation_id="secrets.store",
        dependencies=[needs("own", by_row=True)],
        tags=["secrets"],
    )
    def store(request: Request, name: Name, asked: SecretRequest) -> StoredName:
        """Store a secret in place of an earlier one of this name."""
        principal: Principal = request.state.principal
        ws: Workspace = request.app.state.workspace
        agent = asked.of_agent or None
        principal.require("own", agent)
        if agent is not None:
            require_agent(ws, agent)
        try:
            check_name(name)
        except InputError as error:
            raise at_field(error, "name") from None
        try:
            SecretStore(ws.home.secrets, agent).set(name, asked.value)
        except InputError as error:
            raise at_field(error, "value") from None
        return StoredName(name=name, agent=agent)

    return routes
