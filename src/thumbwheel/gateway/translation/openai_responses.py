"""OpenAI's responses: items instead of messages, and numbered events that name their item."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from thumbwheel.gateway.reply_draft import Usage
from thumbwheel.gateway.translation.chat_reply import (
    CallPiece,
    ChatPiece,
    ReplyEnd,
    server_sent_event,
)
from thumbwheel.gateway.translation.translation import (
    Translation,
    json_schema_format,
    untranslatable,
)
from thumbwheel.importers.chat_messages import objects

SAME = ("temperature", "top_p", "parallel_tool_calls", "user")
"""Fields that chat requests have under the same name."""
KEPT_ELSEWHERE = {
    "previous_response_id": "earlier responses are not kept here",
    "conversation": "conversations are not kept here",
    "prompt": "prompts are not kept here",
    "background": "responses are not kept here",
}
"""Fields that need the state of OpenAI's servers, and why they are refused."""
ECHOED: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
}
"""Fields of the request that a response repeats, with their values where the request has none."""
LOGPROBS = "message.output_text.logprobs"


def chat_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling fields of a chat request. Raises InputError if the request needs state
    that only OpenAI's servers keep."""
    _check_state(body)
    fields = {name: body[name] for name in SAME if body.get(name) is not None}
    if body.get("max_output_tokens") is not None:
        fields["max_tokens"] = body["max_output_tokens"]
    if body.get("tool_choice") is not None:
        fields["tool_choice"] = _tool_choice(body["tool_choice"])
    reasoning = body.get("reasoning")
    if isinstance(reasoning, Mapping) and reasoning.get("effort") is not None:
        fields["reasoning_effort"] = reasoning["effort"]
    format = _text_format(body)
    if format.get("type") == "json_schema":
        parts = (format.get("schema"), format.get("name"), format.get("strict"))
        fields["response_format"] = json_schema_format(*parts)
    elif format.get("type") == "json_object":
        fields["response_format"] = {"type": "json_object"}
    include = body.get("include")
    if isinstance(include, list) and LOGPROBS in include:
        fields["logprobs"] = True
        if body.get("top_logprobs") is not None:
            fields["top_logprobs"] = body["top_logprobs"]
    return fields


def _check_state(body: Mapping[str, Any]) -> None:
    """Raise InputError if the request needs state that OpenAI's servers keep between requests."""
    for name, why in KEPT_ELSEWHERE.items():
        if body.get(name):
            raise untranslatable(name, why, "Send the whole conversation as `input`")
    for item in objects(body.get("input")):
        if item.get("type") == "item_reference":
            fix = "Send the items themselves: store=False, in the AI SDK openai: {store: false}"
            raise untranslatable("input", "it refers to items, and items are not kept here", fix)


def _text_format(body: Mapping[str, Any]) -> Mapping[str, Any]:
    text = body.get("text")
    format = text.get("format") if isinstance(text, Mapping) else None
    return format if isinstance(format, Mapping) else {}


def _tool_choice(choice: Any) -> Any:
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return choice


