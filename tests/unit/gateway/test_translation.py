"""Calls of other APIs become chat requests, and chat replies are written in their words, wherever
the server's bytes are cut."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recorded_replies import REPLIES, STREAM, Recorded, chat_chunk, sse
from tests.scrambled_json import json_values
from thumbwheel.core.errors import InputError
from thumbwheel.gateway.protocol import CallRequest
from thumbwheel.gateway.protocols import PROTOCOLS
from thumbwheel.gateway.reply_draft import CallReply
from thumbwheel.gateway.routing import Upstream
from thumbwheel.gateway.translated_call import (
    needs_translation,
    require_tools_shown,
    server_reply_reader,
    translated_reply,
    translated_request,
)
from thumbwheel.gateway.unrecorded import unrecorded_of

LOCAL = Upstream("v1", "dep_1", "embedded", "http://127.0.0.1:9/v1", "support-v1", body={"f": 1})
JUNK = json_values("text", "function", "tool", "image_url")
TRANSLATED = ("anthropic_messages", "openai_responses", "ollama_chat", "ollama_generate")
PIXEL = "iVBORw0KGgo" * 100
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
FUNCTION = {"type": "function", "function": {"name": "move", "parameters": SCHEMA}}
CHAT_REPLIES = [
    recorded
    for recorded in REPLIES
    if recorded.protocol == "openai_chat"
    and recorded.expected.get("complete", True)
    and recorded.status == 200
]


def call_of(protocol: str, body: dict[str, Any]) -> CallRequest:
    return PROTOCOLS[protocol].request({"model": "support", **body}, {})


def chat_of(protocol: str, body: dict[str, Any]) -> dict[str, Any]:
    """The chat request, without what all of them have."""
    chat: dict[str, Any] = json.loads(translated_request(call_of(protocol, body), LOCAL).body)
    assert (chat.pop("model"), chat.pop("f")) == ("support-v1", 1)
    return chat


def test_only_versions_on_targets_of_ours_are_asked_in_chats() -> None:
    def is_translated(protocol: str, target: str) -> bool:
        upstream = Upstream("v1", "d", target, "http://x/v1", "m")
        return needs_translation(call_of(protocol, {}), upstream)

    for protocol in TRANSLATED:
        assert is_translated(protocol, "embedded") and is_translated(protocol, "llamacpp")
        assert is_translated(protocol, "vllm") and not is_translated(protocol, "remote")
        assert is_translated(protocol, "ollama") is not protocol.startswith("ollama")
    for protocol in ("openai_chat", "openai_completions", "openai_embeddings"):
        assert not is_translated(protocol, "embedded")


FORCED = [
    ("openai_chat", {"tool_choice": "required"}),
    ("openai_chat", {"tool_choice": {"type": "function", "function": {"name": "move"}}}),
    ("openai_responses", {"tool_choice": "required"}),
    ("openai_responses", {"tool_choice": {"type": "function", "name": "move"}}),
    ("anthropic_messages", {"tool_choice": {"type": "any"}, "max_tokens": 5}),
    ("anthropic_messages", {"tool_choice": {"type": "tool", "name": "move"}, "max_tokens": 5}),
]


@pytest.mark.parametrize(("protocol", "body"), FORCED)
def test_no_call_is_forced_on_a_model_that_sees_no_tools(
    protocol: str, body: dict[str, Any]
) -> None:
    require_tools_shown(call_of(protocol, body), LOCAL)
    with pytest.raises(InputError, match="shows the model no tools") as refused:
        require_tools_shown(call_of(protocol, body), replace(LOCAL, shows_tools=False))
    assert "tool_choice" in refused.value.what and "Leave tool_choice out" in refused.value.fix


@pytest.mark.parametrize(
    ("protocol", "body"),
    [
        ("openai_chat", {"tool_choice": "auto"}),
        ("openai_chat", {"tools": [FUNCTION]}),
        ("anthropic_messages", {"tool_choice": {"type": "auto"}, "max_tokens": 5}),
        ("ollama_chat", {"tools": [FUNCTION]}),
        ("openai_embeddings", {"input": "a"}),
    ],
)
def test_calls_that_force_nothing_pass(protocol: str, body: dict[str, Any]) -> None:
    require_tools_shown(call_of(protocol, body), replace(LOCAL, shows_tools=False))


def test_a_request_of_anthropics() -> None:
    chat = chat_of(
        "anthropic_messages",
        {
            "system": [{"type": "text", "text": "Be short."}],
            "max_tokens": 50,
            "temperature": 0.5,
            "top_k": 3,
            "stop_sequences": ["END"],
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "tools": [{"name": "move", "description": "Move it.", "input_schema": SCHEMA}],
            "tool_choice": {"type": "tool", "name": "move", "disable_parallel_tool_use": True},
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
            "stream": True,
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "What is it?"},
                        {
                            "type": "image",
                            "source": {"type": "base64", "media_type": "image/png", "data": PIXEL},
                        },
                    ],
                },
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                        {"type": "text", "text": "I move it."},
                        {"type": "tool_use", "id": "t1", "name": "move", "input": {"n": 1}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "t1",
                            "content": "stuck",
                            "is_error": True,
                        },
                        {"type": "text", "text": "And now?"},
                    ],
                },
            ],
        },
    )
    call = {"id": "t1", "type": "function"}
    function = {"name": "move", "description": "Move it.", "parameters": SCHEMA}
    assert chat == {
        "messages": [
            {"role": "system", "content": "Be short."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is it?"},
                    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
                ],
            },
            {
                "role": "assistant",
                "content": "I move it.",
                "reasoning_content": "Hm.",
                "tool_calls": [{**call, "function": {"name": "move", "arguments": '{"n": 1}'}}],
            },
            {"role": "tool", "content": "stuck", "tool_call_id": "t1"},
            {"role": "user", "content": "And now?"},
        ],
        "max_tokens": 50,
        "temperature": 0.5,
        "top_k": 3,
        "stop": ["END"],
        "chat_template_kwargs": {"enable_thinking": True},
        "tools": [{"type": "function", "function": function}],
        "tool_choice": {"type": "function", "function": {"name": "move"}},
        "parallel_tool_calls": False,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": SCHEMA},
        },
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_request_of_openais_responses() -> None:
    format = {"type": "json_schema", "name": "it", "schema": SCHEMA, "strict": True}
    chat = chat_of(
        "openai_responses",
        {
            "instructions": "Be short.",
            "max_output_tokens": 9,
            "top_p": 0.5,
            "reasoning": {"effort": "low"},
            "text": {"format": format},
            "include": ["message.output_text.logprobs"],
            "top_logprobs": 2,
            "tools": [{"type": "function", "name": "move", "parameters": SCHEMA, "strict": True}],
            "tool_choice": {"type": "function", "name": "move"},
            "input": [
                {
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "Look:"},
                        {"type": "input_image", "image_url": "data:image/png;base64,aGk="},
                    ],
                },
                {"type": "reasoning", "id": "rs_1", "summary": []},
                {"type": "function_call", "call_id": "c1", "name": "move", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "moved"},
            ],
        },
    )
    call = {"id": "c1", "type": "function", "function": {"name": "move", "arguments": "{}"}}
    assert chat == {
        "messages": [
            {"role": "system", "content": "Be short."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Look:"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
                ],
            },
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "moved", "tool_call_id": "c1"},
        ],
        "max_tokens": 9,
        "top_p": 0.5,
        "reasoning_effort": "low",
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "it", "schema": SCHEMA, "strict": True},
        },
        "logprobs": True,
        "top_logprobs": 2,
        "tools": [
            {
                "type": "function",
                "function": {"name": "move", "parameters": SCHEMA, "strict": True},
            }
        ],
        "tool_choice": {"type": "function", "function": {"name": "move"}},
    }


def test_requests_of_ollamas() -> None:
    chat = chat_of(
        "ollama_chat",
        {
            "format": SCHEMA,
            "think": False,
            "options": {"num_predict": 5, "num_ctx": 4096, "temperature": 0, "seed": 1},
            "keep_alive": "5m",
            "tools": [FUNCTION],
            "messages": [
                {"role": "user", "content": "Look:", "images": ["/9j/AAAA"]},
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [
                        {"function": {"name": "move", "arguments": {"n": 1}}},
                        {"function": {"name": "move", "arguments": {"n": 2}}},
                    ],
                },
                {"role": "tool", "tool_name": "move", "content": "moved 1"},
                {"role": "tool", "tool_name": "move", "content": "moved 2"},
            ],
        },
    )
    assert chat["messages"][0]["content"][1] == {
        "type": "image_url",
        "image_url": {"url": "data:image/jpeg;base64,/9j/AAAA"},
    }
    ids = [call["id"] for call in chat["messages"][1]["tool_calls"]]
    assert [message["tool_call_id"] for message in chat["messages"][2:]] == ids
    assert len(set(ids)) == 2
    chat.pop("messages")
    assert chat == {
        "temperature": 0,
        "seed": 1,
        "max_tokens": 5,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": SCHEMA},
        },
        "chat_template_kwargs": {"enable_thinking": False},
        "tools": [FUNCTION],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    prompt = {"prompt": "Hi", "system": "Be short.", "format": "json", "stream": False}
    assert chat_of(
        "ollama_generate", {**prompt, "context": [], "options": {"num_predict": -1}}
    ) == {
        "messages": [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": "Hi"},
        ],
        "response_format": {"type": "json_object"},
    }


@pytest.mark.parametrize(
    ("protocol", "body", "name"),
    [
        ("openai_responses", {"input": "Hi", "previous_response_id": "resp_1"}, "previous"),
        ("openai_responses", {"input": [{"type": "item_reference", "id": "msg_1"}]}, "store"),
        ("openai_responses", {"input": "Hi", "tools": [{"type": "web_search"}]}, "web_search"),
        ("anthropic_messages", {"tools": [{"type": "bash_20250124", "name": "bash"}]}, "bash_2025"),
        (
            "anthropic_messages",
            {"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]},
            "document",
        ),
        ("ollama_generate", {"prompt": "Hi", "raw": True}, "raw"),
        ("ollama_generate", {"prompt": "Hi", "suffix": "x"}, "suffix"),
    ],
)
def test_a_request_that_no_chat_request_can_express_says_what_to_do(
    protocol: str, body: dict[str, Any], name: str
) -> None:
    with pytest.raises(InputError, match=name) as refusal:
        chat_of(protocol, body)
    assert refusal.value.fix


def translated(
    protocol: str, pieces: list[bytes], streams: bool, content_type: str, **body: Any
) -> tuple[int, bytes]:
    """Status and body of what the client gets for a reply of the server in these pieces."""
    call = call_of(protocol, {"stream": streams, **body})
    reply = translated_reply(call, 200, content_type)
    written = [reply.feed(piece) for piece in pieces]
    if reply.is_stream:
        return 200, b"".join([*written, reply.end()])
    assert b"".join(written) == b""
    return reply.whole()


def read_back(protocol: str, content: bytes, streams: bool) -> CallReply:
    """What the client's API says, by our own reader of it."""
    reader = call_of(protocol, {"stream": streams}).reply_reader(200, {})
    reader.feed(content)
    return reader.finish()


