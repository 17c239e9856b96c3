"""Every route of the server: without credentials it refuses, with a key for anything else it
refuses, and with the right one it does not."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from tests.worlds.gateway_world import opened_home
from thumbwheel.access import keys
from thumbwheel.access.needs import Need, Public, needs_of
from thumbwheel.access.types import VERBS, Verb, grants_of
from thumbwheel.app.dialects import DIALECTS
from thumbwheel.db.workspace import Workspace
from thumbwheel.server.serve import assembled

REFUSED = (401, 403)
OF_THE_LOGIN = {
    "POST /api/login",
    "GET /login/provider",
    "GET /login/provider/callback",
    "GET /login",
}
PUBLIC = OF_THE_LOGIN | {
    "GET /api/openapi.json",
    "GET /feedback.js",
    "GET /health",
    "GET /live",
    "GET /ready",
    "GET /static/{digest}/{name}",
    "OPTIONS /a/{agent}/api/feedback",
    "OPTIONS /api/feedback",
}
"""All that anybody may ask; another route here is a decision."""


UNKNOWN_PAGE = "/{path:path}"


class Server:
    """A server that others can reach, and a key for each verb on every agent and on one other."""

    def __init__(self, ws: Workspace, client: TestClient, needed: dict[str, Need | Public]) -> None:
        self.client, self.needed = client, needed
        self.secrets: dict[tuple[Verb, str], str] = {}
        for verb in VERBS:
            for agent in ("every", "other"):
                agents = [] if agent == "every" else [agent]
                new = keys.add(ws, f"{verb}-{agent}", agents=agents, verbs=[verb])
                self.secrets[verb, agent] = new.secret

    def status(self, route: str, secret: str | None) -> int:
        """Of the answer to a request that is no more than a path."""
        method, _, path = route.partition(" ")
        address = re.sub(r"{(\w+)(:path)?}", _part, path)
        # what no other route takes is a page for browsers alone
        headers = {"accept": "text/html"} if path == UNKNOWN_PAGE else {}
        if secret is not None:
            headers["authorization"] = f"Bearer {secret}"
        content = {"json": {}} if method in ("POST", "PUT", "PATCH") else {}
        response = self.client.request(method, address, headers=headers, **content)
        return response.status_code


def _part(match: re.Match[str]) -> str:
    return "support" if match[1] == "agent" else "unknown"


@pytest.fixture(scope="module")
def routes_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("routes") / "home"
    with opened_home(folder) as ws:
        keys.add(ws, "first")
        dialects = DIALECTS.names()
        with assembled(ws, "0.0.0.0", drain_every=3600, dialects=dialects) as application:
            needed = {
                route: need for route, need in needs_of(application.api).items() if need is not None
            }
            client = TestClient(application.api, raise_server_exceptions=False)
            server = Server(ws, client, needed)
            application.api.state.gate.directory.refresh()
            yield server


def test_what_is_public_is_listed(routes_server: Server) -> None:
    public = {route for route, need in routes_server.needed.items() if isinstance(need, Public)}
    assert public <= PUBLIC
    assert len(routes_server.needed) > 60


def test_without_credentials_and_with_wrong_ones(routes_server: Server) -> None:
    for route, need in routes_server.needed.items():
        if isinstance(need, Need):
            assert routes_server.status(route, None) == 401, route
    (route,) = [route for route in routes_server.needed if route == "GET /api/keys"]
    assert routes_server.status(route, f"tw_{'x' * 43}") == 401


def test_with_every_scope_that_is_too_small(routes_server: Server) -> None:
    for route, need in routes_server.needed.items():
        if isinstance(need, Public) or need.verb is None:
            continue
        for verb in VERBS:
            if need.verb not in grants_of({"*": [verb]})["*"]:
                secret = routes_server.secrets[verb, "every"]
                assert routes_server.status(route, secret) == 403, (route, verb)
        of_agent = "{agent}" in route or not (need.by_row or need.ingest)
        if of_agent:
            assert routes_server.status(route, routes_server.secrets[need.verb, "other"]) == 403, (
                route
            )


def test_with_the_right_scope(routes_server: Server) -> None:
    for route, need in routes_server.needed.items():
        if isinstance(need, Public):
            if route not in OF_THE_LOGIN:
                assert routes_server.status(route, None) not in REFUSED, route
            continue
        secret = routes_server.secrets[need.verb or "read", "every"]
        assert routes_server.status(route, secret) not in REFUSED, route
