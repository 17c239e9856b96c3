"""The API of some routes behind the gate of a home, as on a server that listens on loopback."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.testclient import TestClient

from tests.answer_check import undeclared
from thumbwheel.access.gate import opened_gate
from thumbwheel.access.needs import check_routes
from thumbwheel.access.settings import AccessConfig
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace
from thumbwheel.server.access import protect
from thumbwheel.server.api.routers import api_router, dialect_router
from thumbwheel.server.application import api_application


@contextmanager
def opened_api(home: Path, router: APIRouter) -> Iterator[FastAPI]:
    """Apps need no key there."""
    with (
        Workspace.open(Home(home), Sources({}, "none", {})) as ws,
        opened_gate(ws, AccessConfig(), local=True, apps=True) as gate,
    ):
        api = api_application([router])
        api.state.gate = gate
        check_routes(api)
        yield api


class CheckedClient(TestClient):
    """A client that fails on an answer with a field that the API's document does not declare."""

    def request(self, method: str, url: Any, **options: Any) -> Any:
        """Send a request, and compare its answer with the document."""
        response = super().request(method, url, **options)
        is_json = response.headers.get("content-type") == "application/json"
        if response.status_code == 200 and is_json:
            document = self.app.openapi()  # type: ignore[attr-defined]
            path = response.request.url.raw_path.decode().partition("?")[0]
            faults = undeclared(document, method, path, response.json())
            assert not faults, (method, path, faults[:20])
        return response


@contextmanager
def commands_client(ws: Workspace, dialects: Sequence[str] = ()) -> Iterator[TestClient]:
    """A client of all commands of an open home and of these dialects, with the token of the home. A
    failure of the server is an answer for it, as for everybody."""
    with opened_gate(ws, AccessConfig(), local=True, apps=True) as gate:
        api = api_application([api_router(), dialect_router(dialects)])
        api.state.workspace = ws
        protect(api, gate)
        headers = {"authorization": f"Bearer {ws.home.access_token.read_text().strip()}"}
        yield CheckedClient(api, headers=headers, raise_server_exceptions=False)
