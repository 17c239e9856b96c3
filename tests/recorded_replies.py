"""Replies as servers send them, one and more of every protocol, with what they say.

The streams are laid out as the servers do it: OpenAI with usage chunk and `[DONE]`, llama-server
with token ids beside log-probabilities, vLLM with token ids in the choice, a proxy that writes CRLF
and comments, Anthropic with named events and pings, Ollama with a line each.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

STREAM = "text/event-stream; charset=utf-8"
LINES = "application/x-ndjson"
WHOLE = "application/json"


@dataclass(frozen=True)
class Recorded:
    """The body of a reply, and what has to be understood of it."""

    name: str
    protocol: str
    content_type: str
    body: bytes
    expected: Mapping[str, Any]
    status: int = 200
    request: Mapping[str, Any] = field(default_factory=dict)


def sse(*events: Any, end: str = "\n", named: bool = False, done: bool = False) -> bytes:
    """Server-sent events."""
    pieces = []
    for event in events:
        if named:
            pieces.append(f"event: {event['type']}{end}")
        pieces.append(f"data: {json.dumps(event, ensure_ascii=False)}{end}{end}")
    if done:
        pieces.append(f"data: [DONE]{end}{end}")
    return "".join(pieces).encode()


def lines(*values: Any) -> bytes:
    """JSON lines."""
    return "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values).encode()


def chat_chunk(delta: Mapping[str, Any], finish: str | None = None, **choice: Any) -> Any:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "model": "gpt-x-2026",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish, **choice}],
    }


def logprobs(token: str, id: int | None, value: float) -> dict[str, Any]:
    entry = {"token": token, "logprob": value, "bytes": list(token.encode()), "top_logprobs": []}
    return {"content": [entry if id is None else {"id": id, **entry}]}


USAGE = {
    "prompt_tokens": 12,
    "completion_tokens": 3,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 1},
}
OPENAI_USAGE = {"prompt": 12, "completion": 3, "cached": 4, "reasoning": 1}

OPENAI_CHAT = Recorded(
    "openai chat",
    "openai_chat",
    STREAM,
    sse(
        chat_chunk({"role": "assistant", "content": ""}),
        chat_chunk({"content": "Grüße, "}),
        chat_chunk({"content": "日本 "}),
        chat_chunk({"content": "👋🏽\r\n\ndata: x"}),
        chat_chunk({}, "stop"),
        {"id": "chatcmpl-1", "choices": [], "usage": USAGE},
        done=True,
    ),
    {
        "text": "Grüße, 日本 👋🏽\r\n\ndata: x",
        "finish_reason": "stop",
        "served_model": "gpt-x-2026",
        "id": "chatcmpl-1",
        "usage": OPENAI_USAGE,
    },
)
PROXY_CHAT = Recorded(
    "a proxy with CRLF and comments",
    "openai_chat",
    STREAM,
    b"\xef\xbb\xbf: OPENROUTER PROCESSING\r\n\r\nretry: 100\r\n\r\n"
    + sse(chat_chunk({"reasoning": "Hm. "}), chat_chunk({"reasoning": "Yes."}), end="\r\n")
    + b": keep-alive\r\n\r\n\r\nid: 7\r\nevent: message\r\n"
    + sse(chat_chunk({"content": "Ja"}), chat_chunk({}, "length"), end="\r\n")
    + b"data:[DONE]",
    {"text": "Ja", "reasoning": "Hm. Yes.", "finish_reason": "length"},
)
TOOL_CHAT = Recorded(
    "parallel tool calls",
    "openai_chat",
    STREAM,
    sse(
        chat_chunk({"role": "assistant", "content": None}),
        *(
            chat_chunk({"tool_calls": [call]})
            for call in (
                {"index": 0, "id": "c1", "type": "function", "function": {"name": "move"}},
                {"index": 1, "id": "c2", "type": "function", "function": {"name": "copy"}},
                {"index": 1, "function": {"arguments": '{"to": "Ä'}},
                {"index": 0, "function": {"arguments": '{"n": 1'}},
                {"index": 1, "function": {"arguments": '"}'}},
                {"index": 0, "function": {"arguments": "}"}},
            )
        ),
        chat_chunk({}, "tool_calls"),
        done=True,
    ),
    {
        "text": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "move", "arguments": '{"n": 1}'}},
            {
                "id": "c2",
                "type": "function",
                "function": {"name": "copy", "arguments": '{"to": "Ä"}'},
            },
        ],
        "finish_reason": "tool_calls",
    },
)
LLAMA_CHAT = Recorded(
    "llama-server with log-probabilities",
    "openai_chat",
    STREAM,
    sse(
        chat_chunk({"role": "assistant", "content": None}),
        chat_chunk({"content": "A"}, logprobs=logprobs("A", 17, -0.25)),
        chat_chunk({"content": "b"}, logprobs=logprobs("b", 4, -1.5)),
        chat_chunk({}, "stop"),
        {"choices": [], "timings": {"predicted_n": 2}},
        done=True,
    ),
    {"text": "Ab", "token_ids": [17, 4], "token_logprobs": [-0.25, -1.5]},
)
HALF_CHARACTERS = Recorded(
    "llama-server without the tokens that are half a character",
    "openai_chat",
    STREAM,
    sse(
        chat_chunk({"content": "A"}, logprobs=logprobs("A", 17, -0.25)),
        chat_chunk({"content": "Ѫ"}, logprobs=logprobs("Ѫ", 108, -1.5)),
        chat_chunk({}, "stop"),
        {"choices": [], "usage": USAGE, "timings": {"predicted_n": 3}},
        done=True,
    ),
    {"text": "AѪ", "token_ids": None, "token_logprobs": None},
)
VERBOSE_CHAT = Recorded(
    "llama-server with all tokens beside",
    "openai_chat",
    WHOLE,
    json.dumps(
        {
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "AѪ"},
                    "logprobs": {
                        "content": [
                            *logprobs("A", 17, -0.25)["content"],
                            *logprobs("Ѫ", 108, -1.5)["content"],
                        ]
                    },
                    "finish_reason": "stop",
                }
            ],
            "usage": USAGE,
            "__verbose": {"tokens": [17, 146, 108]},
        }
    ).encode(),
    {"text": "AѪ", "token_ids": [17, 146, 108], "token_logprobs": None},
)
VLLM_CHAT = Recorded(
    "vLLM with token ids",
    "openai_chat",
    STREAM,
    sse(
        {**chat_chunk({"role": "assistant", "content": ""}), "prompt_token_ids": [1, 2]},
        chat_chunk({"content": "Ab"}, token_ids=[17, 4], logprobs=None),
        chat_chunk({"content": "c"}, "stop", token_ids=[9], stop_reason=None),
        done=True,
    ),
    {"text": "Abc", "token_ids": [17, 4, 9], "token_logprobs": None},
)
FAILED_CHAT = Recorded(
    "an error in the middle of a stream",
    "openai_chat",
    STREAM,
    sse(
        chat_chunk({"content": "Half"}),
        {"error": {"message": "the server is overloaded", "type": "server_error"}},
    ),
    {"text": "Half", "error": "the server is overloaded", "complete": False},
)
WHOLE_CHAT = Recorded(
    "a whole chat completion",
    "openai_chat",
    WHOLE,
    json.dumps(
        {
            "id": "chatcmpl-2",
            "model": "gpt-x",
            "choices": [
                {
                    "index": 0,
                    "message": {
                        "role": "assistant",
                        "content": "Ähm \ud83d\udc4b",
                        "reasoning_content": "So.",
                        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f"}}],
                    },
                    "logprobs": {
                        "content": [
                            *logprobs("Ä", 5, -0.5)["content"],
                            *logprobs("hm", 6, -0.125)["content"],
                        ]
                    },
                    "finish_reason": "stop",
                },
                {"index": 1, "message": {"role": "assistant", "content": "Other"}},
            ],
            "usage": USAGE,
        }
    ).encode(),
    {
        "text": "Ähm 👋",
        "reasoning": "So.",
        "alternatives": ["Other"],
        "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        ],
        "token_ids": [5, 6],
        "token_logprobs": [-0.5, -0.125],
        "usage": OPENAI_USAGE,
    },
)
REFUSED_CHAT = Recorded(
    "a proxy's page in the place of an answer",
    "openai_chat",
    "text/html",
    b"<html>\n<h1>502 Bad\n Gateway</h1></html>",
    {"text": None, "error": "HTTP 502: <html> <h1>502 Bad Gateway</h1></html>", "complete": False},
    status=502,
)
COMPLETIONS = Recorded(
    "completions with the older log-probabilities",
    "openai_completions",
    STREAM,
    sse(
        *(
            {
                "id": "cmpl-1",
                "model": "base",
                "choices": [
                    {
                        "index": 0,
                        "text": text,
                        "finish_reason": finish,
                        "logprobs": {
                            "tokens": [text],
                            "token_ids": [id],
                            "token_logprobs": [value],
                        },
                    }
                ],
            }
            for text, id, value, finish in ((" é", 3, -1.0, None), ("n", 8, -0.5, "length"))
        ),
        done=True,
    ),
    {
        "text": " én",
        "token_ids": [3, 8],
        "token_logprobs": [-1.0, -0.5],
        "finish_reason": "length",
    },
)
RESPONSE = {
    "id": "resp_1",
    "model": "gpt-x",
    "status": "completed",
    "error": None,
    "output": [
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "Think."}],
        },
        {
            "type": "message",
            "content": [{"type": "output_text", "text": "Schön 日", "annotations": []}],
        },
        {"type": "function_call", "call_id": "c1", "name": "move", "arguments": '{"n": 2}'},
    ],
    "usage": {
        "input_tokens": 12,
        "output_tokens": 3,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens_details": {"reasoning_tokens": 1},
    },
}
RESPONSE_SAYS = {
    "text": "Schön 日",
    "reasoning": "Think.",
    "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "move", "arguments": '{"n": 2}'}}
    ],
    "finish_reason": "tool_calls",
    "usage": OPENAI_USAGE,
    "served_model": "gpt-x",
    "id": "resp_1",
}
RESPONSES = Recorded(
    "responses",
    "openai_responses",
    STREAM,
    sse(
        {"type": "response.created", "response": {"id": "resp_1", "model": "gpt-x"}},
        {"type": "response.reasoning_summary_text.delta", "output_index": 0, "delta": "Think."},
        {"type": "response.output_item.added", "output_index": 1, "item": {"type": "message"}},
        {"type": "response.output_text.delta", "output_index": 1, "delta": "Schön "},
        {"type": "response.output_text.delta", "output_index": 1, "delta": "日"},
        {"type": "response.output_text.done", "output_index": 1, "text": "Schön 日"},
        {
            "type": "response.output_item.added",
            "output_index": 2,
            "item": {"type": "function_call", "call_id": "c1", "name": "move", "arguments": ""},
        },
        {"type": "response.function_call_arguments.delta", "output_index": 2, "delta": '{"n":'},
        {"type": "response.function_call_arguments.delta", "output_index": 2, "delta": " 2}"},
        {"type": "response.completed", "response": RESPONSE},
        named=True,
    ),
    RESPONSE_SAYS,
)
WHOLE_RESPONSE = Recorded(
    "a whole response",
    "openai_responses",
    WHOLE,
    json.dumps(RESPONSE).encode(),
    RESPONSE_SAYS,
)
EMBEDDINGS = Recorded(
    "embeddings",
    "openai_embeddings",
    WHOLE,
    json.dumps(
        {
            "object": "list",
            "data": [{"index": 0, "embedding": [0.25, -0.5] * 500}],
            "model": "embed-x",
            "usage": {"prompt_tokens": 8, "total_tokens": 8},
        }
    ).encode(),
    {"text": None, "served_model": "embed-x", "usage": {"prompt": 8}},
)
ANTHROPIC = Recorded(
    "anthropic messages",
    "anthropic_messages",
    STREAM,
    sse(
        {
            "type": "message_start",
            "message": {
                "id": "msg_1",
                "model": "claude-x",
                "content": [],
                "usage": {
                    "input_tokens": 6,
                    "cache_read_input_tokens": 4,
                    "cache_creation_input_tokens": 2,
                    "output_tokens": 1,
                },
            },
        },
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking"}},
        {"type": "ping"},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "thinking_delta", "thinking": "Let me see… "},
        },
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "signature_delta", "signature": "x"},
        },
        {"type": "content_block_stop", "index": 0},
        {
            "type": "content_block_start",
            "index": 1,
            "content_block": {"type": "text", "text": ""},
        },
        {
            "type": "content_block_delta",
            "index": 1,
            "delta": {"type": "text_delta", "text": "Dà"},
        },
        {
            "type": "content_block_start",
            "index": 2,
            "content_block": {"type": "tool_use", "id": "tu_1", "name": "move", "input": {}},
        },
        {
            "type": "content_block_delta",
            "index": 2,
            "delta": {"type": "input_json_delta", "partial_json": ""},
        },
        {
            "type": "content_block_delta",
            "index": 2,
            "delta": {"type": "input_json_delta", "partial_json": '{"n": 2}'},
        },
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "stop_sequence": None},
            "usage": {"output_tokens": 3},
        },
        {"type": "message_stop"},
        named=True,
    ),
    {
        "text": "Dà",
        "reasoning": "Let me see… ",
        "tool_calls": [
            {
                "id": "tu_1",
                "type": "function",
                "function": {"name": "move", "arguments": '{"n": 2}'},
            }
        ],
        "finish_reason": "tool_calls",
        "usage": {"prompt": 12, "completion": 3, "cached": 4},
        "served_model": "claude-x",
        "id": "msg_1",
    },
)
WHOLE_ANTHROPIC = Recorded(
    "a whole message",
    "anthropic_messages",
    WHOLE,
    json.dumps(
        {
            "type": "message",
            "id": "msg_2",
            "model": "claude-x",
            "content": [
                {"type": "thinking", "thinking": "Hm."},
                {"type": "text", "text": "Dà"},
                {"type": "tool_use", "id": "tu_1", "name": "now", "input": {}},
            ],
            "stop_reason": "max_tokens",
            "usage": {"input_tokens": 6, "output_tokens": 3},
        }
    ).encode(),
    {
        "text": "Dà",
        "reasoning": "Hm.",
        "tool_calls": [
            {"id": "tu_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
        ],
        "finish_reason": "length",
        "usage": {"prompt": 6, "completion": 3},
    },
)
OVERLOADED_ANTHROPIC = Recorded(
    "anthropic overloaded in the middle",
    "anthropic_messages",
    STREAM,
    sse(
        {"type": "message_start", "message": {"id": "msg_3", "model": "claude-x"}},
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
        named=True,
    ),
    {"text": None, "error": "Overloaded", "complete": False},
)
OLLAMA_CHAT = Recorded(
    "ollama chat",
    "ollama_chat",
    LINES,
    lines(
        {"model": "qwen3", "message": {"role": "assistant", "content": "", "thinking": "Hm."}},
        {"model": "qwen3", "message": {"role": "assistant", "content": "Grüß "}},
        {"model": "qwen3", "message": {"role": "assistant", "content": "dich 👋"}},
        {
            "model": "qwen3",
            "message": {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {"function": {"name": "move", "arguments": {"n": 1}}},
                    {"function": {"name": "move", "arguments": {"n": 2}}},
                ],
            },
        },
        {
            "model": "qwen3",
            "message": {"role": "assistant", "content": ""},
            "done": True,
            "done_reason": "stop",
            "prompt_eval_count": 12,
            "eval_count": 3,
        },
    ),
    {
        "text": "Grüß dich 👋",
        "reasoning": "Hm.",
        "tool_calls": [
            {"type": "function", "function": {"name": "move", "arguments": f'{{"n": {number}}}'}}
            for number in (1, 2)
        ],
        "finish_reason": "tool_calls",
        "usage": {"prompt": 12, "completion": 3},
        "served_model": "qwen3",
    },
)
OLLAMA_GENERATE = Recorded(
    "ollama generate",
    "ollama_generate",
    LINES,
    lines(
        {"model": "qwen3", "response": "é", "done": False},
        {"model": "qwen3", "response": "n", "done": False},
        {
            "model": "qwen3",
            "response": "",
            "done": True,
            "done_reason": "length",
            "context": [1, 2, 3],
            "prompt_eval_count": 12,
            "eval_count": 3,
        },
    ),
    {"text": "én", "finish_reason": "length", "usage": {"prompt": 12, "completion": 3}},
)
WHOLE_OLLAMA = Recorded(
    "a whole ollama reply",
    "ollama_chat",
    WHOLE,
    json.dumps(
        {
            "model": "qwen3",
            "message": {"role": "assistant", "content": "Hi"},
            "done": True,
            "done_reason": "stop",
        }
    ).encode(),
    {"text": "Hi", "finish_reason": "stop"},
    request={"stream": False},
)
FAILED_OLLAMA = Recorded(
    "an error line of ollama",
    "ollama_chat",
    LINES,
    lines(
        {"model": "qwen3", "message": {"role": "assistant", "content": "Ha"}},
        {"error": "an error was encountered while running the model"},
    ),
    {
        "text": "Ha",
        "error": "an error was encountered while running the model",
        "complete": False,
    },
)
REPLIES = (
    OPENAI_CHAT,
    PROXY_CHAT,
    TOOL_CHAT,
    LLAMA_CHAT,
    HALF_CHARACTERS,
    VERBOSE_CHAT,
    VLLM_CHAT,
    FAILED_CHAT,
    WHOLE_CHAT,
    REFUSED_CHAT,
    COMPLETIONS,
    RESPONSES,
    WHOLE_RESPONSE,
    EMBEDDINGS,
    ANTHROPIC,
    WHOLE_ANTHROPIC,
    OVERLOADED_ANTHROPIC,
    OLLAMA_CHAT,
    OLLAMA_GENERATE,
    WHOLE_OLLAMA,
    FAILED_OLLAMA,
)
