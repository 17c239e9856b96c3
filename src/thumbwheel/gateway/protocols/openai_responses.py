"""OpenAI's `/v1/responses`: items instead of messages, and events that name what they add to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thumbwheel.gateway.call_context import openai_context
from thumbwheel.gateway.openai_reply import add_usage
from thumbwheel.gateway.pieced_text import ToolCallDraft
from thumbwheel.gateway.protocol import Add, Protocol, by_type
from thumbwheel.gateway.reply_draft import ReplyDraft, error_text
from thumbwheel.gateway.translation.openai_responses import TRANSLATION
from thumbwheel.importers.chat_messages import (
    content_of,
    objects,
    openai_message,
    selected,
    tool_call,
)
from thumbwheel.importers.recordable import BoundedCopier

SAMPLING = (
    "temperature",
    "top_p",
    "max_output_tokens",
    "max_tool_calls",
    "top_logprobs",
    "text",
    "tool_choice",
    "parallel_tool_calls",
    "reasoning",
    "service_tier",
    "truncation",
)
CALL_TYPES = ("function_call", "custom_tool_call")
PROVIDER_CALL_TYPES = (
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_call",
)
OUTPUT_TYPES = ("function_call_output", "custom_tool_call_output")


def messages(body: Mapping[str, Any], recorder: BoundedCopier) -> list[dict[str, Any]]:
    """Return instructions and input items as messages. Items of a conversation that the server
    keeps are not in the request, so they are missing here too."""
    chat: list[dict[str, Any]] = []
    if isinstance(body.get("instructions"), str):
        chat.append({"role": "system", "content": recorder.text(body["instructions"])})
    items = body.get("input")
    if isinstance(items, str):
        return [*chat, {"role": "user", "content": recorder.text(items)}]
    for item in recorder.objects(items):
        _add_item(chat, item, recorder)
    return chat


def _add_item(chat: list[dict[str, Any]], item: Mapping[str, Any], recorder: BoundedCopier) -> None:
    kind = item.get("type", "message")
    if kind in CALL_TYPES:
        arguments = item.get("arguments", item.get("input"))
        function = {"name": item.get("name"), "arguments": arguments}
        call = tool_call({"id": item.get("call_id"), "function": function}, recorder)
        if chat and chat[-1]["role"] == "assistant" and "tool_calls" in chat[-1]:
            chat[-1]["tool_calls"].append(call)
        else:
            chat.append({"role": "assistant", "content": None, "tool_calls": [call]})
    elif kind in OUTPUT_TYPES:
        message = {"role": "tool", "content": content_of(item.get("output"), recorder)}
        if isinstance(item.get("call_id"), str):
            message["tool_call_id"] = recorder.text(item["call_id"])
        chat.append(message)
    elif kind == "message":
        chat.append(openai_message(item, recorder))


def tools(body: Mapping[str, Any], recorder: BoundedCopier) -> list[dict[str, Any]]:
    """Return functions nested as in chat requests; the provider's own tools stay unchanged."""
    definitions = []
    for tool in recorder.objects(body.get("tools")):
        definition = recorder.mapping(tool)
        if definition.pop("type", None) == "function":
            definitions.append({"type": "function", "function": definition})
        else:
            definitions.append(recorder.mapping(tool))
    return definitions


