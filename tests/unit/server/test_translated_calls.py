"""Clients of other APIs than OpenAI's chat completions call a version on a target of ours."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.servers.scripted_upstream import (
    END,
    ScriptedUpstream,
    chat_events,
    chat_reply,
    chunk,
    reply,
    stream_head,
)
from tests.unit.server.conftest import Serve
from tests.worlds.gateway_world import GatewayWorld, call_of
from thumbwheel.gateway.protocols import PROTOCOLS
from thumbwheel.gateway.routing import Choice, RoutingRequest

BODIES: dict[str, dict[str, Any]] = {
    "anthropic_messages": {
        "max_tokens": 9,
        "messages": [{"role": "user", "content": "Hello"}],
        "metadata": {"user_id": "customer-17"},
    },
    "openai_responses": {"input": "Hello", "user": "customer-17"},
    "ollama_chat": {"messages": [{"role": "user", "content": "Hello"}], "stream": False},
    "ollama_generate": {"prompt": "Hello", "stream": False},
}


def on_target(gateway: GatewayWorld, target: str = "vllm") -> GatewayWorld:
    """The world with its version on a target of ours."""
    choose = gateway.application.gateway.choose

    def chosen(request: RoutingRequest) -> Choice:
        choice = choose(request)
        return replace(choice, upstream=replace(choice.upstream, target=target))

    gateway.application.gateway.choose = chosen
    return gateway


def ask(gateway: GatewayWorld, protocol: str, **more: Any) -> Any:
    body = {"model": "support", **BODIES[protocol], **more}
    return gateway.client.post(f"{PROTOCOLS[protocol].path}?beta=true", json=body)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("protocol", BODIES)
def test_it_is_asked_in_a_chat_and_recorded_by_the_clients_api(
    gateway: GatewayWorld, upstream: ScriptedUpstream, protocol: str, streams: bool
) -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5}}
    events = chat_events("Hel", "lo!")
    events.insert(-1, f"data: {json.dumps(usage)}\n\n".encode())
    if streams:
        upstream.script = lambda request: [stream_head(), *map(chunk, events), END]
    else:
        upstream.script = lambda request: [reply(chat_reply("Hello!"))]
    answer = ask(on_target(gateway), protocol, stream=streams)
    assert answer.status_code == 200 and answer.headers["x-thumbwheel-version"] == "v0"
    (request,) = upstream.requests
    assert request.target == "/v1/chat/completions"
    chat = json.loads(request.body)
    assert chat["model"] == "large"
    assert chat["messages"] == [{"role": "user", "content": "Hello"}]
    (line,) = gateway.lines()
    call = call_of(line)
    assert line["metadata"]["gateway"]["protocol"] == protocol
    assert (line["output"], line["status"], call["complete"]) == ("Hello!", "ok", True)
    assert call["tokens"] == {"prompt": 10, "completion": 5}
    assert call["finish_reason"] == "stop" and call["served_model"] == "large-2026"
    assert line["input"] == [{"role": "user", "content": "Hello"}]
    reader = PROTOCOLS[protocol].request({"stream": streams}, {}).reply_reader(200, {})
    reader.feed(answer.content)
    read = reader.finish()
    assert (read.text, read.complete, read.usage.completion) == ("Hello!", True, 5)
    if protocol in ("anthropic_messages", "openai_responses"):
        assert line["subject"] == "customer-17"


@pytest.mark.parametrize("protocol", BODIES)
def test_an_error_of_the_server_is_one_in_the_clients_words(
    gateway: GatewayWorld, upstream: ScriptedUpstream, protocol: str
) -> None:
    upstream.script = lambda request: [reply({"error": {"message": "too long"}}, "400 Bad")]
    answer = ask(on_target(gateway), protocol, stream=True)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert (error if protocol.startswith("ollama") else error["message"]) == "too long"
    (line,) = gateway.lines()
    assert (line["status"], call_of(line)["error"]) == ("error", "HTTP 400: too long")


def test_what_no_chat_can_ask_is_refused_and_recorded(
    gateway: GatewayWorld, upstream: ScriptedUpstream
) -> None:
    answer = ask(on_target(gateway), "openai_responses", previous_response_id="resp_1")
    assert answer.status_code == 400
    assert "previous_response_id" in answer.json()["error"]["message"]
    assert upstream.requests == []
    (line,) = gateway.lines()
    assert line["status"] == "error" and "previous_response_id" in call_of(line)["error"]


def test_a_stream_that_breaks_is_one_that_failed(
    gateway: GatewayWorld, upstream: ScriptedUpstream
) -> None:
    events = chat_events("Hel", "lo!")[:2]
    upstream.script = lambda request: [stream_head(), *map(chunk, events), END]
    answer = ask(on_target(gateway), "anthropic_messages", stream=True)
    assert b"event: error" in answer.content and b"message_stop" not in answer.content
    (line,) = gateway.lines()
    assert (line["status"], call_of(line)["complete"]) == ("error", False)


@pytest.mark.parametrize("streams", [False, True])
def test_it_is_on_disk_before_its_end_where_that_is_asked_for(
    serve: Serve, upstream: ScriptedUpstream, streams: bool
) -> None:
    if streams:
        events = chat_events("Hello!")
        upstream.script = lambda request: [stream_head(), *map(chunk, events), END]
    gateway = on_target(serve(require_capture=True))
    answer = ask(gateway, "ollama_chat", stream=streams)
    assert answer.status_code == 200
    (line,) = gateway.lines()
    assert line["output"] in ("hello", "Hello!")


def test_ollama_answers_its_own_api(gateway: GatewayWorld, upstream: ScriptedUpstream) -> None:
    body = {"message": {"content": "hi"}, "done": True, "done_reason": "stop"}
    upstream.script = lambda request: [reply(body)]
    answer = ask(on_target(gateway, "ollama"), "ollama_chat")
    assert answer.json() == body
    assert upstream.requests[0].target.startswith("/api/chat")
