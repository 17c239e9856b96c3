"""Whatever an upstream, a client or the disk does: the call ends with the right status, and the
record says what happened."""

from __future__ import annotations

import asyncio
import gzip
import logging
import socket
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import httpx2
import pytest
import sqlalchemy as sa
from aiohttp.abc import AbstractResolver, ResolveResult

from tests.leaving_client import asked
from tests.servers.scripted_upstream import (
    END,
    HANG,
    RESET,
    Received,
    ScriptedUpstream,
    chat_events,
    chat_reply,
    chunk,
    reply,
    stream_head,
)
from tests.servers.small_disk import SmallDisk
from tests.unit.server.conftest import Serve
from tests.waiting import until
from tests.worlds.gateway_world import CHAT, HELLO, GatewayWorld, call_of
from thumbwheel.capture.inbox import drain_inbox
from thumbwheel.capture.traces import list_traces
from thumbwheel.db.schema import steps
from thumbwheel.gateway.application import UPSTREAM_BROKE
from thumbwheel.gateway.routing import Upstream
from thumbwheel.gateway.settings import GatewayConfig
from thumbwheel.gateway.upstream import UpstreamError, Upstreams

HTML = b"<html><body>Something went wrong</body></html>"
STREAM = {"model": "support", "messages": [], "stream": True}


def error_of(line: dict[str, Any]) -> str:
    """Why the call of a recorded line failed."""
    return str(call_of(line).get("error"))


@pytest.mark.parametrize("status", ["401 Unauthorized", "429 Too Many", "500 Oops", "529 Busy"])
def test_an_error_of_the_upstream_passes_as_it_is(
    gateway: GatewayWorld, upstream: ScriptedUpstream, status: str
) -> None:
    headers = [("content-type", "text/html"), ("retry-after", "7")]
    upstream.script = lambda request: [reply(HTML, status, headers)]
    answer = gateway.ask()
    assert answer.status_code == int(status[:3]) and answer.content == HTML
    assert answer.headers["retry-after"] == "7"
    assert answer.headers["content-type"] == "text/html"
    (line,) = gateway.lines()
    assert f"HTTP {status[:3]}" in error_of(line) and line["status"] == "error"


def test_a_redirect_is_not_followed_and_not_passed_on(
    gateway: GatewayWorld, upstream: ScriptedUpstream
) -> None:
    headers = [("location", f"{upstream.url}/elsewhere")]
    upstream.script = lambda request: [reply(b"", "307 Temporary Redirect", headers)]
    answer = gateway.ask()
    assert answer.status_code == 502 and "redirects (HTTP 307)" in answer.text
    assert "location" not in answer.headers and len(upstream.requests) == 1
    assert "redirects" in error_of(gateway.lines()[0])


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ([RESET], 502),
        ([b"no http at all\r\n\r\n"], 502),
        ([b"HTTP/1.1 200 OK\r\nx: " + b"a" * 200_000], 502),
    ],
)
def test_an_upstream_that_speaks_no_http_is_a_bad_gateway(
    gateway: GatewayWorld, upstream: ScriptedUpstream, script: list[Any], status: int
) -> None:
    upstream.script = lambda request: script
    answer = gateway.ask()
    assert answer.status_code == status and "v0 on remote" in answer.json()["error"]["message"]
    assert gateway.lines()[0]["status"] == "error"


def closed_calls(upstream: ScriptedUpstream) -> int:
    """Connections that the upstream has closed after a call."""
    return sum(request.method == "POST" for request in upstream.last_words)


def test_a_connection_that_ended_while_nobody_used_it_is_made_anew(
    gateway: GatewayWorld, upstream: ScriptedUpstream
) -> None:
    upstream.script = lambda request: [reply(chat_reply()), RESET]
    for number in range(1, 4):
        assert gateway.ask().json() == chat_reply()
        until(lambda number=number: closed_calls(upstream) == number)
        gateway.client.get("/live")  # the server has heard of it by then
    assert len(upstream.requests) == 3


@pytest.mark.parametrize("answered_before", [0, 1])
def test_a_call_that_the_upstream_has_read_is_not_sent_again(
    gateway: GatewayWorld, upstream: ScriptedUpstream, answered_before: int
) -> None:
    upstream.script = lambda request: [
        reply(chat_reply()) if len(upstream.requests) <= answered_before else RESET
    ]
    for _ in range(answered_before):
        assert gateway.ask().status_code == 200
    assert gateway.ask().status_code == 502
    assert len(upstream.requests) == answered_before + 1


