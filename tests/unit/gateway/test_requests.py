"""The request of every protocol is understood: conversation, tools, sampling, and whose it is."""

from __future__ import annotations

from typing import Any

import pytest

from thumbwheel.gateway.protocol import CallRequest
from thumbwheel.gateway.protocols import PROTOCOLS, protocol_of
from thumbwheel.gateway.unrecorded import unrecorded_of

PIXEL = "iVBORw0KGgo" * 100
PARAMETERS = {"type": "object", "properties": {"n": {"type": "integer"}}}
MOVE = {"type": "function", "function": {"name": "move", "parameters": PARAMETERS}}
CALL = {"id": "c1", "type": "function", "function": {"name": "move", "arguments": '{"n": 1}'}}


def request(protocol: str, body: dict[str, Any], **headers: str) -> CallRequest:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return PROTOCOLS[protocol].request({"model": "filer", **body}, names)


def test_a_path_says_the_protocol() -> None:
    for protocol in PROTOCOLS.values():
        assert protocol_of("POST", protocol.path) is protocol
    assert protocol_of("POST", "/v1/chat/completions/") is PROTOCOLS["openai_chat"]
    assert protocol_of("GET", "/v1/chat/completions") is None
    assert protocol_of("POST", "/v1/messages/count_tokens") is None
    counting = unrecorded_of("POST", "/v1/messages/count_tokens")
    assert counting is not None and not counting.is_recorded


def test_openai_chat() -> None:
    call = request(
        "openai_chat",
        {
            "stream": True,
            "temperature": 0.2,
            "max_tokens": None,
            "tools": [MOVE],
            "messages": [
                {"role": "system", "content": "Be short."},
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "Hi "}, {"type": "text", "text": "you"}],
                },
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": "moved"},
            ],
        },
    )
    assert (call.model, call.stream, call.sampling) == ("filer", True, {"temperature": 0.2})
    assert call.tools == [MOVE]
    assert call.messages == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Hi you"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "moved", "tool_call_id": "c1"},
    ]


@pytest.mark.parametrize(
    ("part", "key"),
    [
        (
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
            "image_url",
        ),
        ({"type": "input_audio", "input_audio": {"data": PIXEL, "format": "wav"}}, "input_audio"),
        ({"type": "file", "file": {"file_data": PIXEL, "filename": "a.pdf"}}, "file"),
    ],
)
def test_a_file_in_a_message_becomes_a_reference(part: dict[str, Any], key: str) -> None:
    content = [{"type": "text", "text": "What is it?"}, part]
    call = request("openai_chat", {"messages": [{"role": "user", "content": content}]})
    (message,) = call.messages
    assert message["content"][0] == {"type": "text", "text": "What is it?"}
    assert PIXEL not in str(message)
    assert "sha256:" in str(message["content"][1][key])


def test_an_image_behind_a_url_keeps_it() -> None:
    part = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    call = request("openai_chat", {"messages": [{"role": "user", "content": [part]}]})
    assert call.messages == [{"role": "user", "content": [part]}]


def test_completions() -> None:
    call = request("openai_completions", {"prompt": "Once upon", "max_tokens": 5})
    assert call.messages == [{"role": "user", "content": "Once upon"}]
    assert (call.sampling, call.tools) == ({"max_tokens": 5}, [])
    call = request("openai_completions", {"prompt": [5, 6]})
    assert call.messages[0]["content"] == [{"type": "token_ids", "token_ids": [5, 6]}]


def test_responses() -> None:
    call = request(
        "openai_responses",
        {
            "instructions": "Be short.",
            "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "Move it."}]},
                {"type": "reasoning", "summary": []},
                {
                    "type": "function_call",
                    "call_id": "c1",
                    "name": "move",
                    "arguments": '{"n": 1}',
                },
                {"type": "function_call_output", "call_id": "c1", "output": "moved"},
            ],
            "tools": [{"type": "function", **MOVE["function"]}, {"type": "web_search"}],
            "conversation": {"id": "conv_1"},
            "max_output_tokens": 9,
        },
    )
    assert call.messages == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Move it."},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "moved", "tool_call_id": "c1"},
    ]
    assert call.tools == [MOVE, {"type": "web_search"}]
    assert (call.sampling, call.context.session) == ({"max_output_tokens": 9}, "conv_1")


def test_embeddings() -> None:
    call = request("openai_embeddings", {"input": ["a", "b"], "dimensions": 3})
    assert [message["content"] for message in call.messages] == ["a", "b"]
    assert call.sampling == {"dimensions": 3}


