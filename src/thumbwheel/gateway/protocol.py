"""What a protocol is: how a request says what is asked, and how the bytes of a reply say what was
answered.

Pure functions over bytes and JSON values, without input or output. Nothing here raises for what a
stranger sent: what cannot be understood is left out, what is too long is cut, and the reply says
so. The protocols themselves are in `protocols/`, one file each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from thumbwheel.gateway.event_stream import ReplyEvents, Unpacker, looked_up, parsed
from thumbwheel.gateway.reply_draft import (
    MAX_ERROR,
    CallReply,
    ReplyDraft,
    error_text,
)
from thumbwheel.gateway.request_body import with_model
from thumbwheel.gateway.translation.translation import (
    EmbeddingTranslation,
    Translation,
)
from thumbwheel.importers.recordable import BoundedCopier, clipped, storable
from thumbwheel.models.types import Family

Headers = Mapping[str, str]
"""Names in lower case."""

MAX_WHOLE = 16 << 20
"""Bytes of a reply that is not streamed which are held for reading."""
KEEP_ALIVES = (b"", b"null", b"{}", b"ping", b"pong", b"keep-alive", b"keepalive", b"heartbeat")
"""Data of events that only keep a connection open, in small letters."""


@dataclass(frozen=True)
class Conversation:
    """What the model was shown, as our chat messages and OpenAI's tool definitions."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    truncated: bool
    """Whether it was too long to be recorded whole."""


@dataclass(frozen=True)
class CallContext:
    """Whose call it is and what it belongs to, from its headers and its body."""

    agent: str | None = None
    """As a header names it; the gateway knows it by path, key or model otherwise."""
    session: str | None = None
    subject: str | None = None
    parent: str | None = None
    """The trace that this call is a part of."""
    feedback_id: str | None = None
    """The name under which the app will give feedback; it becomes the id of the trace."""
    metadata: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class CallRequest:
    """A request, read as far as routing needs it; conversation and sampling are read when the call
    is recorded."""

    protocol: Protocol
    body: Mapping[str, Any]
    model: str
    """As it was asked for; empty where the request names none."""
    stream: bool
    context: CallContext

    def with_model(self, raw: bytes, model: str, extra: Mapping[str, Any] | None = None) -> bytes:
        """Return `raw`, the bytes of this request's body, with another model and the fields
        `extra`; all else stays as the client wrote it. Raises InputError if it is no JSON
        object."""
        if self.protocol.keeps_model:
            return raw
        return with_model(raw, self.body, model, extra or {})

    def reply_reader(self, status: int = 200, headers: Headers | None = None) -> ReplyReader:
        """Return a reader for the reply with this status and these headers."""
        return ReplyReader(self, status, headers or {})

    @property
    def messages(self) -> list[dict[str, Any]]:
        """What the model was shown, as our chat messages; never empty."""
        return self.conversation.messages

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools that the model was offered, as OpenAI defines them."""
        return self.conversation.tools

    @cached_property
    def conversation(self) -> Conversation:
        """Messages and tools."""
        recorder = BoundedCopier()
        messages = self.protocol.messages(self.body, recorder)
        tools = self.protocol.tools(self.body, recorder)
        # an import takes no empty conversation
        messages = messages or [{"role": "user", "content": ""}]
        return Conversation(messages, tools, recorder.truncated)

    @cached_property
    def sampling(self) -> dict[str, Any]:
        """The parameters that shape the answer, under their own names."""
        recorder = BoundedCopier(characters=20_000, values=2_000)
        return dict(recorder.value(self.protocol.sampling(self.body)))


Add = Callable[[ReplyDraft, Mapping[str, Any]], None]
"""Adds to a draft what an event or an object says."""


def by_type(events: Mapping[str, Add]) -> Add:
    """Return a function that adds an event by its `type` and ignores types that are not in
    `events`."""

    def add_event(draft: ReplyDraft, value: Mapping[str, Any]) -> None:
        kind = value.get("type")
        add = events.get(kind) if isinstance(kind, str) else None
        if add is not None:
            add(draft, value)

    return add_event


@dataclass(frozen=True)
class Protocol:
    """One way in which models are called over HTTP."""

    name: str
    family: Family
    path: str
    """Of its requests, all of which are POST."""
    messages: Callable[[Mapping[str, Any], BoundedCopier], list[dict[str, Any]]]
    tools: Callable[[Mapping[str, Any], BoundedCopier], list[dict[str, Any]]]
    sampling: Callable[[Mapping[str, Any]], dict[str, Any]]
    context: Callable[[Mapping[str, Any], Headers], CallContext]
    event: Add
    """Adds what one event of a streamed reply says."""
    whole: Add
    """Adds what the object of a whole reply says."""
    reply_keys: tuple[str, ...] = ()
    """Where set, a whole reply is not parsed: only the values of these keys are looked up in it,
    because the rest is large and not recorded."""
    streams_unasked: bool = False
    """Whether a request that does not say `stream` is streamed."""
    step_kind: Literal["llm", "task"] = "llm"
    is_recorded: bool = True
    is_counted: bool = True
    """True where a model computes something, for which budgets are charged."""
    keeps_model: bool = False
    """Whether the request's model is no name of an agent, and goes on as it is."""
    shown_fields: tuple[str, ...] = ()
    """The fields of a request that a chat template shows the model. A request whose client rendered
    the prompt itself has none."""
    translation: Translation | EmbeddingTranslation | None = None
    """How it is spoken with a server that speaks OpenAI's chat completions and embeddings."""
    answer: Callable[[CallRequest], dict[str, Any]] | None = None
    """What is answered here where the model's server is of another family."""

    def request(self, body: Mapping[str, Any], headers: Headers) -> CallRequest:
        """Build the request from `body` and `headers`."""
        model = body.get("model")
        stream = body.get("stream")
        return CallRequest(
            protocol=self,
            body=body,
            model=storable(model) if isinstance(model, str) else "",
            stream=stream if isinstance(stream, bool) else self.streams_unasked,
            context=self.context(body, headers),
        )


