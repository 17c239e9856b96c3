"""What an upstream or a stranger says on a connection stays between the two: no cookie, no leave of
a browser, no address to go to, no other protocol, no line of the log."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.servers.scripted_upstream import ScriptedUpstream, chat_reply, reply
from tests.worlds.gateway_world import GatewayWorld, opened_home, running, serve_remote
from thumbwheel.models.types import EndpointAddress

OF_OTHERS = {
    "set-cookie": "thumbwheel_session=forged; Path=/",
    "location": "https://attacker.example/",
    "refresh": "0; url=https://attacker.example/",
    "link": "<https://attacker.example/x.js>; rel=preload",
    "clear-site-data": '"cookies"',
    "strict-transport-security": "max-age=31536000",
    "www-authenticate": 'Basic realm="Your password, please"',
    "access-control-allow-origin": "*",
    "access-control-allow-credentials": "true",
    "cross-origin-resource-policy": "cross-origin",
    "content-security-policy": "default-src *",
    "x-thumbwheel-trace": "trc_forged",
}


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as server:
        yield server


@pytest.fixture
def asked(tmp_path: Path, upstream: ScriptedUpstream) -> Iterator[GatewayWorld]:
    with opened_home(tmp_path / "home") as ws:
        serve_remote(ws, EndpointAddress(upstream.url, "large"))
        with running(ws) as world:
            yield world


@pytest.mark.parametrize("status", ["200 OK", "429 Too Many Requests"])
def test_an_upstream_has_no_say_over_the_browser(
    asked: GatewayWorld, upstream: ScriptedUpstream, status: str
) -> None:
    plain_headers = {"content-type": "application/json", "retry-after": "7", "x-request-id": "r1"}
    headers = [*plain_headers.items(), *OF_OTHERS.items()]
    upstream.script = lambda request: [reply(chat_reply(), status, headers)]
    answer = asked.ask()
    assert answer.status_code == int(status[:3])
    assert {name: answer.headers[name] for name in plain_headers} == plain_headers
    forged = {name for name, value in OF_OTHERS.items() if answer.headers.get(name) == value}
    assert forged == set()
    assert not asked.client.cookies


def test_an_upstream_changes_no_protocol(asked: GatewayWorld, upstream: ScriptedUpstream) -> None:
    switch = (
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"
    )
    upstream.script = lambda request: [switch]
    answer = asked.ask()
    assert answer.status_code == 502
    assert "101" in answer.json()["error"]["message"]


def raw(world: GatewayWorld, *lines: str) -> bytes:
    """Return the first bytes of the answer to a request of these lines."""
    address = urlsplit(world.url)
    with socket.create_connection((str(address.hostname), address.port or 0), 30) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        return connection.recv(1 << 16)


def test_of_two_hosts_none_is_believed(asked: GatewayWorld) -> None:
    own_host = urlsplit(asked.url).netloc
    assert raw(asked, "GET /health HTTP/1.1", f"host: {own_host}").startswith(b"HTTP/1.1 200")
    for first, second in (
        (own_host, "evil.example"),
        ("evil.example", own_host),
        (own_host, own_host),
    ):
        answer = raw(asked, "GET /health HTTP/1.1", f"host: {first}", f"host: {second}")
        assert answer.startswith(b"HTTP/1.1 400"), answer


def test_upgrades_fill_no_log(asked: GatewayWorld, caplog: pytest.LogCaptureFixture) -> None:
    upgrade = ("connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13")
    with caplog.at_level(logging.WARNING):
        for path in ("/", "/v1/chat/completions", "/api/openapi.json"):
            answer = raw(
                asked, f"GET {path} HTTP/1.1", f"host: {urlsplit(asked.url).netloc}", *upgrade
            )
            assert answer.startswith(b"HTTP/1.1 ")
    assert caplog.messages == []
