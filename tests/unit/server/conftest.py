"""A server in front of a scripted upstream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.servers.scripted_upstream import ScriptedUpstream
from tests.worlds.gateway_world import GatewayWorld, opened_home, running, serve_remote
from thumbwheel.db import refreshed
from thumbwheel.models.types import EndpointAddress

Serve = Callable[..., GatewayWorld]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request waits for a look at routes and keys that are too old, also where the machine stands
    still: what was written 50 ms before always holds."""
    monkeypatch.setattr(refreshed, "PATIENCE", 60.0)


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as server:
        yield server


@pytest.fixture
def serve(upstream: ScriptedUpstream, tmp_path: Path) -> Iterator[Serve]:
    """Starts a server with these settings of the gateway, where `support` answers by the upstream's
    model `large`."""
    with ExitStack() as stack:

        def start(**settings: Any) -> GatewayWorld:
            ws = stack.enter_context(opened_home(tmp_path / "home", settings))
            address = EndpointAddress(upstream.url, "large", price_in=2.0, price_out=10.0)
            serve_remote(ws, address)
            upstream.requests.clear()
            return stack.enter_context(running(ws))

        yield start


@pytest.fixture
def gateway(serve: Serve) -> GatewayWorld:
    """The server with its defaults."""
    return serve()
