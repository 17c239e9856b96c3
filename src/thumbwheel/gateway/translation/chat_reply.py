"""A chat reply, whole or streamed, as pieces that a writer takes.

Nothing here raises for what a server sent: what cannot be understood is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from thumbwheel.gateway.openai_reply import (
    OTHER_ROLES,
    add_all_usage,
    add_llama_server,
    choices_of,
    content_text,
    stated_error,
    thoughts_of,
)
from thumbwheel.gateway.pieced_text import ToolCallDraft
from thumbwheel.gateway.reply_draft import ReplyDraft, Usage, arguments_text, error_text
from thumbwheel.importers.chat_messages import objects


@dataclass(frozen=True)
class CallPiece:
    """More of a tool call. `number` counts the calls of a reply from 0; the first piece of a call
    has its name."""

    number: int
    id: str
    name: str
    arguments: str
    """More of the arguments, as JSON text."""


@dataclass(frozen=True)
class ChatPiece:
    """New parts of a reply, in the order in which a model writes them."""

    reasoning: str = ""
    text: str = ""
    calls: tuple[CallPiece, ...] = ()
    logprobs: tuple[Mapping[str, Any], ...] = ()
    """Of the tokens of `text`, as OpenAI writes them."""


@dataclass(frozen=True)
class ReplyEnd:
    """How a reply ended."""

    finish_reason: str
    """In OpenAI's words: stop, length, tool_calls or content_filter."""
    stop_text: str | None
    """The stop text at which it ended, where the server names it."""
    usage: Usage


CONTRADICTION = "the arguments of a tool call came in pieces that contradict each other"


@dataclass
class _WrittenCall:
    """How much of a tool call the client has."""

    call: ToolCallDraft
    number: int | None = None
    """None until it has begun."""
    pending: str = ""
    """Arguments that are not written yet."""
    length: int = 0
    """Characters of its arguments that are written."""
    is_held: bool = False
    """Whether the pieces are not simply parts of an object: then the rest is written at the end."""

    def news(self) -> str:
        """Return the arguments to write now; nothing before a name and the beginning of an
        object."""
        start = self.pending.lstrip()
        is_object = self.length > 0 or start.startswith("{")
        self.is_held = self.is_held or (bool(start) and not is_object)
        # some servers begin with an empty object, and send the whole later
        is_empty = not start or (self.length == 0 and start.rstrip() == "{}")
        if self.is_held or is_empty or not self.call.name:
            return ""
        news, self.pending = self.pending, ""
        return news

    def rest(self) -> str | None:
        """Return the arguments that are left at the end; None if they contradict those that were
        written."""
        pieces = self.call.pieces.joined()
        arguments = self.call.arguments() if pieces.strip() else ""
        return arguments[self.length :] if arguments.startswith(pieces[: self.length]) else None


