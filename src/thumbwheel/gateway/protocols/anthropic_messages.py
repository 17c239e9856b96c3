"""Anthropic's `/v1/messages`: content in blocks, events that open, fill and close them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thumbwheel.gateway.call_context import anthropic_context
from thumbwheel.gateway.protocol import Add, Protocol, by_type
from thumbwheel.gateway.reply_draft import ReplyDraft
from thumbwheel.gateway.translation.anthropic_messages import TRANSLATION
from thumbwheel.importers.chat_messages import (
    content_of,
    image_part,
    json_text,
    objects,
    selected,
    tool_call,
)
from thumbwheel.importers.recordable import BoundedCopier

SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "max_tokens",
    "stop_sequences",
    "thinking",
    "tool_choice",
    "service_tier",
    "output_config",
)
PROVIDER_CALL_TYPES = ("server_tool_use", "mcp_tool_use")
CALL_TYPES = ("tool_use", *PROVIDER_CALL_TYPES)
RESULT_TYPE = "tool_result"


def messages(body: Mapping[str, Any], recorder: BoundedCopier) -> list[dict[str, Any]]:
    """Return the system text and the messages. A user message's tool results become tool messages
    before the rest of it, in OpenAI's order."""
    chat: list[dict[str, Any]] = []
    if body.get("system"):
        chat.append({"role": "system", "content": _content(body["system"], recorder)})
    for message in recorder.objects(body.get("messages")):
        role = message.get("role")
        content = message.get("content")
        if role == "assistant":
            chat.append(_assistant(content, recorder))
            continue
        blocks = list(recorder.objects(content))
        results = [block for block in blocks if block.get("type") == RESULT_TYPE]
        chat += [_tool_result(block, recorder) for block in results]
        rest = [block for block in blocks if block.get("type") != RESULT_TYPE]
        if rest or not blocks:
            shown = _content(rest or content, recorder)
            chat.append({"role": "system" if role == "system" else "user", "content": shown})
    return chat


def _content(content: Any, recorder: BoundedCopier) -> Any:
    if not isinstance(content, list):
        return content_of(content, recorder)
    return content_of([_part(block, recorder) for block in content], recorder)


def _part(block: Any, recorder: BoundedCopier) -> Any:
    """Convert an image block to a part of OpenAI's messages; return any other block unchanged."""
    if not isinstance(block, Mapping):
        return block
    source = block.get("source")
    if block.get("type") == "image" and isinstance(source, Mapping):
        if source.get("type") == "base64":
            url = f"data:{source.get('media_type')};base64,{source.get('data')}"
            return image_part(url, recorder)
        return {"type": "image_url", "image_url": {"url": source.get("url")}}
    return block


def _assistant(content: Any, recorder: BoundedCopier) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant"}
    blocks = list(recorder.objects(content))
    calls = [_call(block, recorder) for block in blocks if block.get("type") in CALL_TYPES]
    thoughts = [
        block["thinking"]
        for block in blocks
        if block.get("type") == "thinking" and isinstance(block.get("thinking"), str)
    ]
    others = ("thinking", "redacted_thinking", *CALL_TYPES)
    rest = [block for block in blocks if block.get("type") not in others]
    message["content"] = _content(rest if blocks else content, recorder)
    if thoughts:
        message["reasoning_content"] = recorder.text("".join(thoughts))
    if calls:
        message["tool_calls"] = calls
        message["content"] = message["content"] or None
    return message


def _call(block: Mapping[str, Any], recorder: BoundedCopier) -> dict[str, Any]:
    function = {"name": block.get("name"), "arguments": block.get("input")}
    return tool_call({"id": block.get("id"), "function": function}, recorder)


def _tool_result(block: Mapping[str, Any], recorder: BoundedCopier) -> dict[str, Any]:
    message = {"role": "tool", "content": _content(block.get("content"), recorder)}
    if isinstance(block.get("tool_use_id"), str):
        message["tool_call_id"] = recorder.text(block["tool_use_id"])
    if block.get("is_error") is True:
        message["is_error"] = True
    return message