def test_anthropic_messages() -> None:
    image = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    call = request(
        "anthropic_messages",
        {
            "system": [{"type": "text", "text": "Be short.", "cache_control": {}}],
            "max_tokens": 9,
            "tools": [{"name": "move", "input_schema": PARAMETERS}, {"type": "bash_20250124"}],
            "messages": [
                {"role": "user", "content": "Move it."},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                        {"type": "text", "text": "Yes."},
                        {"type": "tool_use", "id": "c1", "name": "move", "input": {"n": 1}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "Go on."},
                        {"type": "tool_result", "tool_use_id": "c1", "content": "moved"},
                    ],
                },
                {"role": "user", "content": [{"type": "image", "source": image}]},
            ],
            "metadata": {"user_id": "anna"},
        },
    )
    *chat, picture = call.messages
    assert chat == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Move it."},
        {
            "role": "assistant",
            "content": "Yes.",
            "reasoning_content": "Hm.",
            "tool_calls": [CALL],
        },
        {"role": "tool", "content": "moved", "tool_call_id": "c1"},
        {"role": "user", "content": "Go on."},
    ]
    url = picture["content"][0]["image_url"]["url"]
    assert (url[:7], url[-27:]) == ("sha256:", ";length=1100;type=image/png")
    definition = {"name": "move", "description": None, "parameters": PARAMETERS}
    assert call.tools == [{"type": "function", "function": definition}, {"type": "bash_20250124"}]
    assert call.context.subject == "anna"


def test_ollama_chat() -> None:
    call = request(
        "ollama_chat",
        {
            "options": {"temperature": 0, "num_ctx": 4096},
            "format": "json",
            "messages": [
                {"role": "user", "content": "What is it?", "images": [PIXEL]},
                {
                    "role": "assistant",
                    "content": "",
                    "thinking": "Hm.",
                    "tool_calls": [{"function": {"name": "move", "arguments": {"n": 1}}}],
                },
                {"role": "tool", "tool_name": "move", "content": "moved"},
            ],
        },
    )
    assert call.stream
    picture, answer, result = call.messages
    assert [part["type"] for part in picture["content"]] == ["text", "image_url"]
    assert PIXEL not in str(picture)
    assert answer["reasoning_content"] == "Hm."
    assert answer["tool_calls"][0]["function"] == CALL["function"]
    assert result == {"role": "tool", "content": "moved", "name": "move"}
    assert call.sampling == {"temperature": 0, "num_ctx": 4096, "format": "json"}


def test_ollama_generate() -> None:
    call = request("ollama_generate", {"system": "S", "prompt": "P", "raw": True, "stream": False})
    assert not call.stream
    assert [message["content"] for message in call.messages] == ["S", "P"]
    assert call.sampling == {"raw": True}


def test_headers_go_before_the_body() -> None:
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "user": "u1",
        "metadata": {"session_id": "s1", "is_training_data": True},
        "prompt_cache_key": "k",
    }
    context = request("openai_chat", body).context
    assert (context.session, context.subject) == ("s1", "u1")
    assert context.metadata == {"session_id": "s1", "prompt_cache_key": "k"}
    context = request(
        "openai_chat",
        body,
        x_thumbwheel_agent="filer",
        x_thumbwheel_session="s2",
        x_thumbwheel_subject="Zoë".encode().decode("latin-1"),
        x_thumbwheel_parent="t0",
        x_thumbwheel_feedback_id="f1",
        x_thumbwheel_metadata='{"page": 3}',
    ).context
    assert (context.agent, context.session, context.subject) == ("filer", "s2", "Zoë")
    assert (context.parent, context.feedback_id) == ("t0", "f1")
    assert context.metadata == {"session_id": "s1", "prompt_cache_key": "k", "page": 3}


@pytest.mark.parametrize(
    "user",
    [
        "user_ab_account__session_0a1b2c3d-1111-2222-3333-444455556666",
        '{"device_id": "ab", "session_id": "0a1b2c3d-1111-2222-3333-444455556666"}',
    ],
)
def test_the_session_that_a_coding_agent_writes_into_the_user(user: str) -> None:
    body = {"messages": [], "metadata": {"user_id": user}}
    context = request("anthropic_messages", body).context
    assert context.session == "0a1b2c3d-1111-2222-3333-444455556666"
    assert context.subject


def test_open_webui_names_chat_user_and_message() -> None:
    context = request(
        "openai_chat",
        {},
        x_openwebui_chat_id="chat-1",
        x_openwebui_user_id="user-1",
        x_openwebui_message_id="message-1",
    ).context
    assert (context.session, context.subject) == ("chat-1", "user-1")
    assert context.metadata == {"openwebui_message_id": "message-1"}


@pytest.mark.parametrize(("task", "metadata"), [("", None), ("title", {"openwebui_task": "title"})])
def test_open_webui_says_which_calls_answer_nobody(
    task: str, metadata: dict[str, str] | None
) -> None:
    assert request("openai_chat", {}, x_openwebui_task=task).context.metadata == metadata
