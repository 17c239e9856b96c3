"""The whole server in this process, in front of upstreams that somebody else serves."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import uvicorn
import yaml

from tests.waiting import until
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy import deploy
from thumbwheel.models import versions
from thumbwheel.models.types import EndpointAddress
from thumbwheel.server.application import Application
from thumbwheel.server.serve import assembled, listening, server_config

AGENT = "support"
LOOPBACK: dict[str, Any] = {"private": ["127.0.0.1"]}
"""The section `endpoints` with which upstreams of tests may be asked."""
CHAT = "/v1/chat/completions"
UNDRAINED = 3600.0
"""Seconds between two drains: what is recorded stays in the inbox, where tests read it."""
HELLO = {"model": AGENT, "messages": [{"role": "user", "content": "Hello"}]}


@dataclass
class GatewayWorld:
    """`client` asks the server at `url`."""

    ws: Workspace
    application: Application
    url: str
    client: httpx2.Client

    def ask(self, body: Mapping[str, Any] | None = None, path: str = CHAT, **more: Any) -> Any:
        """The response to a chat request."""
        return self.client.post(path, json=dict(HELLO) | dict(body or {}), **more)

    @property
    def owner(self) -> dict[str, str]:
        """Headers with the token of the home."""
        return {"authorization": f"Bearer {self.ws.home.access_token.read_text().strip()}"}

    def lines(self, count: int = 1) -> list[dict[str, Any]]:
        """The recorded lines, once there are `count`; they stay in the inbox."""
        until(lambda: len(spooled(self.ws.home.inbox)) >= count)
        return spooled(self.ws.home.inbox)


def call_of(line: Mapping[str, Any]) -> dict[str, Any]:
    """The step of a recorded line that is the call."""
    return dict(line["steps"][-1])


def spooled(inbox: Path) -> list[dict[str, Any]]:
    """Every whole line that is in the inbox. Calls and what is sent to `/api` are in segments of
    their own, and no order holds between the two."""
    lines = []
    for path in sorted(inbox.glob("spool-*.jsonl")):
        written = path.read_bytes().splitlines(keepends=True)
        lines += [json.loads(text) for text in written if text.endswith(b"\n")]
    return lines


def serve_remote(ws: Workspace, address: EndpointAddress, alias: str | None = "live") -> str:
    """Deploy what answers at `address` for the agent; returns the version. The server need not
    list its models."""
    version = versions.add_endpoint(ws, AGENT, address)
    deploy.deploy(ws, version, "remote", alias)
    return version.name


@contextmanager
def running(
    ws: Workspace,
    host: str = "127.0.0.1",
    drain_every: float = UNDRAINED,
    dialects: Sequence[str] = (),
) -> Iterator[GatewayWorld]:
    """The server of an open home, on a free port."""
    with (
        listening("127.0.0.1", 0) as listener,
        assembled(ws, host, drain_every, dialects=dialects) as application,
    ):
        server = uvicorn.Server(server_config(application))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        until(lambda: server.started)
        with httpx2.Client(base_url=url, timeout=60, trust_env=False) as client:
            yield GatewayWorld(ws, application, url, client)
        server.should_exit = True
        thread.join(120)
        assert not thread.is_alive()


@contextmanager
def opened_home(
    folder: Path,
    settings: Mapping[str, Any] | None = None,
    redaction: str = "off",
    private: Sequence[str] = ("127.0.0.1",),
    experiment: Mapping[str, Any] | None = None,
) -> Iterator[Workspace]:
    """A home with these settings of the gateway and of experiments, which may ask upstreams at
    `private` addresses."""
    sections = {
        "gateway": dict(settings or {}),
        "capture": {"redaction": redaction},
        "endpoints": {"private": list(private)},
        "experiment": dict(experiment or {}),
    }
    file = folder.with_name(f"{folder.name}.yaml")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(yaml.safe_dump(sections), encoding="utf-8")
    sources = Sources(sections, "thumbwheel.yaml", {}, file)
    with Workspace.open(Home(folder), sources) as ws:
        yield ws