class ResponsesWriter:
    """Writes a response. The last event repeats all of it."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._echo = {}
        for name, default in ECHOED.items():
            self._echo[name] = default if body.get(name) is None else body[name]
        self._response: dict[str, Any] = {}
        self._id = ""
        self._number = 0
        self._items: list[dict[str, Any]] = []
        self._open: int | None = None
        """Index of the message or the reasoning that is being written."""
        self._call_items: dict[int, int] = {}
        """Number of a tool call -> index of its item."""

    def begin(self, id: str, model: str) -> bytes:
        """Open the response."""
        self._id = id
        self._response = {
            "id": f"resp_{id}",
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "model": model,
            "output": [],
            "previous_response_id": None,
            "store": False,
            "usage": None,
            **self._echo,
        }
        created = self._event("response.created", response=self._response)
        return created + self._event("response.in_progress", response=self._response)

    def piece(self, piece: ChatPiece) -> bytes:
        """Return the bytes of a piece: fill the open item, or close it and open the next."""
        written = b""
        if piece.reasoning:
            written += self._reasoning(piece.reasoning)
        if piece.text:
            written += self._text(piece.text, list(piece.logprobs))
        for call in piece.calls:
            written += self._call(call)
        return written

    def end(self, end: ReplyEnd) -> bytes:
        """Close the items and the response."""
        written = self._close_all(_status(end))
        response = self._ended(end)
        return written + self._event(f"response.{response['status']}", response=response)

    def whole(self, end: ReplyEnd) -> dict[str, Any]:
        """Return the response."""
        self._close_all(_status(end))
        return self._ended(end)

    def failure(self, message: str) -> bytes:
        """Write that the response failed."""
        error = {"code": "server_error", "message": message}
        failed = self._response | {"status": "failed", "error": error, "output": self._items}
        return self._event("response.failed", response=failed)

    def _ended(self, end: ReplyEnd) -> dict[str, Any]:
        ended = self._response | {
            "status": _status(end),
            "output": self._items,
            "usage": _usage(end.usage),
        }
        if end.finish_reason == "length":
            ended["incomplete_details"] = {"reason": "max_output_tokens"}
        elif end.finish_reason == "content_filter":
            ended["incomplete_details"] = {"reason": "content_filter"}
        return ended

    def _reasoning(self, text: str) -> bytes:
        """Write thoughts as a summary: that is where clients look for them."""
        written = b""
        item = self._open_item("reasoning")
        if item is None:
            written += self._close_open()
            item = {"type": "reasoning", "id": self._item_id("rs"), "summary": []}
            written += self._add(item)
            part = {"type": "summary_text", "text": ""}
            kind = "response.reasoning_summary_part.added"
            written += self._part_event(kind, "summary_index", part=dict(part))
            item["summary"].append(part)
        item["summary"][0]["text"] += text
        kind = "response.reasoning_summary_text.delta"
        return written + self._part_event(kind, "summary_index", delta=text)

    def _text(self, text: str, logprobs: list[Mapping[str, Any]]) -> bytes:
        written = b""
        item = self._open_item("message")
        if item is None:
            written += self._close_open()
            item = {
                "type": "message",
                "id": self._item_id("msg"),
                "status": "in_progress",
                "role": "assistant",
                "content": [],
            }
            written += self._add(item)
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            kind = "response.content_part.added"
            written += self._part_event(kind, "content_index", part=dict(part))
            item["content"].append(part)
        part = item["content"][0]
        part["text"] += text
        part["logprobs"] += logprobs
        kind = "response.output_text.delta"
        return written + self._part_event(kind, "content_index", delta=text, logprobs=logprobs)

    def _open_item(self, kind: str) -> dict[str, Any] | None:
        """Return the item that is being written, if it is of this kind."""
        item = None if self._open is None else self._items[self._open]
        return item if item is not None and item["type"] == kind else None

    def _call(self, call: CallPiece) -> bytes:
        """Write more of a tool call. Its item stays open to the end, as servers may write several
        calls in turns."""
        written = b""
        if call.number not in self._call_items:
            written += self._close_open()
            item = {
                "type": "function_call",
                "id": self._item_id("fc"),
                "call_id": call.id,
                "name": call.name,
                "arguments": "",
                "status": "in_progress",
            }
            self._call_items[call.number] = len(self._items)
            written += self._add(item)
        index = self._call_items[call.number]
        if call.arguments:
            self._items[index]["arguments"] += call.arguments
            kind = "response.function_call_arguments.delta"
            written += self._item_event(kind, index, delta=call.arguments)
        return written

    def _close_all(self, status: str) -> bytes:
        written = self._close_open(status)
        for index in self._call_items.values():
            item = self._items[index]
            item["arguments"] = item["arguments"] or "{}"
            kind = "response.function_call_arguments.done"
            fields = {"arguments": item["arguments"], "name": item["name"]}
            written += self._item_event(kind, index, **fields)
            written += self._done(index, status)
        return written

    def _close_open(self, status: str = "completed") -> bytes:
        if self._open is None:
            return b""
        item = self._items[self._open]
        written = b"".join(
            self._reasoning_done(item) if item["type"] == "reasoning" else self._text_done(item)
        )
        index, self._open = self._open, None
        return written + self._done(index, status)

    def _reasoning_done(self, item: dict[str, Any]) -> Iterator[bytes]:
        (part,) = item["summary"]
        text_kind = "response.reasoning_summary_text.done"
        yield self._part_event(text_kind, "summary_index", text=part["text"])
        yield self._part_event("response.reasoning_summary_part.done", "summary_index", part=part)

    def _text_done(self, item: dict[str, Any]) -> Iterator[bytes]:
        (part,) = item["content"]
        fields = {"text": part["text"], "logprobs": part["logprobs"]}
        yield self._part_event("response.output_text.done", "content_index", **fields)
        yield self._part_event("response.content_part.done", "content_index", part=part)

    def _add(self, item: dict[str, Any]) -> bytes:
        self._items.append(item)
        index = len(self._items) - 1
        self._open = index if item["type"] != "function_call" else None
        return self._event("response.output_item.added", output_index=index, item=item)

    def _done(self, index: int, status: str) -> bytes:
        item = self._items[index]
        if "status" in item:
            item["status"] = status
        return self._event("response.output_item.done", output_index=index, item=item)

    def _item_id(self, prefix: str) -> str:
        return f"{prefix}_{self._id}_{len(self._items)}"

    def _part_event(self, kind: str, part_index: str, **fields: Any) -> bytes:
        """Write an event about the only part of the open item."""
        index = len(self._items) - 1 if self._open is None else self._open
        return self._item_event(kind, index, **{part_index: 0}, **fields)

    def _item_event(self, kind: str, index: int, **fields: Any) -> bytes:
        item_id = self._items[index]["id"]
        return self._event(kind, item_id=item_id, output_index=index, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return server_sent_event({"type": kind, "sequence_number": number, **fields}, kind)


def _status(end: ReplyEnd) -> str:
    return "incomplete" if end.finish_reason in ("length", "content_filter") else "completed"


def _usage(usage: Usage) -> dict[str, Any] | None:
    if usage.prompt is None or usage.completion is None:
        return None
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached or 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning or 0},
        "total_tokens": usage.prompt + usage.completion,
    }


TRANSLATION = Translation(chat_fields=chat_fields, writer=ResponsesWriter)
