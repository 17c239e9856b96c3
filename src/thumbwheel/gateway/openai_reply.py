"""What OpenAI's chat and plain completions share: choices, errors, usage, and what llama-server
adds. Servers that imitate them write texts, thoughts and errors in further ways."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from thumbwheel.gateway.reply_draft import ReplyDraft
from thumbwheel.importers.chat_messages import objects

REASONING = (
    "reasoning_content",
    "reasoning",
    "thinking",
    "reasoning_text",
    "thoughts",
    "reasoning_details",
    "thinking_blocks",
)
"""Where servers write the model's thoughts: llama-server, vLLM and DeepSeek; OpenRouter and newer
vLLM; Ollama's word; further gateways. The first that holds a text counts."""
THOUGHT_PARTS = ("thinking", "reasoning", "reasoning_content", "thought")
"""Types of parts of a content that are no part of the answer."""
OTHER_ROLES = ("user", "human", "system", "developer", "tool", "function")
"""Whose messages are no answer of the model."""


def choices_of(value: Mapping[str, Any]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield (index, choice) of an event or a whole reply; a choice without a number has that of its
    order."""
    choices = value.get("choices")
    if isinstance(choices, Mapping):
        choices = [choices]
    for order, choice in enumerate(objects(choices)):
        index = choice.get("index")
        if isinstance(index, str) and index.isdecimal() and len(index) < 10:
            index = int(index)
        yield (index if type(index) is int else order), choice


def content_text(content: Any) -> str | None:
    """Return the text of a message's content, which may come in parts; None where there is none.

    >>> content_text([{"type": "text", "text": "Until "}, "six."]), content_text(None)
    ('Until six.', None)
    """
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        return None if content.get("type") in THOUGHT_PARTS else content_text(content.get("text"))
    if isinstance(content, list):
        texts = [content_text(part) for part in content if isinstance(part, str | Mapping)]
        return "".join(text for text in texts if text)
    return None


def thoughts_of(message: Mapping[str, Any]) -> str:
    """Return the thoughts that stand beside or within the content of a message."""
    beside = (_thought_text(message.get(key)) for key in REASONING)
    thoughts = next((text for text in beside if text), "")
    parts = objects(message.get("content"))
    within = [_thought_text(part) for part in parts if part.get("type") in THOUGHT_PARTS]
    return thoughts or "".join(within)


def _thought_text(value: Any) -> str:
    """Return the text of thoughts, which may come in parts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(_thought_text(part) for part in value)
    if isinstance(value, Mapping):
        keys = ("text", "thinking", "content", "summary", "reasoning_content", "reasoning")
        texts = (_thought_text(value[key]) for key in keys if key in value)
        return next((text for text in texts if text), "")
    return ""


def stated_error(value: Mapping[str, Any]) -> Any:
    """Return the error that an object reports in the place of choices, or None."""
    if value.get("error"):
        return value["error"]
    for _, choice in choices_of(value):
        if choice.get("error"):
            return choice["error"]
    if value.get("object") == "error" or value.get("type") == "error":
        return value
    if "choices" not in value and "type" not in value:
        texts = (value.get(key) for key in ("message", "detail", "msg"))
        return next((text for text in texts if isinstance(text, str) and text), None)
    return None


def add_all_usage(draft: ReplyDraft, value: Mapping[str, Any]) -> None:
    """Add the usage of an event or a whole reply, which Moonshot writes into a choice and Groq into
    an object of its own."""
    groq = value.get("x_groq")
    holders = [*(choice for _, choice in choices_of(value)), groq, value]
    for holder in holders:
        if isinstance(holder, Mapping) and holder.get("usage"):
            add_usage(draft, holder["usage"])


def add_usage(draft: ReplyDraft, usage: Any) -> None:
    """Add the counts of a `usage` object, under the names of either of OpenAI's APIs."""
    if not isinstance(usage, Mapping):
        return
    prompt_details = _object(usage, "prompt_tokens_details", "input_tokens_details")
    completion_details = _object(usage, "completion_tokens_details", "output_tokens_details")
    draft.count(
        prompt=usage.get("prompt_tokens", usage.get("input_tokens")),
        completion=usage.get("completion_tokens", usage.get("output_tokens")),
        cached=prompt_details.get("cached_tokens"),
        reasoning=completion_details.get("reasoning_tokens"),
    )


def add_llama_server(draft: ReplyDraft, value: Mapping[str, Any]) -> None:
    """Add llama-server's extra fields: the number of sampled tokens, and all their ids if the
    request has `verbose` and `return_tokens`."""
    timings, verbose = value.get("timings"), value.get("__verbose")
    if isinstance(timings, Mapping):
        draft.count(completion=timings.get("predicted_n"))
    if isinstance(verbose, Mapping):
        draft.set_token_ids(verbose.get("tokens"))


def _object(usage: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    for name in names:
        if isinstance(usage.get(name), Mapping):
            return dict(usage[name])
    return {}
