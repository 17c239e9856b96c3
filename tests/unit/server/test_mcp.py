"""The commands as tools of the Model Context Protocol, called by its own client over HTTP."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult

from tests.hostile_requests import ROUNDS, VALUES
from tests.worlds.gateway_world import running
from thumbwheel.access import audit, keys
from thumbwheel.capture.inbox import drain_inbox
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace
from thumbwheel.server.api.routers import ROUTES
from thumbwheel.server.mcp_tools import tools

T = TypeVar("T")
PROTOCOLS = ("auto", "legacy")
"""With the newest version of the protocol, and with one that begins by a handshake."""
TRACE = {"agent": "support", "id": "t1", "input": "Where is it?", "output": "On its way."}


@dataclass(frozen=True)
class ToolsWorld:
    """A server with a trace of `support`, whose tools may read, rate and deploy."""

    url: str
    ws: Workspace

    def key(self, name: str, *verbs: str, agents: tuple[str, ...] = ()) -> str:
        """A new key."""
        return keys.add(self.ws, name, agents=agents, verbs=verbs).secret

    @property
    def token(self) -> str:
        """That of the home, which may do everything."""
        return self.ws.home.access_token.read_text().strip()

    def ask(self, secret: str, work: Callable[[Client], Awaitable[T]], protocol: str = "auto") -> T:
        """What `work` gives, with a client that has this key."""

        async def run() -> T:
            headers = {"authorization": f"Bearer {secret}"}
            hooks = {"response": [refused]}
            async with httpx2.AsyncClient(headers=headers, timeout=30, event_hooks=hooks) as http:
                transport = streamable_http_client(f"{self.url}/mcp", http_client=http)
                async with Client(transport, mode=protocol) as client:
                    return await work(client)

        return asyncio.run(run())

    def names(self, secret: str, protocol: str = "auto") -> set[str]:
        """Those of the tools that the key sees."""

        async def listed(client: Client) -> set[str]:
            return {tool.name for tool in (await client.list_tools()).tools}

        return self.ask(secret, listed, protocol)

    def call(self, secret: str, tool: str, protocol: str = "auto", **arguments: Any) -> Any:
        """The JSON value that the tool gives; what it says where it fails."""

        async def called(client: Client) -> CallToolResult:
            return await client.call_tool(tool, arguments)

        result = self.ask(secret, called, protocol)
        text = text_of(result)
        return text if result.is_error else json.loads(text)


async def refused(response: httpx2.Response) -> None:
    """Say what the server answered, which the library of the protocol keeps to itself."""
    if response.status_code >= 400:
        print(response.status_code, await response.aread())


def text_of(result: CallToolResult) -> str:
    (part,) = result.content
    assert part.type == "text"
    return part.text


@pytest.fixture(scope="module")
def tool_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToolsWorld]:
    sections = {"mcp": {"verbs": ["read", "rate", "deploy"]}}
    home = Home(tmp_path_factory.mktemp("tools") / "home")
    with Workspace.open(home, Sources(sections, "thumbwheel.yaml", {})) as ws, running(ws) as world:
        assert world.client.post("/api/traces", json=TRACE).status_code == 202
        drain_inbox(ws)
        yield ToolsWorld(world.url, ws)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_tool_gives_what_the_command_gives(tool_server: ToolsWorld, protocol: str) -> None:
    listed = tool_server.call(tool_server.token, "traces_list", protocol, agent="support", limit=1)
    assert listed["traces"][0]["output"] == "On its way."
    assert (
        tool_server.call(tool_server.token, "jobs_list", protocol, state=["queued", "failed"])[
            "jobs"
        ]
        == []
    )


def test_a_tool_is_described_as_its_command(tool_server: ToolsWorld) -> None:
    async def listed(client: Client) -> dict[str, Any]:
        return {tool.name: tool for tool in (await client.list_tools()).tools}

    by_name = tool_server.ask(tool_server.token, listed)
    assert set(by_name) == {
        name
        for name, tool in tools().items()
        if tool.operation.route.need in ("read", "rate", "deploy")
    }
    for name, tool in by_name.items():
        assert tool.description and len(tool.name) < 60, name
        assert tool.annotations.read_only_hint == (tools()[name].operation.route.method == "GET")
    schema = by_name["feedback_add"].input_schema
    assert set(schema["required"]) == {"agent", "target"}
    assert "wait" in by_name["deploy"].input_schema["properties"]
    assert "set" not in by_name["deploy"].input_schema["properties"]  # it may name files


def test_tools_only_read_unless_the_settings_say_more(tmp_path: Path) -> None:
    with Workspace.open(Home(tmp_path / "home"), Sources({}, "none", {})) as ws, running(ws) as w:
        world = ToolsWorld(w.url, ws)
        names = world.names(world.token)
        assert names
        assert {tools()[name].operation.route.need for name in names} == {"read"}
        assert all(tools()[name].only_reads for name in names)
        refusal = world.call(world.token, "erase", agent="support", subject="ann", yes=True)
    assert "needs the verb 'own'" in refusal and "mcp.verbs" in refusal


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_key_permits_no_more_than_elsewhere(tool_server: ToolsWorld, protocol: str) -> None:
    rater = tool_server.key(f"rater-{protocol}", "rate", agents=("support",))
    rating = {name for name, tool in tools().items() if tool.operation.route.need == "rate"}
    assert tool_server.names(rater, protocol) == rating >= {"feedback_add", "label_accept"}
    rated = tool_server.call(
        rater, "feedback_add", protocol, agent="support", target="t1", thumb="up"
    )
    assert rated["kind"] == "thumb"
    other = tool_server.call(
        rater, "feedback_add", protocol, agent="sales", target="t1", thumb="up"
    )
    assert "it may not rate agent 'sales'" in other
    unseen = tool_server.call(rater, "traces_list", protocol, agent="support")
    assert "it needs the verb 'read'" in unseen
    act = audit.entries(tool_server.ws, 1)[0]
    assert (act.action, act.agent) == ("feedback.add", "sales") or act.agent == "support"


def test_nobody_gets_in_without_a_key(tool_server: ToolsWorld) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    accept = {"accept": "application/json, text/event-stream"}
    for headers in ({}, {"authorization": "Bearer tw_nothing"}, {"cookie": "thumbwheel_session=x"}):
        answer = httpx2.post(f"{tool_server.url}/mcp", json=body, headers={**accept, **headers})
        assert answer.status_code == 401, headers
    page = {"origin": "http://evil.example", "authorization": f"Bearer {tool_server.token}"}
    rebound = httpx2.post(
        f"{tool_server.url}/mcp", json=body, headers={**page, "host": "evil.example"}
    )
    assert rebound.status_code == 400
    looked = httpx2.get(
        f"{tool_server.url}/mcp", headers={"authorization": f"Bearer {tool_server.token}"}
    )
    assert looked.status_code == 405 and "It takes POST" in looked.json()["detail"]


@pytest.mark.slow
def test_no_argument_makes_a_tool_fail(tool_server: ToolsWorld) -> None:
    """Values of every wrong kind, for every tool: each is an error that says so, or taken as what
    it is."""
    chance = random.Random(3)
    calls = []
    for name, tool in tools().items():
        properties = tool.schema()["properties"]
        for _ in range(ROUNDS):
            arguments = {key: chance.choice(VALUES) for key in properties if chance.random() < 0.4}
            if "agent" in properties and chance.random() < 0.7:
                arguments["agent"] = "support"
            calls.append((name, arguments))

    async def attack(client: Client) -> None:
        for name, arguments in calls:
            # as the client sends it, so that it is in UTF-8
            sent = json.loads(json.dumps(arguments).encode("utf-8", "replace"))
            sent = json.loads(json.dumps(sent).replace("\\ud800", "\\ufffd"))
            result = await client.call_tool(name, sent)
            text = text_of(result)
            assert "the server failed" not in text, (name, sent, text)
            assert "root:x:" not in text

    tool_server.ask(tool_server.token, attack)
    unknown = tool_server.call(tool_server.token, "no_tool", agent="support")
    assert "there is none of that name" in unknown
    more = tool_server.call(tool_server.token, "traces_list", agent="support", spam="x")
    assert "there is none of that name" in more
    assert "it needs the text 'agent'" in tool_server.call(tool_server.token, "traces_list")
    surrogate = b'{"agent": "\\ud800"}'
    body = (
        b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "traces_list", '
        b'"arguments": ' + surrogate + b"}}"
    )
    headers = {
        "authorization": f"Bearer {tool_server.token}",
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
    }
    answer = httpx2.post(f"{tool_server.url}/mcp", content=body, headers=headers)
    assert answer.status_code < 500, answer.text


def test_every_command_without_a_file_is_a_tool() -> None:
    named = {route.name for route in ROUTES if not (route.upload or route.download)}
    assert {tool.operation.route.name for tool in tools().values()} == named
    assert len(tools()) == len(named)


def test_the_library_of_the_protocol_is_loaded_by_the_first_agent_only() -> None:
    code = "import sys, thumbwheel.server.serve; assert 'mcp' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
