"""The contract of a translation: which chat request a request is, and how a chat reply is written
in the client's API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic_core import from_json

from thumbwheel.core.errors import InputError
from thumbwheel.gateway.translation.chat_reply import ChatPiece, ReplyEnd


class ReplyWriter(Protocol):
    """Writes one reply. The bytes are those of a stream; a whole reply is made by the same calls,
    whose bytes nobody reads, and `whole` in the place of `end`."""

    def begin(self, id: str, model: str) -> bytes:
        """Write the head of the reply."""

    def piece(self, piece: ChatPiece) -> bytes:
        """Return the bytes that write a piece."""

    def end(self, end: ReplyEnd) -> bytes:
        """Write how it ended."""

    def whole(self, end: ReplyEnd) -> dict[str, Any]:
        """Return the object of a whole reply."""

    def failure(self, message: str) -> bytes:
        """Write that the reply broke off, and why."""


@dataclass(frozen=True)
class Translation:
    """How calls of an API are made of a server that speaks OpenAI's chat completions."""

    chat_fields: Callable[[Mapping[str, Any]], dict[str, Any]]
    """The fields of a chat request beside model, messages, tools and stream; raises InputError for
    a request that no chat request can express."""
    writer: Callable[[Mapping[str, Any]], ReplyWriter]
    """A new writer of the reply to this body."""
    stream_type: str = "text/event-stream"


@dataclass(frozen=True)
class EmbeddingTranslation:
    """How vectors of texts are asked of a server that speaks OpenAI's embeddings."""

    fields: Callable[[Mapping[str, Any]], dict[str, Any]]
    """The fields of the request beside the model; raises InputError."""
    reply: Callable[[str, list[list[float]], int | None], dict[str, Any]]
    """The object for the client: of the model, the vectors and the count of tokens."""


def untranslatable(name: str, why: str, fix: str) -> InputError:
    """Return the error for a field of a request that a chat request has no counterpart of."""
    return InputError(f"field {name!r}", why, fix)


def json_schema_format(schema: Any, name: Any = None, strict: Any = None) -> dict[str, Any]:
    """Return the `response_format` of a chat request for a JSON schema."""
    described: dict[str, Any] = {"name": name if isinstance(name, str) and name else "answer"}
    described["schema"] = schema
    if isinstance(strict, bool):
        described["strict"] = strict
    return {"type": "json_schema", "json_schema": described}


def arguments_object(text: str) -> dict[str, Any]:
    """Return a tool call's arguments for APIs that want an object. If the arguments were cut, for
    example by a token limit, return the fields that came; if they are no object, {}.

    >>> arguments_object('{"city": "Bern", "day": "Fri'), arguments_object("no JSON")
    ({'city': 'Bern'}, {})
    """
    try:
        value = from_json(text, allow_partial=True)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
