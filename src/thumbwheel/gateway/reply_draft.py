"""A reply while it is put together from what its events say.

Texts are appended to buffers, token ids and log-probabilities to arrays, so that a long stream
takes the memory of its text and no more. What is kept is bounded. Not here: what an event of a
protocol means (`protocols/`).
"""

from __future__ import annotations

import json
import math
import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO
from typing import Any, TypeGuard

from thumbwheel.importers.recordable import clipped, name_of, storable

MAX_TEXT = 600_000
"""Characters of answer, reasoning and tool arguments together that are kept of one reply."""
MAX_ERROR = 500
"""Characters of a server's error that are kept."""
MAX_TOKENS = 131_072
MAX_TOOL_CALLS = 256
MAX_CHOICES = 128
MAX_TOKEN_ID = 2**31 - 1
CLIENT_LEFT = "the client left"
"""The cause of a reply that ended because nobody listened any more; the call counts as cancelled,
not as failed."""
_WORD = 32
"""Characters of a finish reason."""

FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "completed": "stop",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "refusal": "content_filter",
}
"""Other APIs' reasons for the end of an answer, in OpenAI's words, which are the stored ones."""
_TOKEN_ID = re.compile(r"token_id:(\d{1,10})")


@dataclass(frozen=True)
class Usage:
    """Token counts as the server told them; None where it did not."""

    prompt: int | None = None
    """All tokens of the prompt, those from a cache included."""
    completion: int | None = None
    """All tokens of the answer, reasoning included."""
    cached: int | None = None
    reasoning: int | None = None


@dataclass(frozen=True)
class CallReply:
    """What a model answered."""

    text: str | None
    """None where no text came at all, as in an answer of tool calls."""
    reasoning: str | None
    tool_calls: list[dict[str, Any]]
    """As OpenAI writes them: id, type, function with name and arguments as JSON text."""
    alternatives: list[str]
    """The texts of the further answers, where several were asked for."""
    finish_reason: str | None
    usage: Usage
    id: str | None
    served_model: str | None
    token_ids: list[int] | None
    token_logprobs: list[float] | None
    error: str | None
    """What the server reported as an error, or why its reply ended too early."""
    problem: str | None
    """Why the reply could not be read, although it may be a good one."""
    complete: bool
    """Whether the answer came to its end and all of it is here."""
    truncated: bool
    """Whether it was too long to be kept whole."""
    cancelled: bool
    """Whether the client left before its end."""


class ToolCallDraft:
    """A tool call whose arguments come in pieces."""

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments = StringIO()
        self.is_text = False
        """Whether the tool takes any text, and no JSON."""


