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
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from thumbwheel.gateway.pieced_text import (
    PiecedText,
    ToolCallDraft,
    without_escapes,
)
from thumbwheel.importers.chat_messages import objects
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
LATE_TEXT = "text came after the end of the answer"
_WORD = 32
"""Characters of a finish reason."""

PAUSED = "pause_turn"
"""Anthropic's reason for an answer that goes on in the reply to the app's next call."""
FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    PAUSED: "stop",
    "completed": "stop",
    "complete": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "max_length": "length",
    "model_length": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "tool_call": "tool_calls",
    "function_call": "tool_calls",
    "refusal": "content_filter",
    "safety": "content_filter",
    "recitation": "content_filter",
}
"""Other APIs' reasons for the end of an answer in small letters, in OpenAI's words, which are the
stored ones."""
NO_REASONS = ("null", "none")
"""Texts that say that the answer has not ended."""
FAILURES = (
    "error",
    "failed",
    "abort",
    "aborted",
    "cancelled",
    "canceled",
    "network_error",
    "system_error",
)
"""Reasons with which servers say that the answer broke off."""
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


def _is_name(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and bool(value)


def _is_key(value: Any) -> TypeGuard[int | str]:
    return type(value) is int or _is_name(value)


def _opens_another(call: ToolCallDraft, id: Any, name: Any, is_elsewhere: bool) -> bool:
    """Return whether a piece with this id and name begins another call than `call`; `is_elsewhere`
    if it has another index. Some servers give all calls one id."""
    if not _is_name(name):
        return _is_name(id) and bool(call.id) and id != call.id
    is_whole = call.pieces.is_object()
    if _is_name(id) and call.id:
        return id != call.id or (is_elsewhere and is_whole)
    return bool(call.name) and (name != call.name or is_whole)


def _is_repeated(draft: ToolCallDraft, call: Mapping[str, Any]) -> bool:
    """Return whether a whole call is the one that came before; calls with other ids are not."""
    function, id = call.get("function"), call.get("id")
    if not isinstance(function, Mapping) or function.get("name") != draft.name:
        return False
    if _is_name(id) and draft.id and id != draft.id:
        return False
    text = arguments_text(function.get("arguments")) or "{}"
    return bool(parsed_arguments(text) == parsed_arguments(draft.arguments()))


def offered_tools(body: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the tools that a request of any API offers.

    >>> sorted(offered_tools({"tools": [{"function": {"name": "hours"}}, {"name": "parking"}]}))
    ['hours', 'parking']
    """
    names = set()
    for key in ("tools", "functions"):
        for tool in objects(body.get(key)):
            function = tool.get("function")
            holder = function if isinstance(function, Mapping) else tool
            if _is_name(holder.get("name")):
                names.add(holder["name"])
    return frozenset(names)


class ReplyDraft:
    """What has come of a reply. `ended` and `error` are set by whoever reads it. `request` is the
    body of the request, whose tools tell where a name that comes in pieces ends."""

    def __init__(self, request: Mapping[str, Any] | None = None) -> None:
        self._request = request or {}
        self.ended = False
        """Whether the mark of its end has come."""
        self.error: str | None = None
        self.problem: str | None = None
        self.doubt: str | None = None
        """Why the answer may be another than what can be read of it."""
        self.truncated = False
        self.has_token = False
        self.id: str | None = None
        self.served_model: str | None = None
        self.finish_reason: str | None = None
        self._room = MAX_TEXT
        self._role = ""
        self._is_late = False
        """Whether text came after the end of the answer."""
        self._texts: dict[int, PiecedText] = {}
        self._reasoning = PiecedText()
        self._tool_calls: list[ToolCallDraft] = []
        self._calls_by_key: dict[int | str, ToolCallDraft] = {}
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
        return not self._tool_calls and not any(self._texts.values())

    @property
    def is_blank(self) -> bool:
        """Whether nothing of an answer has come, not even an empty text."""
        return not (self._tool_calls or self._texts or self._reasoning or self.error)

    @property
    def has_text(self) -> bool:
        """Whether text of the answer has come."""
        return bool(self._texts.get(0))

    @property
    def has_reasoning(self) -> bool:
        """Whether thoughts have come."""
        return bool(self._reasoning)

    def begin_event(self) -> None:
        """Note that what follows belongs to another event."""
        if self._is_late:
            self.doubt = self.doubt or LATE_TEXT

    def add_head(self, value: Mapping[str, Any]) -> None:
        """Set the reply's id and the model that answers, unless set; most events repeat them."""
        if self.id is None:
            self.id = name_of(value.get("id"))
        if self.served_model is None:
            self.served_model = name_of(value.get("model"))

    def is_answer(self, role: Any, other_roles: Container[str]) -> bool:
        """Return whether a message is the model's: by its role, or by that of the last piece which
        named one. Servers that run tools show their results in the same stream."""
        if isinstance(role, str) and role:
            self._role = role.lower()
        is_answer = self._role not in other_roles
        if not is_answer and not self.says_nothing:
            self.doubt = (
                self.doubt or f"its stream holds messages of the role {self._role[:_WORD]!r}"
            )
        return is_answer

    def add_text(self, text: Any, choice: Any = 0) -> None:
        """Add text to the answer; `choice` is its index if several were requested."""
        if not isinstance(text, str):
            return
        draft = self._texts.get(choice) if isinstance(choice, int) else None
        if draft is None:
            if not isinstance(choice, int) or len(self._texts) >= MAX_CHOICES:
                return
            draft = self._texts[choice] = PiecedText()
        if text:
            self._is_late |= choice == 0 and self.finish_reason is not None
            self._append(draft, text)

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

        `key` is the piece's index, or the id of its item. Servers leave it out, write null, count
        all calls as the first or a call's arguments apart from its head. So another id, or a name
        after arguments that are whole, opens a new call, and a piece without either belongs to the
        last one. A name may come in pieces, too.
        """
        if isinstance(key, str) and key.isdecimal() and len(key) < 10:
            key = int(key)
        call = self.call_of_id(id)
        if call is None and _is_key(key):
            call = self._calls_by_key.get(key)
        last = self._tool_calls[-1] if self._tool_calls else None
        is_last = not _is_key(key) and last is not None and bool(last.name)
        if call is None and not _is_name(id) and (is_last or not _is_name(name)):
            call = last
        if call is not None and _is_name(name) and self._continues_name(call, id, name):
            self.has_token = True
            return call
        is_elsewhere = _is_key(key) and self._calls_by_key.get(key) is not call
        if call is not None and _opens_another(call, id, name, is_elsewhere):
            if not _is_name(id) and not len(call.pieces):
                self._doubt_names(call.name, name)
            call = None
        if call is None:
            call = self.tool_call(id, name)
            if call is not None and _is_key(key):
                self._calls_by_key[key] = call
            return call
        self.has_token = True
        self._name_call(call, id, name)
        return call

    def without_repeated(self, calls: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Return those of the calls at the end of a stream that have not come before. A model may
        make the same call twice, so each earlier call is repeated at most once."""
        earlier = list(self._tool_calls)
        new = []
        for call in calls:
            repeated = next((draft for draft in earlier if _is_repeated(draft, call)), None)
            if repeated is None:
                new.append(call)
            else:
                earlier.remove(repeated)
        return new

    def call_of_id(self, id: Any) -> ToolCallDraft | None:
        """Return the call of this id."""
        return next((call for call in self._tool_calls if _is_name(id) and call.id == id), None)

    def _continues_name(self, call: ToolCallDraft, id: Any, name: str) -> bool:
        """Add a piece of a call's name to it, and return True; False if the piece is no more of it.
        It is more of it if a tool was offered whose name begins so, or if it came with the call's
        id and before its arguments."""
        is_same = _is_name(id) and id == call.id
        if not call.name or len(call.pieces) or (_is_name(id) and call.id and not is_same):
            return False
        joined = call.name + name
        tools = offered_tools(self._request)
        is_offered = call.name in tools
        if any(tool.startswith(joined) for tool in tools) and not (is_offered and name in tools):
            call.name = self._short(joined)
            return True
        repeats = name.startswith(call.name)
        if repeats and any(tool.startswith(name) for tool in tools):
            if is_same or not is_offered:
                call.name = self._short(name)
            return is_same or not is_offered
        if is_same and name != call.name and not is_offered:
            call.name = self._short(name if repeats else joined)
            self.doubt = self.doubt or "the name of a tool call came in pieces, and none is offered"
            return True
        return False

    def note_provider_tool(self, name: Any) -> None:
        """Note that the model used a tool that ran at the provider; the record lacks its result."""
        self.doubt = self.doubt or (
            f"it used {name!r}, which runs at the provider, and the record lacks what it returned"
        )

    def _doubt_names(self, *names: Any) -> None:
        """Note that two names in a row, of which the first has no arguments and the second no id,
        may be one, unless both are names of offered tools."""
        if not offered_tools(self._request).issuperset(names):
            self.doubt = self.doubt or (
                f"the names {names[0]!r} and {names[1]!r} of its tool calls may be pieces of one, "
                "and no tool is offered that says so"
            )

    def _name_call(self, call: ToolCallDraft, id: Any, name: Any) -> None:
        if _is_name(id) and not call.id:
            call.id = self._short(id)
        if _is_name(name) and not call.name:
            call.name = self._short(name)

    def add_arguments(self, call: ToolCallDraft | None, arguments: Any) -> None:
        """Add to a call's arguments: JSON text, or a value, which is converted to it."""
        if call is not None and arguments is not None:
            self._append(call.pieces, arguments_text(arguments))

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
        """Set token counts by the names of Usage; later ones replace earlier ones, but a zero does
        not: some servers repeat the counts without them."""
        for name, count in counts.items():
            number = _count_of(count)
            if number is not None:
                self._usage[name] = number or self._usage.get(name, 0)

    def finish(self, reason: Any) -> None:
        """Set the reason for which the answer ended."""
        if not isinstance(reason, str) or not reason or reason.lower() in NO_REASONS:
            return
        self.ended = True
        self._is_late = False
        if reason.lower() in FAILURES:
            self.error = self.error or f"the upstream ended its reply with {reason.lower()!r}"
        if self.finish_reason == "length":
            return  # the answer was cut, whatever is said later
        word = storable(reason.lower()[:_WORD])
        if word == PAUSED:
            self.doubt = self.doubt or "the provider paused its turn, and the rest is missing"
        self.finish_reason = FINISH_REASONS.get(word, word)

    def reply(self, cause: str | None) -> CallReply:
        """Return the reply. `cause` is why it ended early, None if it ended by itself."""
        is_cut_off = not self.ended and self.error is None and self.problem is None
        error = self.error
        if is_cut_off:
            error = cause or "the upstream ended its reply before the answer was complete"
        token_ids, logprobs = self._tokens()
        texts = {choice: self._text(choice) for choice in sorted(self._texts)}
        reasoning = self._value(self._reasoning) or None
        tool_calls = [self._call(call) for call in self._tool_calls if not call.is_of_provider]
        problem = self.problem or (self._doubt() if self.ended else None)
        return CallReply(
            text=texts.get(0),
            reasoning=reasoning,
            tool_calls=tool_calls,
            alternatives=[text for choice, text in texts.items() if choice],
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

    def _doubt(self) -> str | None:
        """Return why the answer of a reply that came to its end may be another, else None."""
        if self.doubt is not None:
            return self.doubt
        if not all(call.is_whole() for call in self._tool_calls):
            return "the arguments of a tool call are no JSON object"
        if not all(call.name.strip() for call in self._tool_calls):
            return "a tool call has no name"
        if self.finish_reason == "tool_calls" and not self._tool_calls:
            return "it ends with tool calls, and none can be read"
        if self._is_late:
            return LATE_TEXT
        if self._texts and 0 not in self._texts and not self._tool_calls:
            return "no answer has the index 0"
        return None

    def _call(self, draft: ToolCallDraft) -> dict[str, Any]:
        """Return a tool call in the form of OpenAI's messages; one without arguments has none by
        JSON, too."""
        arguments = draft.arguments()
        if draft.pieces.is_cut:
            arguments = clipped(f"{arguments}.", len(arguments))
        function = {"name": storable(draft.name), "arguments": self._whole_text(arguments)}
        call = {"type": "function", "function": function}
        return {"id": storable(draft.id), **call} if draft.id else call

    def _text(self, choice: int) -> str:
        return self._value(self._texts[choice])

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

    def _append(self, draft: PiecedText, text: str) -> None:
        self.has_token = True
        if len(text) > self._room:
            text = text[: self._room]
            self.truncated = draft.is_cut = True
        self._room -= len(text)
        draft.write(text)

    def _value(self, draft: PiecedText) -> str:
        """Return the text of a draft, without a last word that was cut."""
        text = self._whole_text(draft.text())
        return clipped(f"{text}.", len(text)) if draft.is_cut else text

    def _whole_text(self, text: str) -> str:
        """Return a text as it can be stored. A part that is lost is noted."""
        text, is_lossy = without_escapes(text)
        if is_lossy:
            self.doubt = self.doubt or "its text is no UTF-8"
        return text

    def _short(self, text: str) -> str:
        if len(text) > 512:
            self.truncated = True
        return clipped(text, 512)


def arguments_text(arguments: Any) -> str:
    """Return a piece of a call's arguments as text.

    >>> arguments_text({"day": "today"}), arguments_text('{"day"'), arguments_text(None)
    ('{"day": "today"}', '{"day"', '')
    """
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    try:
        return json.dumps(arguments, ensure_ascii=False)
    except (ValueError, RecursionError):
        return ""


def parsed_arguments(text: str) -> Any:
    """Return the value of a call's arguments; the text itself if it is no JSON.

    >>> parsed_arguments('{"a":1}') == parsed_arguments('{ "a": 1 }'), parsed_arguments("{")
    (True, '{')
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _count_of(value: Any) -> int | None:
    """Return a count of tokens, which some servers write as 5.0 or as a text; None if it is none.

    >>> _count_of(5.0), _count_of("5"), _count_of(True)
    (5, 5, None)
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str) and value.isdecimal() and len(value) < 10:
        value = int(value)
    return value if type(value) is int and 0 <= value < 2**31 else None


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