def test_the_name_for_feedback_is_left_to_the_answer_that_comes_in_the_end(
    gateway: GatewayWorld, upstream: ScriptedUpstream
) -> None:
    answers = iter([reply(HTML, "500 Oops"), RESET, reply(chat_reply())])
    upstream.script = lambda request: [next(answers)]
    headers = {"x-thumbwheel-feedback-id": "message-17"}
    statuses = [gateway.ask(headers=headers).status_code for _ in range(3)]
    assert statuses == [500, 502, 200]
    gateway.lines(3)
    drain_inbox(gateway.ws)
    assert not (gateway.ws.home.inbox / "rejected.jsonl").exists()
    stored = list_traces(gateway.ws, "support").traces
    assert len(stored) == 3
    answers_by_name = {trace.external_id: trace.output for trace in stored}
    assert answers_by_name["message-17"] == "hello"
    with gateway.ws.db.read() as connection:
        routings = connection.scalars(sa.select(steps.c.routing)).all()
    assert [routing.get("fails_everywhere") for routing in routings].count(True) == 1


def test_an_upstream_that_is_away_is_named(
    gateway: GatewayWorld, upstream: ScriptedUpstream
) -> None:
    upstream.__exit__(None, None, None)
    answer = gateway.ask()
    assert answer.status_code == 502 and "nothing answers there" in answer.text
    assert "x-thumbwheel-trace" in answer.headers


def test_a_stream_that_breaks_breaks_for_the_client_too_and_what_came_is_kept(
    gateway: GatewayWorld, upstream: ScriptedUpstream
) -> None:
    events = chat_events("half an ans", "wer")
    upstream.script = lambda request: [stream_head(), *map(chunk, events[:2]), 0.1, RESET]
    received = b""
    with (
        pytest.raises(httpx2.RemoteProtocolError),
        gateway.client.stream("POST", CHAT, json=STREAM) as answer,
    ):
        for piece in answer.iter_raw():
            received += piece
    assert received == b"".join(events[:2])
    (line,) = gateway.lines()
    assert line["output"] == "half an ans" and line["status"] == "error"
    assert "the upstream ended the connection" in error_of(line)


def test_a_client_that_leaves_ends_the_upstream_and_is_recorded(
    gateway: GatewayWorld, upstream: ScriptedUpstream
) -> None:
    events = chat_events("begun")
    upstream.script = lambda request: [stream_head(), *map(chunk, events[:2]), HANG]
    with gateway.client.stream("POST", CHAT, json=STREAM) as answer:
        next(answer.iter_raw())
    (line,) = gateway.lines()
    assert "the client left" in error_of(line) and line["output"] == "begun"
    until(lambda: upstream.ended)


def test_a_client_that_leaves_before_the_answer_is_recorded_too(
    gateway: GatewayWorld, upstream: ScriptedUpstream
) -> None:
    upstream.script = lambda request: [HANG]
    with asked(f"{gateway.url}{CHAT}", HELLO):
        until(lambda: upstream.requests)
    (line,) = gateway.lines()
    assert "the client left" in error_of(line) and "output" not in line
    until(lambda: gateway.application.gateway.running == 0)


def test_a_stream_without_an_end_is_ended(serve: Serve, upstream: ScriptedUpstream) -> None:
    gateway = serve(longest=0.5)

    def script(request: Received) -> Iterator[Any]:
        yield stream_head()
        while True:
            yield chunk(chat_events("on")[1])
            yield 0.01

    upstream.script = script
    with (
        pytest.raises(httpx2.RemoteProtocolError),
        gateway.client.stream("POST", CHAT, json=STREAM) as answer,
    ):
        for _ in answer.iter_raw():
            pass
    (line,) = gateway.lines()
    assert "took longer than is allowed" in error_of(line)
    assert set(line["output"].split("on")) == {""}


def test_silence_ends_a_call(serve: Serve, upstream: ScriptedUpstream) -> None:
    gateway = serve(silence=0.3)
    upstream.script = lambda request: [HANG]
    answer = gateway.ask()
    assert answer.status_code == 504 and "in time" in answer.text
    assert gateway.lines()[0]["status"] == "error"


def test_a_request_that_is_too_large_is_refused_when_it_is_stated_and_when_it_is_not(
    serve: Serve, upstream: ScriptedUpstream
) -> None:
    gateway = serve(max_body=1 << 20)
    headers = {"content-type": "application/json"}
    large = b" " * (100 << 20)
    answer = gateway.client.post(CHAT, content=large, headers=headers)
    assert answer.status_code == 413 and "1,048,576 bytes" in answer.text

    def pieces() -> Iterator[bytes]:
        for _ in range(3):
            yield b" " * (1 << 19)

    assert gateway.client.post(CHAT, content=pieces(), headers=headers).status_code == 413
    assert upstream.requests == []
    assert gateway.ask().status_code == 200