def tools(body: Mapping[str, Any], recorder: BoundedCopier) -> list[dict[str, Any]]:
    """Return the tools in OpenAI's form; Anthropic's own tools, which have no schema, keep their
    form."""
    definitions: list[dict[str, Any]] = []
    for tool in recorder.objects(body.get("tools")):
        if "input_schema" not in tool:
            definitions.append(recorder.mapping(tool))
            continue
        function = {
            "name": tool.get("name"),
            "description": tool.get("description"),
            "parameters": tool["input_schema"],
        }
        definitions.append({"type": "function", "function": recorder.mapping(function)})
    return definitions


def sampling(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling parameters."""
    return selected(body, SAMPLING)


def _message_start(draft: ReplyDraft, value: Mapping[str, Any]) -> None:
    message = value.get("message")
    if isinstance(message, Mapping):
        draft.add_head(message)
        _add_usage(draft, message.get("usage"))


def _block_start(draft: ReplyDraft, value: Mapping[str, Any]) -> None:
    block = value.get("content_block")
    if isinstance(block, Mapping):
        _add_block(draft, block, value.get("index"), is_start=True)


def _block_delta(draft: ReplyDraft, value: Mapping[str, Any]) -> None:
    delta = value.get("delta")
    if not isinstance(delta, Mapping):
        return
    kind = delta.get("type")
    if kind in ("text_delta", None):
        draft.add_text(delta.get("text"))
    elif kind == "thinking_delta":
        draft.add_reasoning(delta.get("thinking"))
    elif kind == "input_json_delta":
        call = draft.streamed_call(value.get("index"))
        draft.add_arguments(call, delta.get("partial_json"))


def _message_delta(draft: ReplyDraft, value: Mapping[str, Any]) -> None:
    delta = value.get("delta")
    if isinstance(delta, Mapping):
        draft.finish(delta.get("stop_reason"))
    _add_usage(draft, value.get("usage"))


def _message_stop(draft: ReplyDraft, value: Mapping[str, Any]) -> None:
    draft.ended = True


EVENTS: dict[str, Add] = {
    "message_start": _message_start,
    "content_block_start": _block_start,
    "content_block_delta": _block_delta,
    "message_delta": _message_delta,
    "message_stop": _message_stop,
}


def whole(draft: ReplyDraft, value: Mapping[str, Any]) -> None:
    """Add a whole message."""
    draft.add_head(value)
    if isinstance(value.get("content"), str):
        draft.add_text(value["content"])
    for block in objects(value.get("content")):
        _add_block(draft, block, None, is_start=False)
    draft.finish(value.get("stop_reason"))
    _add_usage(draft, value.get("usage"))


def _add_block(draft: ReplyDraft, block: Mapping[str, Any], index: Any, is_start: bool) -> None:
    """Add the content of a block. The input of a call that is only beginning is an empty object,
    which its deltas replace."""
    kind = block.get("type")
    if kind == "text":
        draft.add_text(block.get("text"))
    elif kind == "thinking":
        draft.add_reasoning(block.get("thinking"))
    elif kind in CALL_TYPES:
        names = (block.get("id"), block.get("name"))
        call = draft.streamed_call(index, *names) if is_start else draft.tool_call(*names)
        if call is not None and kind in PROVIDER_CALL_TYPES:
            call.is_of_provider = True
            draft.note_provider_tool(block.get("name"))
        if block.get("input") or not is_start:
            draft.add_arguments(call, json_text(block.get("input") or {}))


def _add_usage(draft: ReplyDraft, usage: Any) -> None:
    """Add the token counts. Anthropic counts cached tokens apart; here the prompt count includes
    them."""
    if not isinstance(usage, Mapping):
        return
    prompt = usage.get("input_tokens")
    cached = usage.get("cache_read_input_tokens")
    written = usage.get("cache_creation_input_tokens")
    if type(prompt) is int:
        prompt += sum(count for count in (cached, written) if type(count) is int)
    draft.count(prompt=prompt, cached=cached, completion=usage.get("output_tokens"))


PROTOCOL = Protocol(
    name="anthropic_messages",
    family="anthropic",
    path="/v1/messages",
    messages=messages,
    tools=tools,
    sampling=sampling,
    context=anthropic_context,
    event=by_type(EVENTS),
    whole=whole,
    shown_fields=("system", "messages", "tools"),
    translation=TRANSLATION,
)
