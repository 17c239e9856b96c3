"""Chat messages as chat templates want them, and the turns that may be dropped when a conversation
is too long.

Lives here: checking and normalising plain message dicts (one way for training and serving),
grouping them into turns, and the named fallback templates for tokenizers that bring none. Does not
live here: tokens (prompt.py). A new fallback is one entry in FALLBACKS; an existing one is never
edited, because models were trained with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from thumbwheel.core.errors import DataError

Message = Mapping[str, Any]

FALLBACKS = {
    "plain-v1": (
        "{% for message in messages %}### {{ message['role'] | capitalize }}:\n{{ "
        "message['content'] }}"
        "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n\\n' }}{% endfor "
        "%}"
        "{% if add_generation_prompt %}### Assistant:\n{% endif %}"
    ),
}
INSTRUCTIONS = ("system", "developer")


def normalize(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Copies with text content and tool arguments as mappings; DataError where a message is none or
    holds more than text."""
    return [_one(place, message) for place, message in enumerate(messages)]


def _one(place: int, message: Message) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise DataError(f"message {place}", f"{message!r:.80} has no role", "Give role and content")
    found = dict(message)
    found["content"] = _text(place, message.get("content"))
    if not found["content"] and found.get("tool_calls") is None and message.get("content") is None:
        raise DataError(
            f"message {place} ({message['role']!r})",
            "it has no content and no tool calls",
            "Give it a content",
        )
    if found.get("tool_calls"):
        found["tool_calls"] = [_call(place, call) for call in found["tool_calls"]]
    return found


def _text(place: int, content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    if not all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in parts):
        raise DataError(
            f"message {place}",
            f"its content {content!r:.80} is not text",
            "Only text can be trained here",
        )
    return "".join(part["text"] for part in parts)


def _call(place: int, call: Any) -> dict[str, Any]:
    """The OpenAI form has arguments as JSON text; templates expect the mapping and would quote the
    text again."""
    if not isinstance(call, Mapping):
        raise DataError(
            f"message {place}",
            f"tool call {call!r:.80} is no mapping",
            "Give it a function with name and arguments",
        )
    found = dict(call)
    function = found.get("function")
    if isinstance(function, Mapping) and isinstance(function.get("arguments"), str):
        found["function"] = dict(function) | {"arguments": _arguments(function["arguments"])}
    return found


def _arguments(text: str) -> Any:
    try:
        found = json.loads(text)
    except ValueError:
        return text
    return found if isinstance(found, dict) else text


def turns(messages: Sequence[Message]) -> tuple[list[Message], list[list[Message]]]:
    """(leading instructions, turns): a turn is a user message with everything up to the next one."""
    start = next(
        (at for at, message in enumerate(messages) if message["role"] not in INSTRUCTIONS),
        len(messages),
    )
    groups: list[list[Message]] = []
    for message in messages[start:]:
        if message["role"] == "user" or not groups:
            groups.append([])
        groups[-1].append(message)
    return list(messages[:start]), groups