def no_tools(body: Mapping[str, Any], recorder: BoundedCopier) -> list[dict[str, Any]]:
    """Return an empty list: the protocol has no tools."""
    return []


class ReplyReader:
    """Reads a reply while its bytes pass: `feed` each piece, then `finish`.

    The pieces may be cut anywhere. The cost of a piece is that of parsing its events.
    """

    def __init__(self, call: CallRequest, status: int, headers: Headers) -> None:
        self._protocol = call.protocol
        self._status = status
        self._draft = ReplyDraft(call.body)
        self._body = bytearray()
        self._first_event: Mapping[str, Any] | None = None
        self._event_count = 0
        self._is_body_truncated = self._is_done = False
        self._unpacker, self._problem = _unpacker(headers.get("content-encoding", ""))
        is_stream = _is_stream(call, status, headers.get("content-type", ""))
        self._events = ReplyEvents() if is_stream else None

    @property
    def has_token(self) -> bool:
        """Whether a first piece of the answer has come: text, reasoning or a tool call."""
        return self._draft.has_token

    def feed(self, chunk: bytes) -> None:
        """Read the next bytes of the reply's body."""
        if self._problem is not None:
            return
        if self._unpacker is None:
            self._read(chunk)
            return
        for piece in self._unpacker.feed(chunk):
            self._read(piece)
        self._problem = self._unpacker.problem

    def finish(self, cause: str | None = None) -> CallReply:
        """Return the reply as far as it came. `cause` is why it ended early: CLIENT_LEFT, or a
        message about the upstream."""
        draft = self._draft
        if self._events is not None:
            self._finish_stream(self._events, cause)
        elif self._problem is None:
            self._finish_whole(cause)
        if self._problem is not None:
            draft.problem = draft.problem or self._problem
        is_answer = self._protocol.is_recorded and self._protocol.step_kind == "llm"
        if is_answer and draft.ended and draft.is_blank:
            draft.doubt = draft.doubt or "it holds no answer that can be read"
        draft.truncated = draft.truncated or self._is_body_truncated
        return draft.reply(cause)

    def _read(self, piece: bytes) -> None:
        if self._events is not None:
            for data in self._events.feed(piece):
                self._event(data)
            return
        room = MAX_WHOLE - len(self._body)
        self._body += piece[:room]
        if len(piece) > room:
            self._is_body_truncated = True

    def _event(self, data: bytes) -> None:
        if self._is_done:
            return
        text = data.strip()
        if text.strip(b'"').upper() == b"[DONE]":
            self._draft.ended = self._is_done = True
            return
        value = parsed(data, "surrogateescape")
        values = value if isinstance(value, list) else [value]
        if not all(isinstance(item, dict) for item in values):
            if text.lower() not in KEEP_ALIVES:
                self._draft.doubt = self._draft.doubt or "an event of its stream is no JSON object"
            return
        for item in values:
            self._add_event(item)

    def _add_event(self, value: dict[str, Any]) -> None:
        self._draft.begin_event()
        self._event_count += 1
        self._first_event = value if self._event_count == 1 else None
        error = value.get("error") or (value if value.get("type") == "error" else None)
        if error:
            self._draft.error = self._draft.error or error_text(error)
        self._protocol.event(self._draft, value)

    def _finish_stream(self, events: ReplyEvents, cause: str | None) -> None:
        """Read the end of a stream, which may be all of it: a whole reply in one event."""
        draft = self._draft
        for data in events.rest():
            self._event(data)
        draft.truncated = draft.truncated or events.truncated
        if self._first_event is not None and draft.says_nothing and draft.error is None:
            self._protocol.whole(draft, self._first_event)
            draft.ended = draft.ended or not draft.is_blank
        if not (self._event_count or self._is_done or cause) and events.has_bytes:
            draft.problem = draft.problem or "it holds neither events nor a JSON object"

    def _finish_whole(self, cause: str | None) -> None:
        draft = self._draft
        body = bytes(self._body)
        keys = self._protocol.reply_keys if self._status < 300 else ()
        value = looked_up(body, keys) if keys else parsed(body, "surrogateescape")
        if self._status >= 300:
            text = " ".join(body[:100_000].decode("utf-8", "replace").split())
            if isinstance(value, dict):
                text = error_text(value.get("error") or value)
            draft.error = f"HTTP {self._status}: {clipped(text, MAX_ERROR)}"
        elif isinstance(value, dict):
            if value.get("error"):
                draft.error = error_text(value["error"])
            self._protocol.whole(draft, value)
            draft.ended = draft.error is None
        elif self._is_body_truncated:
            draft.problem = f"its body is longer than the {MAX_WHOLE:,} bytes that are read"
        else:
            events = ReplyEvents()  # of a server that streams where nobody asked for it
            for data in events.feed(body):
                self._event(data)
            self._finish_stream(events, cause)


def _is_stream(call: CallRequest, status: int, content_type: str) -> bool:
    """Return whether the body is a stream of events: by its content type, else by the request."""
    if status >= 300:
        return False
    if "event-stream" in content_type or "ndjson" in content_type:
        return True
    return call.stream and "json" not in content_type


def _unpacker(encoding: str) -> tuple[Unpacker | None, str | None]:
    """Return (unpacker, problem) for bodies of this encoding: no unpacker for plain bodies, a
    problem for encodings that cannot be read."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return None, None
    if name in ("gzip", "x-gzip", "deflate"):
        return Unpacker(), None
    return None, f"its content-encoding {storable(encoding[:40])!r} is not read here"