class ChatReplyReader:
    """Reads the events of a streamed chat reply, or the object of a whole one. The first of several
    answers counts. `request` is the body of the client's request."""

    def __init__(self, request: Mapping[str, Any] | None = None) -> None:
        self._draft = ReplyDraft(request)
        self._calls: dict[int, _WrittenCall] = {}
        """By id() of the call."""
        self._begun = 0
        """How many calls the client knows."""
        self._has_text = self._has_reasoning = False
        self._stop_text: str | None = None
        self.error: str | None = None
        """What the server reported in place of the rest."""

    @property
    def id(self) -> str | None:
        """The server's name of the reply."""
        return self._draft.id

    @property
    def model(self) -> str | None:
        """The model that answers, by the server's word."""
        return self._draft.served_model

    def read(self, value: Mapping[str, Any]) -> ChatPiece:
        """Return the news of an event or a whole reply."""
        error = stated_error(value)
        if error:
            self.error = self.error or error_text(error)
        self._draft.add_head(value)
        if "timings" in value:
            add_llama_server(self._draft, value)
        add_all_usage(self._draft, value)
        for index, choice in choices_of(value):
            if index == 0:
                return self._choice(choice)
        return ChatPiece()

    def rest(self) -> ChatPiece:
        """Return what was held back until the end."""
        pieces = []
        for written in self._calls.values():
            arguments = written.rest()
            if arguments is None:
                self.error = self.error or CONTRADICTION
            elif written.call.name and (arguments or written.number is None):
                pieces.append(self._piece(written, arguments))
        return ChatPiece(calls=tuple(pieces))

    def end(self) -> ReplyEnd | None:
        """Return how the reply ended; None for one that did not come to its end."""
        reason = self._draft.finish_reason
        if reason is None:
            return None
        if reason == "stop" and self._begun:
            reason = "tool_calls"  # some servers say so of calls, too
        return ReplyEnd(reason, self._stop_text, self._draft.usage)

    def _choice(self, choice: Mapping[str, Any]) -> ChatPiece:
        self._draft.finish(choice.get("finish_reason"))
        self.error = self.error or self._draft.error
        if isinstance(choice.get("stop_reason"), str):
            self._stop_text = choice["stop_reason"]
        logprobs = choice.get("logprobs")
        entries = logprobs.get("content") if isinstance(logprobs, Mapping) else None
        piece = ChatPiece(logprobs=tuple(objects(entries)))
        for name in ("delta", "message"):
            message = choice.get(name)
            if isinstance(message, Mapping):
                piece = self._with_message(piece, message, is_whole=name == "message")
        return piece

    def _with_message(
        self, piece: ChatPiece, message: Mapping[str, Any], *, is_whole: bool
    ) -> ChatPiece:
        """Return the piece with the parts of a message. A whole message at the end of a stream
        repeats what came before: it adds the parts that are missing."""
        if not self._draft.is_answer(message.get("role"), OTHER_ROLES):
            return piece
        contents = (content_text(message.get(key)) for key in ("content", "refusal"))
        text = "".join(content for content in contents if content)
        if text and not (is_whole and self._has_text):
            self._has_text = True
            piece = replace(piece, text=piece.text + text)
        thoughts = thoughts_of(message)
        if thoughts and not (is_whole and self._has_reasoning):
            self._has_reasoning = True
            piece = replace(piece, reasoning=piece.reasoning + thoughts)
        if not (is_whole and self._calls):
            calls = tuple(self._new_calls(message, is_whole=is_whole))
            piece = replace(piece, calls=piece.calls + calls)
        return piece

    def _new_calls(self, message: Mapping[str, Any], *, is_whole: bool) -> Iterator[CallPiece]:
        calls = message.get("tool_calls")
        for call in objects([calls] if isinstance(calls, Mapping) else calls):
            function = call.get("function")
            if not isinstance(function, Mapping):
                function = call
            names = (call.get("id"), function.get("name"))
            if is_whole:
                draft = self._draft.tool_call(*names)
            else:
                draft = self._draft.streamed_call(call.get("index"), *names)
            if draft is None:
                continue
            written = self._calls.get(id(draft))
            if written is None:
                for earlier in self._calls.values():  # their names are whole now
                    if earlier.number is None and earlier.call.name:
                        yield self._piece(earlier, "")
                written = self._calls[id(draft)] = _WrittenCall(draft)
            arguments = arguments_text(function.get("arguments"))
            written.is_held = written.is_held or draft.pieces.is_repeated_by(arguments)
            self._draft.add_arguments(draft, arguments)
            written.pending += "" if written.is_held else arguments
            news = written.news()
            if news:
                yield self._piece(written, news)

    def _piece(self, written: _WrittenCall, arguments: str) -> CallPiece:
        """Return a piece with these arguments; the first one of a call counts it."""
        if written.number is None:
            written.number = self._begun
            self._begun += 1
        written.length += len(arguments)
        call = written.call
        return CallPiece(written.number, call.id or f"call_{written.number}", call.name, arguments)


def server_sent_event(value: Mapping[str, Any], name: str | None = None) -> bytes:
    """Return the bytes of an event.

    >>> server_sent_event({"type": "ping"}, "ping")
    b'event: ping\\ndata: {"type": "ping"}\\n\\n'
    """
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(value)}\n\n".encode()
