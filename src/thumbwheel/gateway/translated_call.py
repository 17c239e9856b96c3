"""Calls of a version on a target of ours, which speaks OpenAI's chat completions, by clients that
speak another API: their request as a chat request, and the chat reply in their words.

A server that the owner registered gets the client's bytes as they are, whatever API they are of.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from thumbwheel.core import ids
from thumbwheel.core.errors import InputError
from thumbwheel.gateway.event_stream import ReplyEvents, parsed
from thumbwheel.gateway.protocol import MAX_WHOLE, CallRequest, ReplyReader
from thumbwheel.gateway.protocols import openai_chat, openai_embeddings
from thumbwheel.gateway.refusal import error_body
from thumbwheel.gateway.reply_draft import error_text
from thumbwheel.gateway.routing import Upstream
from thumbwheel.gateway.translation.chat_reply import ChatReplyReader
from thumbwheel.gateway.translation.translation import (
    EmbeddingTranslation,
    Translation,
    untranslatable,
)
from thumbwheel.importers.chat_messages import objects
from thumbwheel.importers.recordable import BoundedCopier

REMOTE = "remote"
"""The target of servers that the owner registered."""
EMBEDDINGS_PATH = openai_embeddings.PROTOCOL.path
UNLIMITED = 1 << 40
BROKE_OFF = "the model's server ended its reply before the answer was complete"
UNREADABLE = "the model's server sent a reply that cannot be read"


def needs_translation(call: CallRequest, upstream: Upstream) -> bool:
    """Return whether the call must be translated for the upstream. Ollama speaks its own API."""
    if call.protocol.translation is None or upstream.target == REMOTE:
        return False
    return not upstream.target == call.protocol.family == "ollama"


def require_tools_shown(call: CallRequest, upstream: Upstream) -> None:
    """Raise InputError for a call that forces the use of a tool, if the upstream's chat template
    shows the model no tools: it would answer in words, or call any tool."""
    if upstream.shows_tools:
        return
    fields: Mapping[str, Any] = call.body
    if isinstance(call.protocol.translation, Translation):
        fields = call.protocol.translation.chat_fields(call.body)
    choice = fields.get("tool_choice")
    is_named = isinstance(choice, Mapping) and choice.get("type") != "allowed_tools"
    if choice == "required" or is_named:
        raise InputError(
            "field 'tool_choice'",
            f"it forces the call of a tool, and the chat template of {upstream.version} shows the "
            "model no tools",
            "Leave tool_choice out, or deploy a version over a base whose chat template has tools",
        )


@dataclass(frozen=True)
class TranslatedRequest:
    """A request of OpenAI's API that asks what a client of another asked."""

    path: str
    body: bytes


def translated_request(call: CallRequest, upstream: Upstream) -> TranslatedRequest:
    """Return the request for the upstream. Raises InputError if no request of its API is
    equivalent."""
    translation = call.protocol.translation
    if isinstance(translation, Translation):
        chat = _chat_request(call, translation, upstream)
        path = openai_chat.PROTOCOL.path
        return TranslatedRequest(path, json.dumps(chat | dict(upstream.body)).encode())
    assert translation is not None  # noqa: S101 - narrows the type: see needs_translation
    fields = BoundedCopier(UNLIMITED, UNLIMITED).mapping(translation.fields(call.body))
    body = {"model": upstream.model, **fields}
    return TranslatedRequest(EMBEDDINGS_PATH, json.dumps(body).encode())


def _chat_request(
    call: CallRequest, translation: Translation, upstream: Upstream
) -> dict[str, Any]:
    protocol = call.protocol
    recorder = BoundedCopier(UNLIMITED, UNLIMITED, keeps_files=True)
    fields = translation.chat_fields(call.body)
    messages = protocol.messages(call.body, recorder)
    chat = {
        "model": upstream.model,
        "messages": _with_call_ids([_chat_message(message) for message in messages]),
        **recorder.mapping(fields),
    }
    tools = protocol.tools(call.body, recorder)
    if tools:
        chat["tools"] = [_function(tool) for tool in tools]
    else:
        chat.pop("tool_choice", None)
        chat.pop("parallel_tool_calls", None)
    if call.stream:
        chat |= {"stream": True, "stream_options": {"include_usage": True}}
    return chat


