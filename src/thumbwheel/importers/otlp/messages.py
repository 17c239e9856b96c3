"""Chats as the conventions of OpenTelemetry write them: messages with parts, indexed attributes,
events, and JSON in a text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from thumbwheel.importers.fields import content_text, unpacked
from thumbwheel.importers.messages import Messages, chat, is_chat

_INDEXED = re.compile(r"(\d+)\.(.+)")


def chat_in(value: Any) -> Messages | None:
    """Return the chat in `value`: a list of messages, an object with one, a text, or either as JSON
    text. None if it is empty. Raises Unreadable for an unknown role."""
    value = unpacked(value)
    if value in (None, "", [], {}):
        return None
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if is_chat(value):
        return chat(value)
    if isinstance(value, Mapping):
        return _chat_in_object(value)
    if isinstance(value, list) and all(isinstance(text, str) for text in value):
        return [{"role": "user", "content": text} for text in value]
    return [{"role": "user", "content": json.dumps(value, ensure_ascii=False, default=str)}]


def _chat_in_object(value: Mapping[str, Any]) -> Messages:
    system = content_text(unpacked(value.get("system") or value.get("instructions")))
    before: Messages = [{"role": "system", "content": system}] if system else []
    for key in ("messages", "prompt", "input", "question", "query", "inputs"):
        inner = unpacked(value.get(key))
        if inner not in (None, "", [], {}):
            return before + (chat_in(inner) or [])
    return [{"role": "user", "content": json.dumps(value, ensure_ascii=False, default=str)}]


def text_in(value: Any) -> str | None:
    """Return the answer in `value`: a text, a message, the last message of a chat, or either as
    JSON text; for anything else its JSON, for an empty value None."""
    opened = unpacked(value)
    if opened in (None, "", [], {}):
        return None
    if isinstance(opened, str):
        return opened
    if is_chat(opened):
        messages = chat(opened)
        texts = [content_text(message.get("content")) for message in messages]
        return next((text for text in reversed(texts) if text), None)
    if isinstance(opened, Mapping):
        text = _wrapped_answer(opened)
        if text:
            return text
    if isinstance(value, str):
        return value
    return json.dumps(opened, ensure_ascii=False, default=str)


def _wrapped_answer(value: Mapping[str, Any]) -> str | None:
    """Return the text in an object that a model's API or a framework returned: a message, the first
    of its choices, the last of its messages. None if there is none."""
    text = content_text(value) or content_text(value.get("output"))
    if text:
        return text
    for key in ("choices", "generations", "messages"):
        inner = value.get(key)
        if isinstance(inner, list) and inner:
            return text_in(inner) if is_chat(inner) else content_text(inner[0])
    return None


def indexed_messages(attributes: Mapping[str, Any], prefix: str) -> Messages:
    """Return the messages in attributes such as `llm.input_messages.0.message.role` (OpenInference)
    or `gen_ai.prompt.0.role` (OpenLLMetry); an empty list without such attributes."""
    by_index: dict[int, dict[str, Any]] = {}
    for name, value in attributes.items():
        match = _INDEXED.fullmatch(name.removeprefix(prefix)) if name.startswith(prefix) else None
        if match:
            key = match[2].removeprefix("message.")
            by_index.setdefault(int(match[1]), {})[key] = value
    messages: Messages = []
    for _, fields in sorted(by_index.items()):
        message: dict[str, Any] = {"role": fields.get("role", "assistant")}
        message["content"] = _indexed_content(fields)
        calls = _indexed_calls(fields)
        if calls:
            message["tool_calls"] = calls
        if fields.get("tool_call_id"):
            message["tool_call_id"] = str(fields["tool_call_id"])
        messages += chat([message])
    return messages


def _indexed_content(fields: Mapping[str, Any]) -> Any:
    """Return the content of a message: its text, or its parts if it has several; None if it is
    empty."""
    if "content" in fields:
        content = fields["content"]
        parts = unpacked(content)
        return parts if isinstance(parts, list) else content
    by_index: dict[int, dict[str, Any]] = {}
    for name, value in fields.items():
        match = _INDEXED.fullmatch(name.removeprefix("contents."))
        if name.startswith("contents.") and match:
            key = match[2].removeprefix("message_content.")
            by_index.setdefault(int(match[1]), {})[key] = value
    contents: list[Any] = []
    for _, part in sorted(by_index.items()):
        if isinstance(part.get("text"), str):
            contents.append({"type": part.get("type", "text"), "text": part["text"]})
        elif part.get("image.image.url"):
            url = str(part["image.image.url"])
            contents.append({"type": "image_url", "image_url": {"url": url}})
        elif part:
            contents.append(part)
    return contents or None


def _indexed_calls(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    by_index: dict[int, dict[str, Any]] = {}
    for name, value in fields.items():
        match = _INDEXED.fullmatch(name.removeprefix("tool_calls."))
        if name.startswith("tool_calls.") and match:
            key = match[2].removeprefix("tool_call.").removeprefix("function.")
            by_index.setdefault(int(match[1]), {})[key] = value
    return [part for _, part in sorted(by_index.items())]
