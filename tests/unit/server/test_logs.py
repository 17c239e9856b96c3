"""The log in JSON lines: who asked for what, and never what was said, nor a key."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from tests.servers.scripted_upstream import RESET, ScriptedUpstream, chat_reply, reply
from tests.worlds.gateway_world import LOOPBACK, GatewayWorld, running, serve_remote
from thumbwheel.access import keys
from thumbwheel.core import log
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.secret_store import SecretStore
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.types import EndpointAddress

PLANTED = "xyzzy-planted-4711"
"""Stands in every body, header, query, path and key of these requests."""
UPSTREAM_KEY = "UPSTREAM"


@pytest.fixture
def log_lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[StringIO]:
    """What goes to standard error, in the form `json`."""
    handlers = logging.getLogger().handlers[:]
    level = logging.getLogger().level
    output = StringIO()
    monkeypatch.setattr(sys, "stderr", output)
    log.configure("debug", "json")
    yield output
    logging.basicConfig(level=level, handlers=handlers, force=True)


@pytest.fixture
def gateway(
    log_lines: StringIO, upstream: ScriptedUpstream, tmp_path: Path
) -> Iterator[GatewayWorld]:
    sources = Sources({"log": {"requests": True}, "endpoints": LOOPBACK}, "thumbwheel.yaml", {})
    with Workspace.open(Home(tmp_path / "home"), sources) as ws:
        SecretStore(ws.home.secrets).set(UPSTREAM_KEY, f"{PLANTED}-upstream")
        serve_remote(ws, EndpointAddress(upstream.url, "large", secret=UPSTREAM_KEY))
        with running(ws) as world:
            yield world


@pytest.fixture
def client_key(gateway: GatewayWorld) -> str:
    """A key that an app presents."""
    secret = keys.add(gateway.ws, "MOBILE", agents=["support"]).secret
    gateway.application.gateway.gate.directory.refresh()
    return secret


def lines(log_lines: StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log_lines.getvalue().splitlines()]


def test_a_line_a_request(gateway: GatewayWorld, client_key: str, log_lines: StringIO) -> None:
    headers = {"authorization": f"Bearer {client_key}"}
    gateway.ask(headers=headers)
    gateway.client.get("/api/nothing")
    call, other = [line for line in lines(log_lines) if line["logger"] == "thumbwheel.requests"]
    assert call["message"] == "POST /v1/chat/completions 200"
    assert (call["agent"], call["version"], call["key"]) == ("support", "v0", "MOBILE")
    assert call["bytes"] == len(json.dumps(chat_reply()))
    assert call["milliseconds"] > 0
    assert other["route"] == "other"
    assert other["status"] == 404


def test_nothing_that_was_said_is_in_the_log(
    gateway: GatewayWorld, upstream: ScriptedUpstream, client_key: str, log_lines: StringIO
) -> None:
    headers = {
        "authorization": f"Bearer {client_key}",
        "x-thumbwheel-session": PLANTED,
        "x-thumbwheel-metadata": json.dumps({"note": PLANTED}),
        "x-other": PLANTED,
    }
    message = {"messages": [{"role": "user", "content": PLANTED}]}
    scripts: list[list[Any]] = [
        [reply(chat_reply(PLANTED))],
        [reply({"error": {"message": PLANTED}}, "500 No")],
        [reply(PLANTED.encode())],
        [reply({"choices": [{"message": PLANTED}]})],
        [f"HTTP/1.1 200 {PLANTED}\r\n{PLANTED}\r\n\r\n".encode(), RESET],
        [PLANTED.encode() + b"\r\n\r\n", RESET],
    ]
    for script in scripts:
        upstream.script = lambda request, script=script: script
        gateway.ask(message, headers=headers)
    client = gateway.client
    client.post(f"/v1/chat/completions?q={PLANTED}", content=PLANTED, headers=headers)
    client.post(f"/a/{PLANTED}/v1/chat/completions", json=message, headers=headers)
    client.post("/v1/chat/completions", json={"model": PLANTED})
    client.get(f"/v1/models/{PLANTED}")
    client.get(f"/{PLANTED}?key={PLANTED}", headers={"host": PLANTED})
    client.post("/api/traces", json={"agent": "support", "input": PLANTED, "output": PLANTED})
    client.post("/api/traces", json={"agent": PLANTED, "input": {PLANTED: PLANTED}})
    client.post("/api/feedback", json={"agent": "support", "trace": PLANTED, "comment": PLANTED})
    client.post("/api/feedback", content=PLANTED, headers={"content-type": "application/json"})
    client.post("/v1/traces", content=PLANTED, headers={"content-type": "application/json"})
    broken = gateway.ws.home.inbox / "spool-0000000000001-1-0.jsonl"
    broken.write_text(f'{{"agent": "support", "type": "trace", "input": 7, "x": "{PLANTED}"}}\n')
    gateway.lines(8)
    gateway.application.health.body()
    assert len(lines(log_lines)) > 14
    assert PLANTED not in log_lines.getvalue()
    assert client_key not in log_lines.getvalue()


def test_an_error_says_where_and_not_what(log_lines: StringIO) -> None:
    try:
        json.loads(f'{{"{PLANTED}": ')["x"]
    except ValueError:
        log.logger.exception("it failed")
    try:
        raise ValueError(PLANTED)
    except ValueError:
        log.logger.exception("it failed")
    first, second = lines(log_lines)
    assert (first["exception"], second["exception"]) == ("JSONDecodeError", "ValueError")
    assert second["raised_at"][-1].startswith(__file__)
    assert PLANTED not in log_lines.getvalue()


def test_all_that_is_said_is_a_json_line(log_lines: StringIO) -> None:
    log.say("home: /x\x1b[2J")
    log.complain("error: no")
    with log.step("a step"):
        log.logger.debug("deep")
    entries = lines(log_lines)
    assert [entry["level"] for entry in entries] == ["info", "error", "info", "debug", "info"]
    assert entries[0]["message"] == "home: /x\\x1b[2J"