def facts(reply: CallReply, has_calls: bool, has_reasoning: bool) -> dict[str, Any]:
    """What every API can say of a reply."""
    facts: dict[str, Any] = {"text": reply.text or "", "error": reply.error}
    facts["complete"] = reply.complete
    facts["usage"] = (reply.usage.prompt, reply.usage.completion)
    if has_reasoning:
        facts["reasoning"] = reply.reasoning
    if has_calls:
        # some servers say "stop" of calls, too
        facts["finish"] = "tool_calls" if reply.tool_calls else reply.finish_reason
        functions = [call["function"] for call in reply.tool_calls]
        facts["calls"] = [
            (function["name"], json.loads(function["arguments"])) for function in functions
        ]
    return facts


@pytest.mark.parametrize("protocol", TRANSLATED)
@pytest.mark.parametrize("recorded", CHAT_REPLIES, ids=lambda recorded: recorded.name)
def test_a_reply_says_the_same_in_every_api_wherever_it_is_cut(
    recorded: Recorded, protocol: str
) -> None:
    streams = recorded.content_type == STREAM
    source = server_reply_reader(
        call_of(protocol, {"stream": streams, **recorded.request}), 200, recorded.content_type
    )
    source.feed(recorded.body)
    expected = source.finish()
    has_calls, has_reasoning = protocol != "ollama_generate", True
    if not has_calls and expected.tool_calls:
        return  # without tools in a request there are none in its reply
    chance = random.Random(recorded.name + protocol)
    bytes_alone = [bytes([byte]) for byte in recorded.body]
    cuts = sorted(chance.randrange(len(recorded.body)) for _ in range(5))
    ends = [*cuts, len(recorded.body)]
    parts = [recorded.body[start:end] for start, end in zip([0, *cuts], ends, strict=True)]
    asked = {"thinking": {"type": "enabled"}} if protocol == "anthropic_messages" else {}
    for pieces in ([recorded.body], bytes_alone, parts):
        status, content = translated(protocol, pieces, streams, recorded.content_type, **asked)
        assert status == 200
        answer = facts(read_back(protocol, content, streams), has_calls, has_reasoning)
        if None in (expected.usage.prompt, expected.usage.completion):
            answer["usage"] = (expected.usage.prompt, expected.usage.completion)  # nobody knows
        assert answer == facts(expected, has_calls, has_reasoning), content


