"""What servers that people have send through the gateway: each stream is recorded as what was said,
and counted where the server does not count."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.brought.reading import brought
from tests.servers.scripted_upstream import (
    END,
    Received,
    ScriptedUpstream,
    chat_reply,
    chunk,
    reply,
    stream_head,
)
from tests.worlds.gateway_world import (
    AGENT,
    CHAT,
    GatewayWorld,
    call_of,
    opened_home,
    running,
    serve_remote,
)
from thumbwheel.models.types import EndpointAddress

TODAY, TOMORROW = {"day": "today"}, {"day": "tomorrow"}
PRICED = {"price_in": 2.0, "price_out": 10.0}


@dataclass
class Asked:
    """A server in front of an upstream that sends what a test says."""

    gateway: GatewayWorld
    upstream: ScriptedUpstream

    def stream(self, content: bytes, path: str = CHAT, kind: str = "text/event-stream") -> Any:
        """Return the recorded line of a streamed call that is answered with these bytes."""
        self.upstream.script = lambda request: [stream_head(kind), chunk(content), END]
        before = len(self.gateway.lines(0))
        answer = self.gateway.ask({"stream": True}, path=path)
        assert answer.content == content
        return self.gateway.lines(before + 1)[-1]

    def read(self, name: str, **more: Any) -> Any:
        """Return the line of a file that people brought."""
        return self.stream(brought(name).read_bytes(), **more)


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Asked]:
    with ScriptedUpstream() as upstream, opened_home(tmp_path / "home") as ws:
        serve_remote(ws, EndpointAddress(upstream.url, "large", **PRICED))
        with running(ws) as gateway:
            yield Asked(gateway, upstream)


def calls_in(line: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return (name, arguments) of the tool calls of a line."""
    output = call_of(line).get("output") or {}
    functions = [call["function"] for call in output.get("tool_calls", [])]
    return [(function["name"], json.loads(function["arguments"])) for function in functions]


CALLS = {
    "noindex-one": [("hours", TODAY)],
    "noindex-two": [("hours", TODAY), ("hours", TOMORROW)],
    "emptyid-two": [("hours", TODAY), ("hours", TOMORROW)],
    "noid-two": [("hours", TODAY), ("parking", TOMORROW)],
    "nullindex": [("hours", TODAY)],
}


@pytest.mark.parametrize("name", CALLS)
def test_tool_calls_without_an_index_or_an_id(asked: Asked, name: str) -> None:
    line = asked.read(f"40-gateway-toolcalls-without-index/{name}.sse")
    assert calls_in(line) == CALLS[name]
    assert call_of(line)["complete"] is True


def pieces(*deltas: dict[str, Any]) -> bytes:
    """Return a stream of pieces of tool calls."""
    choices: list[dict[str, Any]] = [
        {"index": 0, "delta": {"tool_calls": [delta]}, "finish_reason": None} for delta in deltas
    ]
    choices.append({"index": 0, "delta": {}, "finish_reason": "tool_calls"})
    events = [{"id": "c1", "model": "up", "choices": [choice]} for choice in choices]
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    return "".join([*lines, "data: [DONE]\n\n"]).encode()


def piece(index: Any = None, id: str | None = None, **function: Any) -> dict[str, Any]:
    named = {"index": index, "id": id, "function": function}
    return {key: value for key, value in named.items() if value is not None}


NEIGHBOURS = {
    "two calls on one index, told apart by their ids": (
        [
            piece(0, "a", name="hours", arguments=""),
            piece(0, arguments='{"day": "today"}'),
            piece(0, "b", name="parking", arguments=""),
            piece(0, arguments='{"day": "tomorrow"}'),
        ],
        [("hours", TODAY), ("parking", TOMORROW)],
    ),
    "two calls on one index, told apart by their names": (
        [
            piece(0, name="hours", arguments='{"day": "today"}'),
            piece(0, name="parking", arguments='{"day": "tomorrow"}'),
        ],
        [("hours", TODAY), ("parking", TOMORROW)],
    ),
    "a head that is repeated with each piece": (
        [
            piece(0, "a", name="hours", arguments='{"day": '),
            piece(0, "a", name="hours", arguments='"today"}'),
        ],
        [("hours", TODAY)],
    ),
    "a name that is repeated with each piece": (
        [piece(name="hours", arguments='{"day": '), piece(name="hours", arguments='"today"}')],
        [("hours", TODAY)],
    ),
    "arguments on another index than their head": (
        [piece(0, "a", name="hours", arguments=""), piece(1, arguments='{"day": "today"}')],
        [("hours", TODAY)],
    ),
    "arguments on another index, with the id of their head": (
        [piece(0, "a", name="hours", arguments=""), piece(1, "a", arguments='{"day": "today"}')],
        [("hours", TODAY)],
    ),
    "two calls whose pieces take turns": (
        [
            piece(0, "a", name="hours", arguments=""),
            piece(1, "b", name="parking", arguments=""),
            piece(0, arguments='{"day": "today"}'),
            piece(1, arguments='{"day": "tomorrow"}'),
        ],
        [("hours", TODAY), ("parking", TOMORROW)],
    ),
    "the same call twice": (
        [
            piece(0, "a", name="hours", arguments='{"day": "today"}'),
            piece(1, "b", name="hours", arguments='{"day": "today"}'),
        ],
        [("hours", TODAY), ("hours", TODAY)],
    ),
    "a call without arguments": ([piece(0, "a", name="hours")], [("hours", {})]),
}


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_neighbours_of_those_calls(asked: Asked, name: str) -> None:
    deltas, expected = NEIGHBOURS[name]
    assert calls_in(asked.stream(pieces(*deltas))) == expected


