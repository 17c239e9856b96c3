"""Calls pass unchanged, both ways, and are recorded."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from itertools import pairwise
from random import Random

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
from tests.worlds.gateway_world import CHAT, GatewayWorld, call_of

STRANGE = (
    b'{ "messages":[{"role":"user","content":"Gr\\u00fc\xc3\x9fe \\ud83d\\ude00"}],\n'
    b'"temperature":0.70, "model" : "support" ,"x":1e0}'
)


def test_a_call_reaches_the_upstream_as_it_was_written(
    gateway: GatewayWorld, upstream: ScriptedUpstream
) -> None:
    sent = {
        "content-type": "application/json",
        "authorization": "Bearer sk-of-the-app",
        "x-custom": "ä".encode(),
        "user-agent": "app/1",
        "accept-encoding": "gzip, br",
        "x-thumbwheel-session": "s1",
    }
    answer = gateway.client.post(f"{CHAT}?api-version=2", content=STRANGE, headers=sent)
    assert answer.status_code == 200 and answer.json() == chat_reply()
    (request,) = upstream.requests
    assert request.target == "/v1/chat/completions?api-version=2"
    assert request.body == STRANGE.replace(b'"support"', b'"large"')
    assert request.header("authorization") == "Bearer sk-of-the-app"
    assert (request.header("x-custom"), request.header("user-agent")) == ("ä", "app/1")
    assert request.header("accept-encoding") == "gzip"
    assert request.header("host") == upstream.url.split("/")[2]
    assert not [name for name, _ in request.headers if name.lower().startswith("x-thumbwheel")]
    assert answer.headers["x-thumbwheel-version"] == "v0"
    (line,) = gateway.lines()
    assert line["id"] == answer.headers["x-thumbwheel-trace"]
    assert (line["agent"], call_of(line)["model_version"]) == ("support", "v0")
    assert line["session"] == "s1"
    assert line["output"] == "hello"


def test_an_answer_comes_back_byte_for_byte_with_its_headers(
    gateway: GatewayWorld, upstream: ScriptedUpstream
) -> None:
    packed = gzip.compress(json.dumps(chat_reply("Grüße")).encode())
    headers = [
        ("content-type", "application/json"),
        ("content-encoding", "gzip"),
        ("x-request-id", "abc"),
        ("x-ratelimit-remaining", "a=1"),
        ("x-ratelimit-remaining", "b=2"),
        ("date", "Thu, 01 Jan 2026 00:00:00 GMT"),
        ("connection", "keep-alive"),
    ]
    upstream.script = lambda request: [reply(packed, "200 OK", headers)]
    with gateway.client.stream("POST", CHAT, json={"model": "support", "messages": []}) as answer:
        raw = b"".join(answer.iter_raw())
    assert raw == packed
    assert answer.headers.get_list("x-ratelimit-remaining") == ["a=1", "b=2"]
    assert answer.headers["x-request-id"] == "abc"
    assert answer.headers["date"] == "Thu, 01 Jan 2026 00:00:00 GMT"
    assert "server" not in answer.headers
    assert gateway.lines()[0]["output"] == "Grüße"


def test_a_stream_passes_at_once_and_unchanged(
    gateway: GatewayWorld, upstream: ScriptedUpstream
) -> None:
    events = chat_events("Grü", "ße", " 😀")
    body = b"".join(events)
    pieces = [body[start : start + 7] for start in range(0, len(body), 7)]
    first_came = threading.Event()

    def script(request: Received) -> Iterator[bytes]:
        yield stream_head()
        yield chunk(pieces[0])
        assert first_came.wait(60), "the first part was held back"
        yield from map(chunk, pieces[1:])
        yield END

    upstream.script = script
    with gateway.client.stream(
        "POST", CHAT, json={"model": "support", "messages": [], "stream": True}, timeout=120
    ) as answer:
        parts = answer.iter_raw()
        first = next(parts)
        first_came.set()
        rest = b"".join(parts)
    assert first + rest == body
    (line,) = gateway.lines()
    assert line["output"] == "Grüße 😀"


def test_however_a_stream_is_cut_its_bytes_and_its_text_are_the_same(
    gateway: GatewayWorld, upstream: ScriptedUpstream
) -> None:
    body = b"".join(chat_events("Grü", "ße", " 😀", "\r\n", "data: [DONE]")).replace(
        b"\n\n", b"\r\n\r\n"
    )
    random = Random(7)
    for _ in range(40):
        cuts = sorted(random.sample(range(1, len(body)), random.randint(1, 60)))
        pieces = [body[begin:end] for begin, end in pairwise([0, *cuts, len(body)])]
        upstream.script = lambda request, pieces=pieces: [
            stream_head(),
            *map(chunk, pieces),
            END,
        ]
        assert gateway.ask({"stream": True}).content == body
    assert {line["output"] for line in gateway.lines(40)} == {"Grüße 😀\r\ndata: [DONE]"}


def test_the_model_is_an_agent_an_alias_or_anything_below_the_agents_own_path(
    gateway: GatewayWorld, upstream: ScriptedUpstream
) -> None:
    for path, model, headers, status in (
        (CHAT, "support", {}, 200),
        (CHAT, "support:live", {}, 200),
        (CHAT, "support:canary", {}, 404),
        (CHAT, "gpt-4o", {}, 404),
        (CHAT, "gpt-4o", {"x-thumbwheel-agent": "support"}, 200),
        (f"/a/support{CHAT}", "gpt-4o", {}, 200),
        (f"/a/nobody{CHAT}", "gpt-4o", {}, 404),
        ("/v1/audio/speech", "support", {}, 404),
    ):
        answer = gateway.ask({"model": model}, path, headers=headers)
        assert answer.status_code == status, (path, model, answer.text)
        if status == 404 and "audio" not in path:
            assert "support" in answer.json()["error"]["message"]
    assert [json.loads(request.body)["model"] for request in upstream.requests] == ["large"] * 4
    assert [call_of(line)["model"] for line in gateway.lines(4)] == [
        "support",
        "support:live",
        "gpt-4o",
        "gpt-4o",
    ]


def test_the_models_are_the_agents_and_their_aliases(gateway: GatewayWorld) -> None:
    listed = gateway.client.get("/v1/models").json()
    assert [entry["id"] for entry in listed["data"]] == ["support", "support:live"]
    assert gateway.client.get("/a/support/v1/models/support").json()["id"] == "support"
    assert gateway.client.get("/v1/models/nothing").status_code == 404
    tags = gateway.client.get("/api/tags").json()
    assert [entry["model"] for entry in tags["models"]] == ["support", "support:live"]
    assert gateway.client.get("/api/version").json()["version"]
    assert gateway.client.delete("/v1/models").status_code == 405


def test_each_api_is_refused_in_its_own_words(gateway: GatewayWorld) -> None:
    openai = gateway.ask({"model": "nobody"}).json()
    assert openai["error"]["type"] == "not_found_error"
    anthropic = gateway.ask({"model": "nobody"}, "/v1/messages").json()
    assert anthropic["type"] == "error" and "nobody" in anthropic["error"]["message"]
    ollama = gateway.ask({"model": "nobody"}, "/api/chat").json()
    assert "nobody" in ollama["error"]


def test_calls_of_ollama_and_anthropic_go_to_their_own_paths(
    gateway: GatewayWorld, upstream: ScriptedUpstream
) -> None:
    upstream.script = lambda request: [reply({})]
    for path in ("/v1/messages", "/api/chat", "/api/generate", "/v1/embeddings", "/v1/responses"):
        assert gateway.ask({"input": "x", "prompt": "y"}, path).status_code == 200
        assert gateway.ask({"input": "x"}, f"/a/support{path}").status_code == 200
    assert [request.target for request in upstream.requests][::2] == [
        "/v1/messages",
        "/api/chat",
        "/api/generate",
        "/v1/embeddings",
        "/v1/responses",
    ]