def _function(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool that its app runs. Raises InputError for a tool that a provider would run."""
    if tool.get("type") != "function" or not isinstance(tool.get("function"), Mapping):
        kind = str(tool.get("type"))[:80]
        why = f"a tool of type {kind!r} runs at its provider, which does not answer here"
        raise untranslatable("tools", why, "Offer tools that your app runs")
    function = {key: value for key, value in tool["function"].items() if value is not None}
    return {"type": "function", "function": function}


def _chat_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with the parts that chat requests have."""
    chat = {key: value for key, value in message.items() if key != "is_error"}
    if isinstance(chat.get("content"), list):
        chat["content"] = [_part(part) for part in chat["content"]]
    return chat


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part of a message. Raises InputError if it is neither text nor a picture."""
    kind, image = part.get("type"), part.get("image_url")
    if kind == "input_image" and isinstance(image, str):
        return {"type": "image_url", "image_url": {"url": image}}
    if kind == "image_url" or isinstance(part.get("text"), str):
        return dict(part)
    why = f"a part of type {str(kind)[:80]!r} is neither text nor a picture"
    raise untranslatable("messages", why, "Send its text")


def _with_call_ids(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Name tool calls and their results if the client's API has no ids, and return the messages:
    results are matched to calls in order."""
    unanswered: list[str] = []
    count = 0
    for message in messages:
        for call in objects(message.get("tool_calls")):
            count += 1
            if isinstance(call, dict):
                call.setdefault("id", f"call_{count}")
                unanswered.append(call["id"])
        if message["role"] == "tool":
            if "tool_call_id" not in message and unanswered:
                message["tool_call_id"] = unanswered[0]
            if message.get("tool_call_id") in unanswered:
                unanswered.remove(message["tool_call_id"])
    return list(messages)


def server_reply_reader(call: CallRequest, status: int, content_type: str) -> ReplyReader:
    """Return the reader of the server's reply to a translated call, for its record and budgets."""
    is_chat = isinstance(call.protocol.translation, Translation)
    protocol = openai_chat.PROTOCOL if is_chat else openai_embeddings.PROTOCOL
    return replace(call, protocol=protocol).reply_reader(status, {"content-type": content_type})


def translated_reply(
    call: CallRequest, status: int, content_type: str
) -> TranslatedReply | TranslatedVectors:
    """Return the writer for the reply with this status in the form of the client's API."""
    translation = call.protocol.translation
    if isinstance(translation, EmbeddingTranslation):
        return TranslatedVectors(call, translation, status)
    assert translation is not None  # noqa: S101 - narrows the type: see needs_translation
    return TranslatedReply(call, translation, status, content_type)


class TranslatedVectors:
    """A reply with vectors in the words of the client's API. It never streams."""

    is_stream = False
    media_type = "application/json"

    def __init__(self, call: CallRequest, translation: EmbeddingTranslation, status: int) -> None:
        self._call, self._translation, self._status = call, translation, status
        self._body = bytearray()

    def feed(self, chunk: bytes) -> bytes:
        """Take the next bytes of the server."""
        self._body += chunk[: MAX_WHOLE - len(self._body)]
        return b""

    def end(self) -> bytes:
        """Return the last bytes of a stream, of which there are none."""
        return b""

    def whole(self) -> tuple[int, bytes]:
        """Return status and body."""
        family = self._call.protocol.family
        value = parsed(bytes(self._body))
        if self._status >= 300:
            message = _failure_text(value, bytes(self._body[:1000]))
            return self._status, error_body(family, self._status, message)
        if not isinstance(value, dict) or not isinstance(value.get("data"), list):
            return 502, error_body(family, 502, UNREADABLE)
        vectors: list[Any] = [row.get("embedding") for row in objects(value["data"])]
        usage = value.get("usage")
        tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        reply = self._translation.reply(self._call.model, vectors, tokens)
        return self._status, json.dumps(reply).encode()


class TranslatedReply:
    """A chat reply in the words of the client's API. `feed` and `end` are for a reply that is
    streamed to the client, `whole` for the others."""

    def __init__(
        self, call: CallRequest, translation: Translation, status: int, content_type: str
    ) -> None:
        self._call, self._status = call, status
        self._writer = translation.writer(call.body)
        self._reader = ChatReplyReader(call.body)
        self._events = ReplyEvents()
        self._body = bytearray()
        self._has_begun = self._has_failed = False
        self.is_stream = call.stream and status < 300
        self.media_type = translation.stream_type if self.is_stream else "application/json"

    def feed(self, chunk: bytes) -> bytes:
        """Return the bytes for the client that the next bytes of the server make."""
        if self._status >= 300:
            self._body += chunk[: MAX_WHOLE - len(self._body)]
            return b""
        return self._written(map(parsed, self._events.feed(chunk)))

    def end(self) -> bytes:
        """Return the last bytes of a stream."""
        written = self._written(map(parsed, self._events.rest()))
        if self._has_failed:
            return written
        if not self._has_begun:
            return written + self._begin() + self._writer.failure(UNREADABLE)
        written += self._writer.piece(self._reader.rest())
        if self._reader.error is not None:
            return written + self._writer.failure(self._reader.error)
        end = self._reader.end()
        return written + (self._writer.failure(BROKE_OFF) if end is None else self._writer.end(end))

    def whole(self) -> tuple[int, bytes]:
        """Return status and body of a reply that is not streamed."""
        if self._status >= 300:
            message = _failure_text(parsed(bytes(self._body)), bytes(self._body[:1000]))
            return self._status, self._error(self._status, message)
        self._written(map(parsed, self._events.rest()))
        if self._has_begun:
            self._writer.piece(self._reader.rest())
        if self._reader.error is not None:
            return 502, self._error(502, self._reader.error)
        end = self._reader.end()
        if end is None:
            return 502, self._error(502, BROKE_OFF if self._has_begun else UNREADABLE)
        return self._status, json.dumps(self._writer.whole(end)).encode()

    def _written(self, values: Iterable[Any]) -> bytes:
        """Return the bytes of events or of a whole reply; nothing after an error."""
        written = b""
        for value in _flattened(values):
            if self._has_failed:
                break
            piece = self._reader.read(value)
            if not self._has_begun:
                written += self._begin()
            if self._reader.error is not None:
                self._has_failed = True
                return written + self._writer.failure(self._reader.error)
            written += self._writer.piece(piece)
        return written

    def _begin(self) -> bytes:
        self._has_begun = True
        model = self._reader.model or self._call.model
        return self._writer.begin(self._reader.id or ids.new("chat"), model)

    def _error(self, status: int, message: str) -> bytes:
        return error_body(self._call.protocol.family, status, message)


def _flattened(values: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Yield the objects among `values` and in the lists among them."""
    for value in values:
        items = value if isinstance(value, list) else [value]
        yield from (item for item in items if isinstance(item, dict))


def _failure_text(value: Any, body: bytes) -> str:
    """Return the message in a server's error, or its text."""
    if isinstance(value, dict):
        return error_text(value.get("error") or value)
    return " ".join(body.decode("utf-8", "replace").split()) or UNREADABLE