def test_arguments_that_are_no_json_are_no_complete_answer(asked: Asked) -> None:
    line = asked.stream(pieces(piece(0, "a", name="hours", arguments='{"day": "tod')))
    assert call_of(line)["complete"] is False
    assert "no JSON" in line["metadata"]["gateway"]["problem"]


def test_anthropics_stream_with_thoughts_and_a_call_without_input(asked: Asked) -> None:
    line = asked.read("45-gateway-anthropic-stream/anthropic.sse", path="/v1/messages")
    assert calls_in(line) == [("hours", TODAY), ("parking", {})]
    assert line["steps"][0] == {"kind": "reasoning", "output": "I look."}
    assert call_of(line)["output"]["content"] == "Let me look."


def test_an_overloaded_server_answered_nothing_that_is_learned(asked: Asked) -> None:
    name = "45-gateway-anthropic-stream/anthropic-overloaded.sse"
    line = asked.read(name, path="/v1/messages")
    assert line["status"] == "error" and call_of(line)["complete"] is False
    assert "Overloaded" in call_of(line)["error"]


def test_ollamas_stream_with_thoughts_and_two_calls(asked: Asked) -> None:
    ollama: dict[str, Any] = {"path": f"/a/{AGENT}/api/chat", "kind": "application/x-ndjson"}
    line = asked.read("46-gateway-ollama-stream/ollama.ndjson", **ollama)
    assert calls_in(line) == [("hours", TODAY), ("hours", TOMORROW)]
    assert line["steps"][0]["output"] == "They want hours."
    assert call_of(line)["tokens"] == {"prompt": 5, "completion": 9}
    failed = asked.read("46-gateway-ollama-stream/ollama-error.ndjson", **ollama)
    assert "llama runner process" in call_of(failed)["error"]


VARIANTS = {
    "azure": "Six.",
    "emptyfinish": "Until six.",
    "plaintype": "Until six.",
    "reasoning": "Six.",
    "refusal": "I cannot.",
    "think": "Six.",
    "two": "Six.",
}


@pytest.mark.parametrize("name", VARIANTS)
def test_the_answer_in_each_way_of_writing_it(asked: Asked, name: str) -> None:
    kind = "text/plain" if name == "plaintype" else "text/event-stream"
    line = asked.read(f"47-gateway-chat-variants/{name}.sse", kind=kind)
    assert line["output"] == VARIANTS[name]
    alternatives = ["Seven."] if name == "two" else []
    assert (call_of(line).get("output") or {}).get("alternatives", []) == alternatives
    if name in ("reasoning", "think"):
        assert line["steps"][0] == {"kind": "reasoning", "output": "They want hours."}


@pytest.mark.parametrize("name", ["function", "stop-with-tools"])
def test_a_call_in_each_way_of_writing_it(asked: Asked, name: str) -> None:
    assert calls_in(asked.read(f"47-gateway-chat-variants/{name}.sse")) == [("hours", TODAY)]


def test_a_whole_answer_where_a_stream_was_asked_for(asked: Asked) -> None:
    line = asked.read("47-gateway-chat-variants/json.sse", kind="application/json")
    assert (line["output"], call_of(line)["tokens"]) == ("Six.", {"prompt": 5, "completion": 2})


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_as_events_may_end_them(asked: Asked, end: str) -> None:
    events = [
        {"choices": [{"index": 0, "delta": {"content": text}}]} for text in ("Until ", "six.")
    ]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    texts = [f"data: {json.dumps(event)}{end}{end}" for event in events]
    late = f'data: {{"choices": [{{"index": 0, "delta": {{"content": "late"}}}}]}}{end}{end}'
    line = asked.stream("".join([*texts, f"data: [DONE]{end}{end}", late]).encode())
    assert line["output"] == "Until six." and call_of(line)["complete"] is True


USAGE = ("usage-before", "usage-choices", "usage-every", "usage-last", "usage-null")


@pytest.mark.parametrize("name", USAGE)
def test_usage_is_found_where_servers_put_it(asked: Asked, name: str) -> None:
    call = call_of(asked.read(f"42-gateway-usage-places/{name}.sse"))
    assert call["tokens"] == {"prompt": 5, "completion": 2}
    assert call["cost"] == pytest.approx((5 * 2.0 + 2 * 10.0) / 1e6)


