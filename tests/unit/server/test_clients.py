"""The clients that people use, unchanged: a base URL is all that is set."""

from __future__ import annotations

import json

import anthropic
import ollama
import openai

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
from tests.worlds.gateway_world import GatewayWorld, call_of

HELLO = [{"role": "user", "content": "Hello"}]


def answer_chats(request: Received) -> list[bytes]:
    if json.loads(request.body).get("stream"):
        return [stream_head(), *map(chunk, chat_events("Grü", "ße")), END]
    return [reply(chat_reply())]


def test_openais_client(gateway: GatewayWorld, upstream: ScriptedUpstream) -> None:
    upstream.script = answer_chats
    client = openai.OpenAI(base_url=f"{gateway.url}/a/support/v1", api_key="any")
    with client:
        answer = client.chat.completions.create(model="gpt-4o", messages=HELLO)
        assert answer.choices[0].message.content == "hello"
        stream = client.chat.completions.create(model="gpt-4o", messages=HELLO, stream=True)
        parts = [event.choices[0].delta.content or "" for event in stream]
        assert "".join(parts) == "Grüße"
        assert [model.id for model in client.models.list()] == ["support", "support:live"]
        upstream.script = lambda request: [reply({"error": {"message": "no"}}, "400 Bad")]
        try:
            client.chat.completions.create(model="gpt-4o", messages=HELLO)
        except openai.BadRequestError as error:
            assert "no" in str(error)
    outputs = [line.get("output") for line in gateway.lines(3)]
    assert outputs == ["hello", "Grüße", None]


def test_anthropics_client(gateway: GatewayWorld, upstream: ScriptedUpstream) -> None:
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": [{"type": "text", "text": "hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 3, "output_tokens": 2},
    }
    upstream.script = lambda request: [reply(message)]
    with anthropic.Anthropic(base_url=f"{gateway.url}/a/support", api_key="any") as client:
        answer = client.messages.create(model="claude", max_tokens=10, messages=HELLO)
        assert answer.content[0].text == "hello"
    (line,) = gateway.lines()
    assert line["output"] == "hello" and call_of(line)["tokens"]["prompt"] == 3


def test_ollamas_client(gateway: GatewayWorld, upstream: ScriptedUpstream) -> None:
    pieces = [
        {"model": "large", "message": {"role": "assistant", "content": text}, "done": False}
        for text in ("Grü", "ße")
    ]
    pieces.append(
        {
            "model": "large",
            "message": {"role": "assistant", "content": ""},
            "done": True,
            "done_reason": "stop",
            "prompt_eval_count": 3,
            "eval_count": 2,
        }
    )
    lines = [json.dumps(piece).encode() + b"\n" for piece in pieces]
    upstream.script = lambda request: [
        stream_head("application/x-ndjson"),
        *map(chunk, lines),
        END,
    ]
    client = ollama.Client(host=f"{gateway.url}/a/support")
    parts = client.chat(model="llama3.2", messages=HELLO, stream=True)
    assert "".join(part.message.content or "" for part in parts) == "Grüße"
    listed = ollama.Client(host=gateway.url).list()
    assert [entry.model for entry in listed.models] == ["support", "support:live"]
    assert gateway.lines()[0]["output"] == "Grüße"
