"""Chat messages as chat templates want them, and the turns that may be dropped when a conversation
is too long.

Plain message dicts are checked and normalized here, in one way for training and serving, and
grouped into turns. FALLBACKS are the named templates for tokenizers that bring none; a new one is
one entry, and an existing one is never edited, because models were trained with it. Tokens are
prompt.py's.
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
TOOL_ROLES = ("tool", "function")


def normalize(messages: Sequence[Message], *, argument_text: bool = False) -> list[dict[str, Any]]:
    """Copy the messages with text content and tool arguments as mappings, or with `argument_text`
    as JSON text. Raises DataError for a value that is no message or has more than text."""
    return [
        _normalize_message(index, message, argument_text) for index, message in enumerate(messages)
    ]


def _normalize_message(index: int, message: Message, argument_text: bool) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise DataError(f"message {index}", f"{message!r:.80} has no role", "Give role and content")
    content, tool_calls = message.get("content"), message.get("tool_calls")
    # a tool may return nothing
    may_be_empty = tool_calls is not None or message["role"] in TOOL_ROLES
    if content is None and not may_be_empty:
        raise DataError(
            f"message {index} ({message['role']!r})",
            "it has no content and no tool calls",
            "Add content",
        )
    normalized = dict(message) | {"content": _text(index, content)}
    if tool_calls:
        normalized["tool_calls"] = [
            _normalize_call(index, call, argument_text) for call in tool_calls
        ]
    return normalized


def _text(index: int, content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, list) else [content]
    if not all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in parts):
        raise DataError(
            f"message {index}",
            f"its content {content!r:.80} is not text",
            "Only text can be trained here",
        )
    return "".join(part["text"] for part in parts)


def _normalize_call(index: int, call: Any, argument_text: bool) -> dict[str, Any]:
    """Convert the call's arguments to the form that the template expects. The OpenAI form has JSON
    text; most templates expect the mapping and would quote the text again."""
    if not isinstance(call, Mapping):
        raise DataError(
            f"message {index}",
            f"tool call {call!r:.80} is not a mapping",
            "Give it a function with name and arguments",
        )
    normalized = dict(call)
    function = normalized.get("function")
    if isinstance(function, Mapping) and "arguments" in function:
        form = _argument_text if argument_text else _argument_mapping
        normalized["function"] = dict(function) | {"arguments": form(function["arguments"])}
    return normalized


def _argument_mapping(arguments: Any) -> Any:
    """Parse JSON text of a mapping; any other text stays. Missing arguments become an empty
    mapping."""
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed = json.loads(arguments)
    except ValueError:
        return arguments
    return parsed if isinstance(parsed, dict) else arguments


def _argument_text(arguments: Any) -> str:
    if isinstance(arguments, str) and arguments.strip():
        return arguments
    return json.dumps(arguments or {}, ensure_ascii=False)


def turns(messages: Sequence[Message]) -> tuple[list[Message], list[list[Message]]]:
    """Split into (leading instructions, turns): a turn is a user message with everything up to the
    next one."""
    start = 0
    while start < len(messages) and messages[start]["role"] in INSTRUCTIONS:
        start += 1
    groups: list[list[Message]] = []
    for message in messages[start:]:
        if message["role"] == "user" or not groups:
            groups.append([])
        groups[-1].append(message)
    return list(messages[:start]), groups