def sampling(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling parameters."""
    return selected(body, SAMPLING)


def _text_delta(draft: ReplyDraft, value: Mapping[str, Any]) -> None:
    draft.add_text(value.get("delta"))
    if value.get("logprobs"):
        draft.add_logprobs({"content": value["logprobs"]})


def _reasoning_delta(draft: ReplyDraft, value: Mapping[str, Any]) -> None:
    draft.add_reasoning(value.get("delta"))


def _key(value: Mapping[str, Any]) -> Any:
    """Return what tells the item of an event from others: its index, else its id."""
    item = value.get("item")
    id = item.get("id") if isinstance(item, Mapping) else value.get("item_id")
    index = value.get("output_index")
    return id if index is None else index


def _item_added(draft: ReplyDraft, value: Mapping[str, Any]) -> None:
    item = value.get("item")
    if isinstance(item, Mapping) and item.get("type") in CALL_TYPES:
        call = draft.streamed_call(_key(value), item.get("call_id"), item.get("name"))
        _note_kind(call, item)


def _note_kind(call: ToolCallDraft | None, item: Mapping[str, Any]) -> None:
    if call is not None:
        call.is_text = item["type"] == "custom_tool_call"


def _text_done(draft: ReplyDraft, value: Mapping[str, Any]) -> None:
    """Add a text whose deltas the server left out."""
    if not draft.has_text:
        draft.add_text(value.get("text"))


def _arguments_done(draft: ReplyDraft, value: Mapping[str, Any]) -> None:
    """Add arguments whose deltas the server left out."""
    call = draft.streamed_call(_key(value))
    if call is not None and not len(call.pieces):
        draft.add_arguments(call, value.get("arguments", value.get("input")))


def _item_done(draft: ReplyDraft, value: Mapping[str, Any]) -> None:
    item = value.get("item")
    if not isinstance(item, Mapping):
        return
    if item.get("type") in PROVIDER_CALL_TYPES:
        draft.note_provider_tool(item["type"])
    if item.get("type") in CALL_TYPES:
        call = draft.call_of_id(item.get("call_id"))
        if call is None:
            names = (item.get("call_id"), item.get("name"))
            call = draft.streamed_call(_key(value), *names)
            _note_kind(call, item)
        if call is not None and not len(call.pieces):
            draft.add_arguments(call, item.get("arguments", item.get("input")))
    elif item.get("type") == "message" and not draft.has_text:
        _add_message(draft, item)


def _arguments_delta(draft: ReplyDraft, value: Mapping[str, Any]) -> None:
    draft.add_arguments(draft.streamed_call(_key(value)), value.get("delta"))


def _head(draft: ReplyDraft, value: Mapping[str, Any]) -> None:
    if isinstance(value.get("response"), Mapping):
        draft.add_head(value["response"])


def _end(draft: ReplyDraft, value: Mapping[str, Any]) -> None:
    """Add the end, and what the events before it left out."""
    response = value.get("response")
    if not isinstance(response, Mapping):
        response = {}
    for index, item in enumerate(objects(response.get("output"))):
        if item.get("type") == "reasoning":
            if not draft.has_reasoning:
                _add_reasoning(draft, item)
        else:
            _item_done(draft, {"output_index": index, "item": item})
    statuses = {
        "response.completed": "completed",
        "response.incomplete": "incomplete",
        "response.failed": "failed",
    }
    status = response.get("status") or statuses.get(str(value.get("type")))
    _add_end(draft, {**response, "status": status})


def _error(draft: ReplyDraft, value: Mapping[str, Any]) -> None:
    draft.error = error_text(value)


EVENTS: dict[str, Add] = {
    "response.created": _head,
    "response.output_text.delta": _text_delta,
    "response.refusal.delta": _text_delta,
    "response.reasoning_text.delta": _reasoning_delta,
    "response.reasoning_summary_text.delta": _reasoning_delta,
    "response.output_text.done": _text_done,
    "response.output_item.added": _item_added,
    "response.output_item.done": _item_done,
    "response.function_call_arguments.delta": _arguments_delta,
    "response.custom_tool_call_input.delta": _arguments_delta,
    "response.function_call_arguments.done": _arguments_done,
    "response.custom_tool_call_input.done": _arguments_done,
    "response.completed": _end,
    "response.done": _end,
    "response.incomplete": _end,
    "response.failed": _end,
    "error": _error,
}


def whole(draft: ReplyDraft, value: Mapping[str, Any]) -> None:
    """Add a whole response: the items of its output, then how it ended."""
    for item in objects(value.get("output")):
        kind = item.get("type")
        if kind == "message":
            _add_message(draft, item)
        elif kind == "reasoning":
            _add_reasoning(draft, item)
        elif kind in CALL_TYPES:
            call = draft.tool_call(item.get("call_id"), item.get("name"))
            _note_kind(call, item)
            draft.add_arguments(call, item.get("arguments", item.get("input")))
        elif kind in PROVIDER_CALL_TYPES:
            draft.note_provider_tool(kind)
    _add_end(draft, value)


def _add_message(draft: ReplyDraft, item: Mapping[str, Any]) -> None:
    if isinstance(item.get("content"), str):
        draft.add_text(item["content"])
    for part in objects(item.get("content")):
        draft.add_text(part.get("text", part.get("refusal")))
        if part.get("logprobs"):
            draft.add_logprobs({"content": part["logprobs"]})


def _add_reasoning(draft: ReplyDraft, item: Mapping[str, Any]) -> None:
    for part in [*objects(item.get("summary")), *objects(item.get("content"))]:
        draft.add_reasoning(part.get("text"))


def _add_end(draft: ReplyDraft, response: Mapping[str, Any]) -> None:
    draft.add_head(response)
    add_usage(draft, response.get("usage"))
    status = response.get("status")
    if status == "incomplete":
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, Mapping) else None
        draft.finish(reason or "incomplete")
    elif status == "completed":
        draft.finish("tool_calls" if draft.has_tool_calls else "stop")
    elif status in ("failed", "cancelled"):
        draft.error = error_text(response.get("error") or f"the response is {status}")


PROTOCOL = Protocol(
    name="openai_responses",
    family="openai",
    path="/v1/responses",
    messages=messages,
    tools=tools,
    sampling=sampling,
    context=openai_context,
    event=by_type(EVENTS),
    whole=whole,
    shown_fields=("instructions", "input", "tools"),
    translation=TRANSLATION,
)
