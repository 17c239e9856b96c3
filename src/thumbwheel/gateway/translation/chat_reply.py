"""A chat reply, whole or streamed, as pieces that a writer takes.

Nothing here raises for what a server sent: what cannot be understood is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from thumbwheel.gateway.openai_reply import REASONING, add_llama_server, add_usage
from thumbwheel.gateway.reply_draft import ReplyDraft, ToolCallDraft, Usage, error_text
from thumbwheel.importers.chat_messages import json_text, objects


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


class ChatReplyReader:
    """Reads the events of a streamed chat reply, or the object of a whole one. The first of several
    answers counts."""

    def __init__(self) -> None:
        self._draft = ReplyDraft()
        self._numbers: dict[int, int] = {}
        """id() of a call that has begun -> its number."""
        self._nameless: dict[int, list[str]] = {}
        """id() of a call without a name so far -> its arguments."""
        self._calls: list[ToolCallDraft] = []
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
        if value.get("error"):
            self.error = self.error or error_text(value["error"])
        self._draft.add_head(value)
        if "timings" in value:
            add_llama_server(self._draft, value)
        add_usage(self._draft, value.get("usage"))
        for choice in objects(value.get("choices")):
            if choice.get("index", 0) == 0:
                return self._choice(choice)
        return ChatPiece()

    def end(self) -> ReplyEnd | None:
        """Return how the reply ended; None for one that did not come to its end."""
        reason = self._draft.finish_reason
        if reason is None:
            return None
        if self._numbers and reason == "stop":
            reason = "tool_calls"  # some servers say so of calls, too
        return ReplyEnd(reason, self._stop_text, self._draft.usage)

    def _choice(self, choice: Mapping[str, Any]) -> ChatPiece:
        self._draft.finish(choice.get("finish_reason"))
        if isinstance(choice.get("stop_reason"), str):
            self._stop_text = choice["stop_reason"]
        whole = choice.get("message")
        message = whole if isinstance(whole, Mapping) else choice.get("delta")
        if not isinstance(message, Mapping):
            message = {}
        logprobs = choice.get("logprobs")
        entries = logprobs.get("content") if isinstance(logprobs, Mapping) else None
        return ChatPiece(
            reasoning=_reasoning(message),
            text=_text(message.get("content")) + _text(message.get("refusal")),
            calls=tuple(self._new_calls(message, is_whole=message is whole)),
            logprobs=tuple(objects(entries)),
        )

    def _new_calls(self, message: Mapping[str, Any], *, is_whole: bool) -> Iterator[CallPiece]:
        for call in objects(message.get("tool_calls")):
            function = call.get("function")
            if not isinstance(function, Mapping):
                function = {}
            names = (call.get("id"), function.get("name"))
            if is_whole:
                draft = self._draft.tool_call(*names)
            else:
                draft = self._draft.streamed_call(call.get("index"), *names)
            if draft is None:
                continue
            arguments = function.get("arguments")
            if arguments is None:
                arguments = ""
            elif not isinstance(arguments, str):
                arguments = json_text(arguments)
            self._draft.add_arguments(draft, arguments)
            yield from self._call_piece(draft, arguments)

    def _call_piece(self, draft: ToolCallDraft, arguments: str) -> Iterator[CallPiece]:
        """Yield the piece once the call has a name: no API begins a call without one."""
        key = id(draft)
        if key not in self._numbers:
            if not draft.name:
                self._nameless.setdefault(key, []).append(arguments)
                return
            arguments = "".join(self._nameless.pop(key, [])) + arguments
            self._numbers[key] = len(self._calls)
            self._calls.append(draft)
        number = self._numbers[key]
        yield CallPiece(number, draft.id or f"call_{number}", draft.name, arguments)


def _reasoning(message: Mapping[str, Any]) -> str:
    for key in REASONING:
        if isinstance(message.get(key), str) and message[key]:
            return str(message[key])
    return ""


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(_text(part.get("text")) for part in objects(content))
    return content if isinstance(content, str) else ""


def server_sent_event(value: Mapping[str, Any], name: str | None = None) -> bytes:
    """Return the bytes of an event.

    >>> server_sent_event({"type": "ping"}, "ping")
    b'event: ping\\ndata: {"type": "ping"}\\n\\n'
    """
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(value)}\n\n".encode()