@pytest.mark.parametrize("limit", [{"cost_per_day": 0.00001}, {"tokens_per_day": 5}])
def test_a_limit_holds_where_the_server_counts_nothing(
    tmp_path: Path, limit: dict[str, Any]
) -> None:
    content = brought("42-gateway-usage-places/plain.sse").read_bytes()
    with (
        ScriptedUpstream(lambda request: [stream_head(), chunk(content), END]) as upstream,
        opened_home(tmp_path / "home", {"agents": {AGENT: limit}}) as ws,
    ):
        serve_remote(ws, EndpointAddress(upstream.url, "large", **PRICED))
        with running(ws) as gateway:
            upstream.requests.clear()
            statuses = []
            for number in range(4):
                statuses.append(gateway.ask({"stream": True}).status_code)
                gateway.lines(min(number, statuses.count(200) - 1) + 1)
            assert statuses[0] == 200 and set(statuses[1:]) == {402}, statuses
            assert len(upstream.requests) == 1
            (line,) = gateway.lines()
            assert line["metadata"]["gateway"]["counted_tokens"] > 0
            assert "tokens" not in call_of(line), "what the server told is told apart"


def test_a_limit_of_costs_refuses_a_server_without_a_price(tmp_path: Path) -> None:
    settings = {"agents": {AGENT: {"cost_per_day": 1.0}}}
    with ScriptedUpstream() as upstream, opened_home(tmp_path / "home", settings) as ws:
        serve_remote(ws, EndpointAddress(upstream.url, "large"))
        with running(ws) as gateway:
            refused = gateway.ask()
            assert refused.status_code == 402 and "has no price" in refused.text


def test_requests_beside_calls_are_passed_on_and_not_recorded(asked: Asked) -> None:
    answers = {
        "/v1/moderations": {"results": []},
        "/api/embed": {"embeddings": [[0.5]]},
        "/api/embeddings": {"embedding": [0.5]},
    }

    def answered(request: Received) -> list[Any]:
        path = next(path for path in answers if request.target.endswith(path.removeprefix("/v1")))
        return [reply(answers[path])]

    asked.upstream.script = answered
    for path, content in answers.items():
        body = {"model": "omni-moderation-latest", "input": "hi"}
        answer = asked.gateway.client.post(f"/a/{AGENT}{path}", json=body)
        assert (answer.status_code, answer.json()) == (200, content)
    models = [json.loads(request.body)["model"] for request in asked.upstream.requests[-3:]]
    assert models == ["omni-moderation-latest", "large", "large"]
    asked.upstream.script = lambda request: [reply(chat_reply())]
    asked.gateway.ask()
    (line,) = asked.gateway.lines(1)
    assert line["metadata"]["gateway"]["protocol"] == "openai_chat"


def test_tokens_are_counted_for_clients_of_anthropic(asked: Asked, tmp_path: Path) -> None:
    body = json.loads(brought("48-gateway-missing-paths/count_tokens.json").read_text())
    address = f"/a/{AGENT}/v1/messages/count_tokens"
    counted = asked.gateway.client.post(address, json=body)
    assert counted.status_code == 200 and counted.json()["input_tokens"] > 0


def test_clients_of_ollama_find_their_model(asked: Asked) -> None:
    client, prefix = asked.gateway.client, f"/a/{AGENT}/api"
    listed = client.get(f"{prefix}/ps").json()["models"]
    assert AGENT in [model["name"] for model in listed]
    shown = client.post(f"{prefix}/show", json={"model": f"{AGENT}:latest"})
    assert shown.status_code == 200 and "tools" in shown.json()["capabilities"]
    assert client.post(f"{prefix}/show", json={"model": "another"}).status_code == 404


def events(*choices: dict[str, Any]) -> bytes:
    """A stream of one choice an event."""
    chunks = [json.dumps({"id": "c", "model": "m", "choices": [choice]}) for choice in choices]
    return "".join(f"data: {text}\n\n" for text in [*chunks, "[DONE]"]).encode()


def test_a_stream_of_one_whole_message_is_that_message(asked: Asked) -> None:
    message = {"role": "assistant", "content": "Hello"}
    whole = {"index": 0, "message": message, "finish_reason": "stop"}
    assert asked.stream(events(whole))["output"] == "Hello"
    piece = {"index": 0, "delta": {"content": "Hello"}}
    assert asked.stream(events(piece, {**whole, "delta": {}}))["output"] == "Hello"


def test_calls_of_different_indices_are_two_also_under_one_id(asked: Asked) -> None:
    def piece(index: int, **function: str) -> dict[str, Any]:
        call = {"index": index, "id": "c1", "type": "function", "function": function}
        return {"index": 0, "delta": {"tool_calls": [call]}}

    first = piece(0, name="hours", arguments='{"day": "today"}')
    other = piece(1, name="hours", arguments='{"day": "tomorrow"}')
    assert calls_in(asked.stream(events(first, other))) == [("hours", TODAY), ("hours", TOMORROW)]
    head = piece(0, name="hours", arguments='{"day": ')
    rest = piece(0, name="hours", arguments='"today"}')
    assert calls_in(asked.stream(events(head, rest))) == [("hours", TODAY)]