def _is_name(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and bool(value)


def _opens_another(call: ToolCallDraft, id: Any, name: Any, is_elsewhere: bool) -> bool:
    """Return whether a piece with this id and name begins another call than `call`; `is_elsewhere`
    if it has another index. Some servers give all calls one id."""
    if _is_name(id) and call.id:
        is_whole = is_elsewhere and _is_name(name) and is_json(call.arguments.getvalue())
        return id != call.id or is_whole
    if not _is_name(name) or not call.name:
        return False
    return name != call.name or is_json(call.arguments.getvalue())


def is_json(text: str) -> bool:
    """Return whether a text is a whole JSON value.

    >>> is_json('{"day": "today"}'), is_json('{"day": '), is_json("")
    (True, False, False)
    """
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


class ReplyDraft:
    """What has come of a reply. `ended` and `error` are set by whoever reads it."""

    def __init__(self) -> None:
        self.ended = False
        """Whether the mark of its end has come."""
        self.error: str | None = None
        self.problem: str | None = None
        self.truncated = False
        self.has_token = False
        self.id: str | None = None
        self.served_model: str | None = None
        self.finish_reason: str | None = None
        self._room = MAX_TEXT
        self._cut_buffers: set[int] = set()
        self._texts: dict[int, StringIO] = {}
        self._reasoning = StringIO()
        self._tool_calls: list[ToolCallDraft] = []
        self._calls_by_key: dict[int, ToolCallDraft] = {}
        self._usage: dict[str, int] = {}
        self._token_ids = array("i")
        self._all_token_ids = array("i")
        self._logprobs = array("d")
        self._lacks_ids = self._lacks_logprobs = False

    @property
    def usage(self) -> Usage:
        """The token counts so far."""
        return Usage(**self._usage)

    @property
    def says_nothing(self) -> bool:
        """Whether neither a text nor a call has come yet."""
        return not self._tool_calls and not any(text.tell() for text in self._texts.values())

    def add_head(self, value: Mapping[str, Any]) -> None:
        """Set the reply's id and the model that answers, unless set; most events repeat them."""
        if self.id is None:
            self.id = name_of(value.get("id"))
        if self.served_model is None:
            self.served_model = name_of(value.get("model"))

    def add_text(self, text: Any, choice: Any = 0) -> None:
        """Add text to the answer; `choice` is its index if several were requested."""
        if not isinstance(text, str):
            return
        buffer = self._texts.get(choice) if isinstance(choice, int) else None
        if buffer is None:
            if not isinstance(choice, int) or len(self._texts) >= MAX_CHOICES:
                return
            buffer = self._texts[choice] = StringIO()
        if text:
            self._append(buffer, text)

    def add_reasoning(self, text: Any) -> None:
        """Add text to the model's reasoning."""
        if isinstance(text, str) and text:
            self._append(self._reasoning, text)

    def tool_call(self, id: Any = None, name: Any = None) -> ToolCallDraft | None:
        """Begin a tool call and return it; None if there are too many."""
        self.has_token = True
        if len(self._tool_calls) >= MAX_TOOL_CALLS:
            self.truncated = True
            return None
        call = ToolCallDraft()
        self._tool_calls.append(call)
        self._name_call(call, id, name)
        return call

    def streamed_call(self, key: Any, id: Any = None, name: Any = None) -> ToolCallDraft | None:
        """Return the tool call to which a piece of a stream belongs; None where there are too many.

        `key` is the piece's index. Servers leave it out, write null, count all calls as the first
        or a call's arguments apart from its head. So another id, or a name after arguments that
        are whole, opens a new call, and a piece without either belongs to the last one.
        """
        call = self._call_of_id(id)
        if call is None and type(key) is int:
            call = self._calls_by_key.get(key)
        if call is None and not _is_name(name) and not _is_name(id):
            call = self._tool_calls[-1] if self._tool_calls else None
        elif call is None and type(key) is not int:
            call = self._continued_call(id, name)
        is_elsewhere = type(key) is int and self._calls_by_key.get(key) is not call
        if call is not None and _opens_another(call, id, name, is_elsewhere):
            call = None
        if call is None:
            call = self.tool_call(id, name)
            if call is not None and type(key) is int:
                self._calls_by_key[key] = call
            return call
        self.has_token = True
        self._name_call(call, id, name)
        return call

    def _call_of_id(self, id: Any) -> ToolCallDraft | None:
        """Return the call of this id."""
        return next((call for call in self._tool_calls if _is_name(id) and call.id == id), None)

    def _continued_call(self, id: Any, name: Any) -> ToolCallDraft | None:
        """Return the last call where a piece without an index repeats its head."""
        last = self._tool_calls[-1] if self._tool_calls else None
        return last if last is not None and not _is_name(id) and last.name == name else None

    def _name_call(self, call: ToolCallDraft, id: Any, name: Any) -> None:
        if _is_name(id) and not call.id:
            call.id = self._short(id)
        if _is_name(name) and not call.name:
            call.name = self._short(name)

    def add_arguments(self, call: ToolCallDraft | None, arguments: Any) -> None:
        """Add to a call's arguments: JSON text, or a value, which is converted to it."""
        if call is None or arguments is None:
            return
        if not isinstance(arguments, str):
            try:
                arguments = json.dumps(arguments, ensure_ascii=False)
            except (ValueError, RecursionError):
                return
        self._append(call.arguments, arguments)

    def add_token(self, id: Any, logprob: Any) -> None:
        """Add a sampled token, with None for the parts that the server omits."""
        if len(self._token_ids) >= MAX_TOKENS or len(self._logprobs) >= MAX_TOKENS:
            self.truncated = True
            return
        self.add_token_id(id)
        if isinstance(logprob, int | float) and math.isfinite(logprob):
            self._logprobs.append(min(float(logprob), 0.0))
        else:
            self._lacks_logprobs = True

    def add_token_id(self, id: Any) -> None:
        """Add the id of a sampled token."""
        if type(id) is int and 0 <= id <= MAX_TOKEN_ID and len(self._token_ids) < MAX_TOKENS:
            self._token_ids.append(id)
        else:
            self._lacks_ids = True

    def add_logprobs(self, logprobs: Any, token_ids: Any = None) -> None:
        """Add the tokens of a choice's `logprobs` in OpenAI's old or new form; their ids may come
        separately."""
        ids = token_ids if isinstance(token_ids, list) else []
        if not isinstance(logprobs, dict):
            for id in ids:
                self.add_token_id(id)
            return
        content = logprobs.get("content")
        if isinstance(content, list):
            for index, entry in enumerate(content):
                if isinstance(entry, dict):
                    id = ids[index] if index < len(ids) else _id_of(entry)
                    self.add_token(id, entry.get("logprob"))
            return
        values = logprobs.get("token_logprobs")
        own_ids = logprobs.get("token_ids")
        ids = ids or (own_ids if isinstance(own_ids, list) else [])
        for index, logprob in enumerate(values if isinstance(values, list) else []):
            self.add_token(ids[index] if index < len(ids) else None, logprob)

    @property
    def has_tool_calls(self) -> bool:
        """Whether the model called a tool."""
        return bool(self._tool_calls)

    def set_token_ids(self, ids: Any) -> None:
        """Set the ids of all sampled tokens. A server may send them beside log-probabilities that
        lack some of the tokens."""
        if not isinstance(ids, list) or len(ids) > MAX_TOKENS:
            return
        if all(type(id) is int and 0 <= id <= MAX_TOKEN_ID for id in ids):
            self._all_token_ids = array("i", ids)

    def count(self, **counts: Any) -> None:
        """Set token counts by the names of Usage; later ones replace earlier ones."""
        for name, count in counts.items():
            if type(count) is int and 0 <= count < 2**31:
                self._usage[name] = count

    def finish(self, reason: Any) -> None:
        """Set the reason for which the answer ended."""
        if isinstance(reason, str) and reason:
            self.ended = True
            self.finish_reason = FINISH_REASONS.get(reason, storable(reason[:_WORD]))

    def reply(self, cause: str | None) -> CallReply:
        """Return the reply. `cause` is why it ended early, None if it ended by itself."""
        is_cut_off = not self.ended and self.error is None and self.problem is None
        error = self.error
        if is_cut_off:
            error = cause or "the upstream ended its reply before the answer was complete"
        token_ids, logprobs = self._tokens()
        problem = self.problem
        if self.ended and not all(self._is_whole(call) for call in self._tool_calls):
            problem = problem or "the arguments of a tool call are no JSON"
        return CallReply(
            text=self._text(0),
            reasoning=self._value(self._reasoning) or None,
            tool_calls=[self._call(call) for call in self._tool_calls],
            alternatives=[self._text(choice) or "" for choice in sorted(self._texts) if choice],
            finish_reason=self.finish_reason,
            usage=Usage(**self._usage),
            id=self.id,
            served_model=self.served_model,
            token_ids=token_ids,
            token_logprobs=logprobs,
            error=error,
            problem=problem,
            complete=self.ended and not error and not problem and not self.truncated,
            truncated=self.truncated,
            cancelled=is_cut_off and cause == CLIENT_LEFT,
        )

    def _call(self, draft: ToolCallDraft) -> dict[str, Any]:
        """Return a tool call in the form of OpenAI's messages; one without arguments has none by
        JSON, too."""
        arguments = self._value(draft.arguments)
        if not draft.is_text and not arguments.strip():
            arguments = "{}"
        function = {"name": storable(draft.name), "arguments": arguments}
        call = {"type": "function", "function": function}
        return {"id": storable(draft.id), **call} if draft.id else call

    def _is_whole(self, draft: ToolCallDraft) -> bool:
        """Return whether a call's arguments can be read, or were cut here."""
        text = draft.arguments.getvalue()
        is_cut = id(draft.arguments) in self._cut_buffers
        return draft.is_text or is_cut or not text.strip() or is_json(text)

    def _text(self, choice: int) -> str | None:
        buffer = self._texts.get(choice)
        return None if buffer is None else self._value(buffer)

    def _tokens(self) -> tuple[list[int] | None, list[float] | None]:
        """Return (ids, log-probabilities) of the sampled tokens, each None unless known for every
        token.

        llama-server omits log-probabilities of tokens that are only a part of a character. So ids
        count only if there are as many as the answer has tokens, if the server reports that number.
        """
        ids = None if self._lacks_ids else self._token_ids
        logprobs = None if self._lacks_logprobs else self._logprobs
        sampled = self._usage.get("completion")
        if self._all_token_ids:
            is_whole = self._token_ids == self._all_token_ids
            ids, logprobs = self._all_token_ids, logprobs if is_whole else None
        elif ids and sampled is not None and len(self._texts) <= 1 and len(ids) != sampled:
            ids = logprobs = None
        if ids and logprobs and len(ids) != len(logprobs):
            logprobs = None
        return ids.tolist() if ids else None, logprobs.tolist() if logprobs else None

    def _append(self, buffer: StringIO, text: str) -> None:
        self.has_token = True
        if len(text) > self._room:
            text = text[: self._room]
            self.truncated = True
            self._cut_buffers.add(id(buffer))
        self._room -= len(text)
        buffer.write(text)

    def _value(self, buffer: StringIO) -> str:
        """Return the text of a buffer, without a last word that was cut."""
        text = storable(buffer.getvalue())
        return clipped(f"{text}.", len(text)) if id(buffer) in self._cut_buffers else text

    def _short(self, text: str) -> str:
        if len(text) > 512:
            self.truncated = True
        return clipped(text, 512)


def _id_of(entry: Mapping[str, Any]) -> Any:
    """Return the token id in an entry of log-probabilities, or None: llama.cpp and Thumbwheel's
    server name it, vLLM writes it in place of the text on request."""
    if "id" in entry:
        return entry["id"]
    match = _TOKEN_ID.fullmatch(str(entry.get("token")))
    return int(match[1]) if match else None


def error_text(error: Any) -> str:
    """Return the message of an API's error object.

    >>> error_text({"message": "no such model", "type": "not_found_error"})
    'no such model'
    """
    if isinstance(error, dict):
        error = error.get("message") or error.get("type") or error.get("detail") or error
    return clipped(storable(str(error)), MAX_ERROR)