CALLS = [
    {"index": 0, "id": "c1", "function": {"name": "move", "arguments": ""}},
    {"index": 1, "id": "c2", "function": {"name": "look", "arguments": '{"at"'}},
    {"index": 0, "function": {"arguments": '{"to": '}},
    {"index": 1, "function": {"arguments": ': "B"}'}},
    {"index": 0, "function": {"arguments": '"A"}'}},
]


@pytest.mark.parametrize("protocol", ["anthropic_messages", "openai_responses", "ollama_chat"])
def test_calls_that_come_in_turns_stay_apart(protocol: str) -> None:
    chunks = [chat_chunk({"content": "I do. "})]
    chunks += [chat_chunk({"tool_calls": [call]}) for call in CALLS]
    body = sse(*chunks, chat_chunk({}, "tool_calls"), done=True)
    _, content = translated(protocol, [body], True, STREAM)
    reply = read_back(protocol, content, True)
    assert reply.text == "I do. " and reply.finish_reason == "tool_calls"
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in reply.tool_calls]
    assert calls == [("move", '{"to": "A"}'), ("look", '{"at": "B"}')]
    assert [call["id"] for call in reply.tool_calls] == ["c1", "c2"]


@pytest.mark.parametrize(
    ("finish", "anthropic", "responses", "ollama"),
    [
        ("stop", "end_turn", "completed", "stop"),
        ("length", "max_tokens", "incomplete", "length"),
        ("content_filter", "refusal", "incomplete", "stop"),
    ],
)
def test_finish_reasons(finish: str, anthropic: str, responses: str, ollama: str) -> None:
    choice = {"index": 0, "message": {"content": "Hi"}, "finish_reason": finish}
    usage = {"prompt_tokens": 7, "completion_tokens": 2}
    body = json.dumps({"id": "1", "choices": [choice], "usage": usage}).encode()

    def answer(protocol: str) -> Any:
        _, content = translated(protocol, [body], False, "application/json")
        return json.loads(content)

    assert answer("anthropic_messages")["stop_reason"] == anthropic
    assert answer("anthropic_messages")["usage"]["input_tokens"] == 7
    assert answer("openai_responses")["status"] == responses
    assert answer("openai_responses")["usage"]["total_tokens"] == 9
    assert answer("ollama_chat")["done_reason"] == ollama
    assert answer("ollama_generate")["eval_count"] == 2


