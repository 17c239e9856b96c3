"""No command without a route, and no route without a command; the reasons for those that have none
are beside the list of commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worlds.api_world import commands_client
from thumbwheel.access.route import Route
from thumbwheel.app.command_table import LOCAL
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace
from thumbwheel.server.api.routers import ROUTES, commands, operations

OPERATIONS = operations()
WITHOUT_A_COMMAND = {
    "agents list",
    "whoami",
    "login",
    "logout",
    "web-tokens",
    "jobs events",
    "runs curves",
    "runs metrics",
    "exports list",
    "exports file",
    "decisions list",
    "feed",
    "imports preview",
    "secrets store",
    "workers show",
    "workers resize",
    "settings change",
    "settings reset",
    "runs progress",
}
"""Routes that only make sense over HTTP."""


def named(route: Route) -> str:
    return route.name


def test_every_command_has_a_route_or_a_reason(tmp_path: Path) -> None:
    every = set(commands())
    with (
        Workspace.open(Home(tmp_path / "home"), Sources({}, "none", {})) as ws,
        commands_client(ws) as client,
    ):
        document = client.get("/api/openapi.json").json()
    served = set()
    for methods in document["paths"].values():
        served |= {operation["operationId"].replace(".", " ") for operation in methods.values()}
    assert len(ROUTES) == len({route.name for route in ROUTES})
    assert served & set(LOCAL) == set()
    assert every - served - set(LOCAL) == set()
    flagged = {route.name for route in ROUTES if route.flag}
    assert served - every == WITHOUT_A_COMMAND | flagged


@pytest.mark.parametrize("route", ROUTES, ids=named)
def test_parameters_are_called_as_the_options(route: Route) -> None:
    operation = OPERATIONS[route.name]
    options = {parameter.name for parameter in operation.signature.parameters}
    offered = {parameter.name for parameter in operation.parameters}
    assert not set(route.local) & offered
    if not route.command.startswith("train "):  # its methods share one list
        assert set(route.local) <= options
    assert set(route.example) <= options - set(route.local)
    assert set(route.folders) <= options - offered
    assert {name for name in (route.upload, route.download) if name} <= options
    assert not [
        parameter.name
        for parameter in operation.parameters
        if parameter.is_path and parameter.name != route.upload
    ]
    if "agent" in options and not route.by_row:
        assert "{agent}" in route.path


def test_the_path_of_a_route_is_its_own() -> None:
    places = [(route.method, route.path) for route in ROUTES]
    assert len(places) == len(set(places))


def test_what_only_looks_asks_for_no_more_than_to_look() -> None:
    for route in ROUTES:
        safe = route.method == "GET"
        assert safe <= (route.need in ("read", "own")), route
        assert safe or route.need != "read" or route.upload, route
