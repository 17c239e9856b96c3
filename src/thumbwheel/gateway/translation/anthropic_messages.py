"""Anthropic's messages: content in blocks, events that open, fill and close them."""

from __future__ import annotations

from collections.abc import Mapping
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
    arguments_object,
    json_schema_format,
    untranslatable,
)

SAME = ("max_tokens", "temperature", "top_p", "top_k")
"""Fields that chat requests have under the same name."""
TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
THINKS = ("enabled", "adaptive")


def chat_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling fields of a chat request."""
    fields = {name: body[name] for name in SAME if body.get(name) is not None}
    if body.get("stop_sequences"):
        fields["stop"] = body["stop_sequences"]
    if body.get("container") or body.get("mcp_servers"):
        why = "it runs on Anthropic's servers, and this model does not"
        raise untranslatable("container, mcp_servers", why, "Leave it out")
    choice = body.get("tool_choice")
    if isinstance(choice, Mapping):
        fields |= _tool_choice(choice)
    thinking = _thinking(body)
    if thinking is not None:
        fields["chat_template_kwargs"] = {"enable_thinking": thinking in THINKS}
    for holder in (body.get("output_config"), {"format": body.get("output_format")}):
        format = holder.get("format") if isinstance(holder, Mapping) else None
        if isinstance(format, Mapping) and format.get("type") == "json_schema":
            fields["response_format"] = json_schema_format(format.get("schema"))
    return fields


def _tool_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    kind = choice.get("type")
    if kind == "tool":
        fields["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    elif isinstance(kind, str) and kind in TOOL_CHOICES:
        fields["tool_choice"] = TOOL_CHOICES[kind]
    if choice.get("disable_parallel_tool_use") is True:
        fields["parallel_tool_calls"] = False
    return fields


def _thinking(body: Mapping[str, Any]) -> str | None:
    thinking = body.get("thinking")
    kind = thinking.get("type") if isinstance(thinking, Mapping) else None
    return kind if isinstance(kind, str) else None


class AnthropicWriter:
    """Writes a message. Thoughts are shown only to clients that asked for them, as Anthropic does:
    others take the first block for the answer."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._shows_thoughts = _thinking(body) in THINKS
        self._message: dict[str, Any] = {}
        self._blocks: list[dict[str, Any]] = []
        self._open: int | None = None
        """Index of the text or the thoughts that are being written."""
        self._call_blocks: dict[int, int] = {}
        """Number of a tool call -> index of its block."""
        self._arguments: dict[int, list[str]] = {}

    def begin(self, id: str, model: str) -> bytes:
        """Open the message."""
        self._message = {
            "id": f"msg_{id}",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
        }
        # how many tokens the prompt has is known at the end only
        message = self._message | {"usage": _usage(Usage())}
        return _event("message_start", message=message)

    def piece(self, piece: ChatPiece) -> bytes:
        """Return the bytes of a piece: fill the open block, or close it and open the next."""
        written = b""
        if piece.reasoning and self._shows_thoughts:
            written += self._text("thinking", piece.reasoning)
        if piece.text:
            written += self._text("text", piece.text)
        for call in piece.calls:
            written += self._call(call)
        return written

    def end(self, end: ReplyEnd) -> bytes:
        """Close the blocks and the message."""
        written = self._close()
        for index in self._call_blocks.values():
            written += _event("content_block_stop", index=index)
        delta = _ending(end)
        written += _event("message_delta", delta=delta, usage=_usage(end.usage))
        return written + _event("message_stop")

    def whole(self, end: ReplyEnd) -> dict[str, Any]:
        """Return the message."""
        for number, index in self._call_blocks.items():
            text = "".join(self._arguments[number])
            self._blocks[index]["input"] = arguments_object(text)
        return {
            **self._message,
            "content": self._blocks,
            **_ending(end),
            "usage": _usage(end.usage),
        }

    def failure(self, message: str) -> bytes:
        """Write the event of an error, which ends the stream."""
        return _event("error", error={"type": "api_error", "message": message})

    def _text(self, kind: str, text: str) -> bytes:
        written = b""
        if self._open is None or self._blocks[self._open]["type"] != kind:
            written += self._close()
            block = {"type": kind, kind: ""}
            if kind == "thinking":
                block["signature"] = ""
            self._open = len(self._blocks)
            self._blocks.append(block)
            written += _event("content_block_start", index=self._open, content_block=dict(block))
        self._blocks[self._open][kind] += text
        delta = {"type": f"{kind}_delta", kind: text}
        return written + _event("content_block_delta", index=self._open, delta=delta)

    def _call(self, call: CallPiece) -> bytes:
        """Write more of a tool call. Its block stays open to the end, as servers may write several
        calls in turns."""
        written = b""
        if call.number not in self._call_blocks:
            written += self._close()
            index = self._call_blocks[call.number] = len(self._blocks)
            block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
            self._blocks.append(block)
            written += _event("content_block_start", index=index, content_block=dict(block))
        self._arguments.setdefault(call.number, []).append(call.arguments)
        if call.arguments:
            index = self._call_blocks[call.number]
            delta = {"type": "input_json_delta", "partial_json": call.arguments}
            written += _event("content_block_delta", index=index, delta=delta)
        return written

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        index, self._open = self._open, None
        return _event("content_block_stop", index=index)


def _event(kind: str, **fields: Any) -> bytes:
    return server_sent_event({"type": kind, **fields}, kind)


def _ending(end: ReplyEnd) -> dict[str, Any]:
    if end.stop_text is not None and end.finish_reason == "stop":
        return {"stop_reason": "stop_sequence", "stop_sequence": end.stop_text}
    reason = STOP_REASONS.get(end.finish_reason, "end_turn")
    return {"stop_reason": reason, "stop_sequence": None}


def _usage(usage: Usage) -> dict[str, int]:
    """Return the counts; clients want numbers, so one that the server did not tell is 0. Anthropic
    counts the tokens of the cache apart."""
    cached = usage.cached or 0
    return {
        "input_tokens": max((usage.prompt or 0) - cached, 0),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion or 0,
    }


TRANSLATION = Translation(chat_fields=chat_fields, writer=AnthropicWriter)