def test_the_stop_text_is_named_where_the_server_names_it() -> None:
    choice = {"index": 0, "message": {"content": "Hi"}, "finish_reason": "stop"}
    body = json.dumps({"choices": [choice | {"stop_reason": "END"}]}).encode()
    _, content = translated("anthropic_messages", [body], False, "application/json")
    message = json.loads(content)
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "END")


def test_thoughts_are_for_clients_that_asked_for_them() -> None:
    message = {"content": "Hi", "reasoning_content": "Hm."}
    body = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()
    for asked, kinds in (({}, ["text"]), ({"thinking": {"type": "enabled"}}, ["thinking", "text"])):
        _, content = translated("anthropic_messages", [body], False, "application/json", **asked)
        assert [block["type"] for block in json.loads(content)["content"]] == kinds
    for asked, thought in (({}, "Hm."), ({"think": False}, None)):
        _, content = translated("ollama_chat", [body], False, "application/json", **asked)
        assert json.loads(content)["message"].get("thinking") == thought


@pytest.mark.parametrize("protocol", TRANSLATED)
def test_errors_are_in_the_clients_words(protocol: str) -> None:
    family = PROTOCOLS[protocol].family
    call = call_of(protocol, {"stream": True})
    reply = translated_reply(call, 429, "application/json")
    assert not reply.is_stream
    reply.feed(b'{"error": {"message": "slow down"}}')
    status, content = reply.whole()
    error = json.loads(content)["error"]
    assert status == 429
    assert error == "slow down" if family == "ollama" else error["message"] == "slow down"

    # in the middle of a stream, and where it stops before its end
    broken = sse(chat_chunk({"content": "Hi"}), {"error": {"message": "out of memory"}})
    for body, why in ((broken, "out of memory"), (sse(chat_chunk({"content": "Hi"})), "before")):
        _, content = translated(protocol, [body], True, STREAM)
        back = read_back(protocol, content, True)
        assert back.text == "Hi" and why in str(back.error)

    # a reply that nobody can read
    for body in (b"", b"<html>", b"[]", b'{"choices": 3}'):
        status, content = translated(protocol, [body], False, "application/json")
        assert status == 502 and json.loads(content)["error"]
        _, content = translated(protocol, [body], True, STREAM)
        assert read_back(protocol, content, True).error


