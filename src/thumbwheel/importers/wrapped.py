"""What was asked and answered in values that a framework or the API of a model recorded: chats,
prompts, requests, replies, arguments of a function, JSON in a text.

Not here: the dialects of messages (`messages.py`), attributes of spans (`otlp/messages.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from thumbwheel.importers.fields import content_text, unpacked
from thumbwheel.importers.messages import Messages, chat, is_chat, turns_of_pairs

Row = Mapping[str, Any]
ASKED = (
    "messages",
    "contents",
    "prompt",
    "prompts",
    "input",
    "query",
    "question",
    "q",
    "user_input",
    "user_message",
    "kwargs",
    "args",
    "inputs",
    "body",
)
"""Keys of what was asked, the surest first."""
ANSWERED = ("output", "response", "answer", "result", "completion", "reply", "text", "raw", "body")
BLOCKS = frozenset({"text", "tool_use", "tool_call", "thinking", "redacted_thinking", "thought"})
"""Types of the blocks of an answer."""
HISTORIES = ("chat_history", "history")


def is_request(value: Any) -> bool:
    """Return whether an object is a request of a model's API, by the chat in it."""
    if not isinstance(value, dict):
        return False
    return any(is_chat(unpacked(value.get(key))) for key in ("messages", "contents", "input"))


def is_reply(value: Any) -> bool:
    """Return whether an object is a reply of a model's API."""
    if not isinstance(value, dict):
        return False
    for key, inner in (("choices", {"message", "text"}), ("candidates", {"content"})):
        parts = value.get(key)
        first = parts[0] if isinstance(parts, list) and parts else None
        if isinstance(first, dict) and inner & first.keys():
            return True
    if {"text", "sources", "type"} <= value.keys():
        return True  # as AnythingLLM stores an answer
    return _is_message(value) or _is_message(value.get("message"))


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and {"role", "content"} <= value.keys()


def prompt_in(value: Any) -> Messages:
    """Return the chat in an input of any framework; an unknown input becomes a message with its
    JSON."""
    messages = known_prompt(value)
    if messages:
        return messages
    text = value if isinstance(value, str) else json.dumps(unpacked(value), ensure_ascii=False)
    return [{"role": "user", "content": text}]


def known_prompt(value: Any) -> Messages:
    """Return the messages in a value; [] if it contains none in a known form."""
    return _asked(unpacked(value))


def _asked(value: Any) -> Messages:
    if isinstance(value, str):
        return [{"role": "user", "content": value}] if value else []
    if is_chat(value):
        return chat(value)
    if isinstance(value, list) and len(value) == 1:
        return _asked(unpacked(value[0]))
    if not isinstance(value, dict):
        return []
    if _is_message(value):
        return chat([value])
    for key in ASKED:
        inner = unpacked(value.get(key))
        messages = _asked(inner) if inner else []
        if messages:
            return _with_system(value, [*_earlier(value), *messages])
    return []


def _earlier(value: Row) -> Messages:
    """Return the earlier turns next to a question; [] if there are none."""
    for key in HISTORIES:
        turns = unpacked(value.get(key))
        if is_chat(turns):
            return chat(turns)
        pairs = turns_of_pairs(turns)
        if pairs:
            return chat(pairs)
    return []


def _with_system(value: Row, messages: Messages) -> Messages:
    keys = ("system", "systemInstruction", "system_instruction", "instructions")
    system = next((value[key] for key in keys if value.get(key)), None)
    text = content_text(unpacked(system))
    if text and messages[0]["role"] not in ("system", "developer"):
        return [{"role": "system", "content": text}, *messages]
    return messages


def answer_in(value: Any) -> dict[str, Any]:
    """Return the message in an output of any framework; an unknown output becomes a message with
    its JSON."""
    value = unpacked(value)
    message = known_answer(value)
    if message is not None:
        return message
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return chat([{"role": "assistant", "content": text}])[0]


