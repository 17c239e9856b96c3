"""Servers that repeat the key that the gateway presented to them: who may call a
model, or read what is recorded, does not learn it."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.servers.scripted_upstream import (
    END,
    Received,
    ScriptedUpstream,
    chat_events,
    chat_reply,
    chunk,
    reply,
    stream_head,
)
from tests.worlds.gateway_world import AGENT, GatewayWorld, opened_home, running, serve_remote
from thumbwheel.core.secret_store import SecretStore
from thumbwheel.gateway.upstream import without_key
from thumbwheel.models.types import EndpointAddress

KEY = "sk-upstream-0123456789"
JSON = [("content-type", "application/json")]


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as server:
        yield server


@pytest.fixture
def asked(tmp_path: Path, upstream: ScriptedUpstream) -> Iterator[GatewayWorld]:
    with opened_home(tmp_path / "home") as ws:
        SecretStore(ws.home.secrets).set("UPSTREAM", KEY)
        serve_remote(ws, EndpointAddress(upstream.url, "large", secret="UPSTREAM"))
        with running(ws) as world:
            yield world


def refusal(request: Received) -> dict[str, Any]:
    credentials = {name.lower(): value for name, value in request.headers}["authorization"]
    assert KEY in credentials
    return {"error": {"message": f"Incorrect API key provided: {credentials}", "type": "invalid"}}


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_a_key_that_a_server_refuses_is_not_passed_on(
    asked: GatewayWorld, upstream: ScriptedUpstream, path: str, is_packed: bool
) -> None:
    def refuse(request: Received) -> list[bytes]:
        body = json.dumps(refusal(request)).encode()
        packing = [("content-encoding", "gzip")] if is_packed else []
        content = gzip.compress(body) if is_packed else body
        return [raw_reply(content, "401 Unauthorized", [*JSON, *packing])]

    upstream.script = refuse
    answer = asked.ask({"max_tokens": 5}, path)
    assert answer.status_code == 401
    assert "Incorrect API key provided" in answer.text and KEY not in answer.text
    assert KEY not in json.dumps(asked.lines()) and "Incorrect API key" in json.dumps(asked.lines())


def test_a_refusal_without_the_key_is_passed_on_as_it_is(
    asked: GatewayWorld, upstream: ScriptedUpstream
) -> None:
    content = gzip.compress(b'{"error": {"message": "too many"}}')
    headers = [*JSON, ("content-encoding", "gzip")]
    upstream.script = lambda request: [raw_reply(content, "429 Too Many Requests", headers)]
    with asked.client.stream(
        "POST", "/v1/chat/completions", json={"model": AGENT, "messages": []}
    ) as answer:
        assert b"".join(answer.iter_raw()) == content
        assert answer.headers["content-encoding"] == "gzip"


def test_a_key_in_a_header_is_not_passed_on(
    asked: GatewayWorld, upstream: ScriptedUpstream
) -> None:
    headers = [*JSON, ("x-request-auth", f"Bearer {KEY}"), ("x-request-id", "r1")]
    upstream.script = lambda request: [reply(chat_reply(), "200 OK", headers)]
    answer = asked.ask()
    assert answer.headers["x-request-id"] == "r1" and "x-request-auth" not in answer.headers


def test_a_key_in_an_answer_is_not_passed_on(
    asked: GatewayWorld, upstream: ScriptedUpstream
) -> None:
    upstream.script = lambda request: [reply(chat_reply(f"You sent {KEY}."))]
    answer = asked.ask()
    text = answer.json()["choices"][0]["message"]["content"]
    assert text == f"You sent {'*' * len(KEY)}."
    assert KEY not in json.dumps(asked.lines())


@pytest.mark.parametrize("cut", [1, 9, len(KEY) - 1])
def test_a_key_in_two_chunks_of_a_stream_is_not_passed_on(
    asked: GatewayWorld, upstream: ScriptedUpstream, cut: int
) -> None:
    events = b"".join(chat_events(f"You sent {KEY}.")).split(KEY.encode())
    first, second = events[0] + KEY[:cut].encode(), KEY[cut:].encode() + events[1]
    upstream.script = lambda request: [stream_head(), chunk(first), chunk(second), END]
    answer = asked.ask({"stream": True})
    assert "You sent ***" in answer.text and KEY not in answer.text
    assert KEY not in json.dumps(asked.lines())


@given(
    text=st.lists(st.sampled_from(["ab", "a", "b", "aab", "abab", "c"]), max_size=20),
    cuts=st.lists(st.integers(1, 4), max_size=40),
    key=st.sampled_from(["a", "ab", "aab", "abab", "aaa"]),
)
def test_pieces_lose_the_key_wherever_they_are_cut(
    text: list[str], cuts: list[int], key: str
) -> None:
    whole = "".join(text).encode()
    pieces, rest = [], whole
    for cut in cuts:
        pieces.append(rest[:cut])
        rest = rest[cut:]

    async def all_pieces() -> AsyncIterator[bytes]:
        for piece in [*pieces, rest]:
            yield piece

    async def joined() -> bytes:
        return b"".join([piece async for piece in without_key(all_pieces(), key.encode())])

    assert asyncio.run(joined()) == whole.replace(key.encode(), b"*" * len(key))


def raw_reply(content: bytes, status: str, headers: list[tuple[str, str]]) -> bytes:
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers)]
    lines.append(f"content-length: {len(content)}")
    return "\r\n".join([*lines, "", ""]).encode() + content