def test_a_whole_reply_to_a_client_that_streams_becomes_a_stream() -> None:
    choice = {"message": {"content": "Hi"}, "finish_reason": "stop"}
    body = json.dumps({"choices": [choice]}).encode()
    for protocol in TRANSLATED:
        _, content = translated(protocol, [body], True, "application/json")
        assert read_back(protocol, content, True).text == "Hi"


@given(st.sampled_from(TRANSLATED), JUNK)
@settings(max_examples=300, deadline=None)
def test_no_request_of_a_stranger_raises_anything_but_a_refusal(protocol: str, value: Any) -> None:
    body = value if isinstance(value, dict) else {}
    fields = ("messages", "input", "tools", "options", "text", "thinking", "tool_choice", "format")
    for request in (body, dict.fromkeys(fields, value)):
        try:
            translated_request(call_of(protocol, request), LOCAL)
        except InputError:
            continue


@given(st.sampled_from(TRANSLATED), JUNK, st.booleans())
@settings(max_examples=300, deadline=None)
def test_no_reply_of_a_server_raises(protocol: str, value: Any, streams: bool) -> None:
    delta = {"content": value, "tool_calls": value, "reasoning_content": value}
    call = {"index": value, "id": value, "function": {"name": value, "arguments": value}}
    choices = [
        {"index": 0, "delta": value, "message": value, "logprobs": value, "stop_reason": value},
        {"delta": delta, "message": delta, "finish_reason": value},
        {"delta": {"tool_calls": [call]}, "message": {"tool_calls": [call]}},
    ]
    for content in (value, *({"choices": [choice], "usage": value} for choice in choices)):
        text = json.dumps(content)
        body = f"data: {text}\n\n".encode() if streams else text.encode()
        content_type = STREAM if streams else "application/json"
        status, written = translated(protocol, [body], streams, content_type)
        assert written and status in (200, 502)


def test_vectors_of_ollamas_clients() -> None:
    reply = {
        "data": [{"embedding": [0.6, 0.8]}, {"embedding": [1.0, 0.0]}],
        "usage": {"prompt_tokens": 4},
    }
    expected: dict[str, Any] = {
        "/api/embed": {
            "model": "support",
            "embeddings": [[0.6, 0.8], [1.0, 0.0]],
            "prompt_eval_count": 4,
        },
        "/api/embeddings": {"embedding": [0.6, 0.8]},
    }
    bodies = {"/api/embed": {"input": ["a", "b"]}, "/api/embeddings": {"prompt": "a"}}
    for path, body in bodies.items():
        protocol = unrecorded_of("POST", path)
        assert protocol is not None
        call = protocol.request({"model": "support", **body}, {})
        request = translated_request(call, LOCAL)
        texts = body.get("input") or body["prompt"]
        assert request.path == "/v1/embeddings"
        assert json.loads(request.body) == {"model": "support-v1", "input": texts}
        for content, status in ((reply, 200), ({"error": {"message": "no"}}, 400)):
            vectors = translated_reply(call, status, "application/json")
            assert vectors.feed(json.dumps(content).encode()) == b""
            answer = vectors.whole()
            assert answer[0] == status
            wanted = expected[path] if status == 200 else {"error": "no"}
            assert json.loads(answer[1]) == wanted
        for junk in (b"", b"[]", b'{"data": 3}'):
            vectors = translated_reply(call, 200, "application/json")
            vectors.feed(junk)
            assert vectors.whole()[0] == 502