def known_answer(value: Any) -> dict[str, Any] | None:
    """Return the assistant's last answer in a value of a known form, or None."""
    replies: Messages = []
    if _are_choices(value):
        value = {"choices": value}
    items = _of_items(value) or _of_blocks(value)
    if items is not None:
        replies = chat([items])
    elif is_chat(value):
        replies = chat(value)
    elif isinstance(value, dict):
        wrapped = _wrapped_answer(value)
        replies = chat([wrapped]) if wrapped is not None else []
    replies = [part for part in replies if part["role"] == "assistant"]
    replies = [reply for reply in replies if reply["content"] or reply.get("tool_calls")]
    return dict(replies[-1]) if replies else None


def _are_choices(value: Any) -> bool:
    """Return whether a list is the `choices` of a chat completion."""
    first = value[0] if isinstance(value, list) and value else None
    return isinstance(first, dict) and isinstance(first.get("message"), dict)


def _wrapped_answer(output: Row) -> dict[str, Any] | None:
    """Return the message in an object that a model's API or a framework returned, or None."""
    for key in ("choices", "candidates"):
        if isinstance(output.get(key), list) and output[key]:
            first = output[key][0]
            inner = first.get("message", first) if isinstance(first, dict) else first
            return _as_message(inner)
    body = unpacked(output.get("body"))  # of a reply over HTTP
    if isinstance(body, dict) and "body" not in body:
        return _wrapped_answer(body)
    generated = _generated(output) or _of_items(output.get("output"))
    if generated is not None:
        return generated
    for key in (*ANSWERED, "message", "messages"):
        inner = unpacked(output.get(key))
        if key == "output" and isinstance(inner, dict) and isinstance(inner.get("message"), dict):
            inner = inner["message"]  # Bedrock's
        if isinstance(inner, str) and inner:
            return {"role": "assistant", "content": inner}
        if is_chat(inner) or (isinstance(inner, dict) and is_chat([inner])):
            messages = chat(inner if isinstance(inner, list) else [inner])
            if messages[-1]["role"] == "assistant":
                return messages[-1]
    return _as_message(output)


def _generated(output: Row) -> dict[str, Any] | None:
    """Return the message in a LangChain result, which has a list of generations per prompt, or
    None."""
    generations = output.get("generations")
    for _ in range(2):
        if isinstance(generations, list) and generations:
            generations = generations[0]
    if not isinstance(generations, dict):
        return None
    return _as_message(generations.get("message") or generations)


def _of_items(items: Any) -> dict[str, Any] | None:
    """Return the message in the items of OpenAI's Responses API, or None for any other value."""
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        return None
    if not _kinds_of(items) & {"message", "function_call"}:
        return None
    blocks = [item.get("content") if item.get("type") == "message" else item for item in items]
    return {"role": "assistant", "content": blocks}


def _kinds_of(parts: list[Any]) -> set[str]:
    """Return the types of the parts of a content."""
    return {str(part.get("type")) for part in parts}


def _of_blocks(blocks: Any) -> dict[str, Any] | None:
    """Return the message in a bare list of content blocks, as Anthropic and TensorZero have them,
    or None for any other value."""
    if not isinstance(blocks, list) or not blocks or is_chat(blocks):
        return None
    if not all(isinstance(block, dict) for block in blocks):
        return None
    kinds = _kinds_of(blocks)
    if not kinds <= BLOCKS or not kinds & {"text", "tool_use", "tool_call"}:
        return None
    return {"role": "assistant", "content": blocks}


def _as_message(value: Any) -> dict[str, Any] | None:
    """Return the value as a message of the assistant, or None if it has neither a text nor a
    call."""
    if isinstance(value, dict) and is_chat([value]):
        return value
    if isinstance(value, dict) and (value.get("tool_calls") or value.get("function_call")):
        return {**value, "role": "assistant"}
    if isinstance(value, dict) and isinstance(value.get("content"), list):
        return {"role": "assistant", "content": value["content"]}
    text = content_text(value)
    return {"role": "assistant", "content": text} if text else None