def test_a_request_that_unpacks_to_too_much_is_refused_in_constant_memory(
    serve: Serve, upstream: ScriptedUpstream
) -> None:
    gateway = serve(max_body=1 << 20)
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    bomb = gzip.compress(b" " * (200 << 20), 9)
    assert len(bomb) < 1 << 20
    tracemalloc.start()
    answer = gateway.client.post(CHAT, content=bomb, headers=headers)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert answer.status_code == 413 and peak < 16 << 20
    for broken in (b"no gzip", bomb[: len(bomb) // 2]):
        answer = gateway.client.post(CHAT, content=broken, headers=headers)
        assert answer.status_code in (400, 413)
    body = gzip.compress(b'{"model": "support", "messages": []}')
    assert gateway.client.post(CHAT, content=body, headers=headers).status_code == 200
    (request,) = upstream.requests
    assert request.body == b'{"model": "large", "messages": []}'
    assert request.header("content-encoding") is None


def test_an_answer_that_unpacks_to_too_much_passes_and_is_cut_in_the_record(
    gateway: GatewayWorld, upstream: ScriptedUpstream
) -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    bomb = packer.compress(b"[" + b" " * (300 << 20)) + packer.flush()
    headers = [("content-type", "application/json"), ("content-encoding", "gzip")]
    upstream.script = lambda request: [reply(bomb, "200 OK", headers)]
    with gateway.client.stream("POST", CHAT, json={"model": "support"}) as answer:
        assert b"".join(answer.iter_raw()) == bomb
    assert "output" not in gateway.lines()[0]


@pytest.mark.parametrize(
    ("content", "content_type", "status"),
    [
        (b'{"model": "support"}', "text/plain", 415),
        (b'{"model": "support"}', None, 415),
        (b"no json", "application/json", 400),
        (b"[1]", "application/json", 400),
        (b"", "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b'{"model": 7}', "application/json", 400),
        (b'{"model": "support", "x": "\\ud800 \\u0000"}', "application/json", 200),
        (b'\xff\xfe{"model": "support"}', "application/json", 400),
    ],
)
def test_bodies_that_are_no_call_are_refused(
    gateway: GatewayWorld, content: bytes, content_type: str | None, status: int
) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    answer = gateway.client.post(CHAT, content=content, headers=headers)
    assert answer.status_code == status, answer.text


def test_other_host_names_are_refused(gateway: GatewayWorld) -> None:
    for host, status in (("evil.example", 400), ("127.0.0.1:1", 200), ("localhost", 200)):
        assert gateway.ask(headers={"host": host}).status_code == status
        assert gateway.client.get("/health", headers={"host": host}).status_code == status


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    inbox = tmp_path / "home" / "inbox"
    inbox.mkdir(parents=True, mode=0o700)
    small = SmallDisk(inbox)
    small.mount()
    yield small
    small.unmount()


def health_after(world: GatewayWorld, status: int) -> dict[str, Any]:
    """What /health says, once its answer has this status."""
    until(lambda: world.client.get("/health").status_code == status)
    return dict(world.client.get("/health").json())


@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_a_disk_that_takes_nothing_fails_no_call_and_health_turns_red(
    disk: SmallDisk, serve: Serve, fault: str
) -> None:
    gateway = serve()
    assert health_after(gateway, 200)["status"] == "green"
    disk.fill() if fault == "full" else disk.refuse(writes=True)
    for _ in range(3):
        assert gateway.ask({"messages": [{"role": "user", "content": "x" * 9000}]}).is_success
    until(lambda: health_after(gateway, 503)["lost_calls"] == 3)
    assert "3 calls are not recorded" in health_after(gateway, 503)["problems"]["recording"]
    disk.free() if fault == "full" else disk.refuse(writes=False)
    assert gateway.ask().status_code == 200
    assert health_after(gateway, 200)["lost_calls"] == 3
    assert len(gateway.lines()) == 1


def test_where_capture_is_required_a_disk_that_takes_nothing_fails_the_call(
    disk: SmallDisk, serve: Serve, upstream: ScriptedUpstream
) -> None:
    gateway = serve(require_capture=True)
    upstream.script = lambda request: [
        reply(chat_reply())
        if b"stream" not in request.body
        else stream_head() + b"".join(map(chunk, chat_events("a"))) + END
    ]
    assert gateway.ask().json() == chat_reply()
    assert gateway.ask({"stream": True}).content == b"".join(chat_events("a"))
    disk.fill()
    message = {"role": "user", "content": "x" * 9000}
    with pytest.raises(httpx2.RemoteProtocolError):
        gateway.ask({"stream": True, "messages": [message]})
    answer = gateway.ask({"messages": [message]})
    assert answer.status_code == 503 and "require_capture" in answer.text
    asked = len(upstream.requests)
    assert gateway.ask().status_code == 503
    assert len(upstream.requests) == asked


def test_an_answer_that_is_held_and_breaks_is_the_upstreams_fault(
    serve: Serve, upstream: ScriptedUpstream
) -> None:
    gateway = serve(require_capture=True)
    upstream.script = lambda request: [reply(chat_reply())[:-20], RESET]
    answer = gateway.ask()
    assert answer.status_code == 502
    assert UPSTREAM_BROKE in answer.json()["error"]["message"]
    (line,) = gateway.lines()
    assert line["status"] == "error" and line["metadata"]["gateway"]["status"] == 502


def test_a_secret_in_a_url_is_in_no_file_and_no_log(
    gateway: GatewayWorld, upstream: ScriptedUpstream, caplog: pytest.LogCaptureFixture
) -> None:
    answer = gateway.ask(path=f"{CHAT}?key=sk-planted-in-url")
    assert answer.status_code == 200
    assert upstream.requests[0].target.endswith("?key=sk-planted-in-url")
    gateway.lines()
    upstream.__exit__(None, None, None)
    gateway.ask(path=f"{CHAT}?key=sk-planted-in-url")
    gateway.lines(2)
    for path in gateway.ws.home.path.rglob("*"):
        assert not path.is_file() or b"sk-planted" not in path.read_bytes()
    assert "sk-planted" not in caplog.text


class Rebinding(AbstractResolver):
    """A name that leads to each of the addresses in turn, as an attacker's would."""

    def __init__(self, *addresses: str) -> None:
        self._addresses = list(addresses)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        address = self._addresses.pop(0)
        return [
            ResolveResult(
                hostname=host, host=address, port=port, family=socket.AF_INET, proto=0, flags=0
            )
        ]

    async def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("private", "address", "reason"),
    [
        (False, "127.0.0.1", "loopback"),
        (False, "10.0.0.1", "private"),
        (True, "169.254.169.254", "credentials"),
        (True, "169.254.7.7", "link-local"),
    ],
)
def test_a_name_that_leads_to_a_refused_address_is_not_asked(
    upstream: ScriptedUpstream, private: bool, address: str, reason: str
) -> None:
    port = upstream.url.split(":")[2]
    remote = Upstream(
        "v0", "dep_1", "remote", f"http://api.example.com:{port}", "m", private=private
    )

    async def ask() -> None:
        upstreams = Upstreams(GatewayConfig(connect=1.0), Rebinding(address))
        try:
            with pytest.raises(UpstreamError, match=reason):
                await upstreams.post(remote, CHAT, [], b"{}")
        finally:
            await upstreams.close()

    asyncio.run(ask())
    assert upstream.requests == []


def test_an_address_in_the_url_is_asked_where_the_settings_list_it_and_never_if_it_is_metadata(
    upstream: ScriptedUpstream,
) -> None:
    async def ask(url: str, *, private: bool) -> aiohttp.ClientResponse:
        upstreams = Upstreams(GatewayConfig(connect=1.0))
        remote = Upstream("v0", "d", "remote", url, "m", private=private)
        try:
            return await upstreams.post(remote, CHAT, [], b"{}")
        finally:
            await upstreams.close()

    assert asyncio.run(ask(upstream.url, private=True)).status == 200
    with pytest.raises(UpstreamError, match="loopback"):
        asyncio.run(ask(upstream.url, private=False))
    with pytest.raises(UpstreamError, match="credentials"):
        asyncio.run(ask("http://169.254.169.254/v1", private=True))


def test_a_client_that_leaves_during_its_request_raises_no_alarm(
    gateway: GatewayWorld, caplog: pytest.LogCaptureFixture
) -> None:
    address = urlsplit(gateway.url)
    head = f"host: {address.netloc}\r\ncontent-type: application/json\r\ncontent-length: 1000"
    owner = f"authorization: {gateway.owner['authorization']}"
    paths = (CHAT, "/api/feedback", "/api/traces")
    with caplog.at_level(logging.WARNING):
        # FastAPI itself reads the body of the last one, and says that it is no JSON
        for path in (*paths, "/api/agents/support/cases"):
            with socket.create_connection((address.hostname, address.port), 60) as connection:
                connection.sendall(f"POST {path} HTTP/1.1\r\n{head}\r\n{owner}\r\n\r\n{{".encode())

        def counted() -> str:
            return gateway.client.get("/metrics", headers=gateway.owner).text

        until(lambda: counted().count('status="499"') >= len(paths))
        until(lambda: 'route="/api/agents/{agent}/cases"' in counted())
    assert caplog.messages == []
    assert 'status="500"' not in counted()
