"""Thoughts, text and tool calls in what a model writes.

Models write a tool call in the way in which they were trained: Qwen and Hermes as
`<tool_call>{json}</tool_call>`, Mistral as `[TOOL_CALLS][{json}]`, Llama as a bare JSON object. To
read another way, add it to `AnswerParser`. Text that only looks like a call stays text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from thumbwheel.core.written_calls import CLOSING as CALLED
from thumbwheel.core.written_calls import OPENING as CALL

THINK, THOUGHT = "<think>", "</think>"
CALL_LIST = "[TOOL_CALLS]"
_BETWEEN_CALLS = re.compile(r"[\s;,]*")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class Thought:
    """What a model thinks before its answer."""

    text: str


@dataclass(frozen=True)
class Text:
    """A part of the answer."""

    text: str


@dataclass(frozen=True)
class ParsedCall:
    """A whole tool call."""

    name: str
    arguments: str
    """JSON text."""


Part = Thought | Text | ParsedCall


class AnswerParser:
    """Reads an answer as it grows. Text that may become a mark is held until it is clear.

    `tools` are the names of the tools that the request offers: without any, no call is looked for.
    With `begins_with_thought` the prompt has opened the thoughts already.
    """

    def __init__(self, tools: Collection[str] = (), *, begins_with_thought: bool = False) -> None:
        self._tools = tools
        self._pending = ""
        self._read = self._thoughts if begins_with_thought else self._start
        self._searched = 0
        """Length of the pending text in which there is no end of a call."""
        self._has_text = self._has_calls = False

    def feed(self, text: str, last: bool = False) -> list[Part]:
        """Return the parts that are clear now; the whole rest if `last`."""
        self._pending += text
        parts: list[Part] = []
        while True:
            read = self._read
            parts += read(last)
            if self._read == read:
                return parts

    def _start(self, last: bool) -> Iterator[Part]:
        """Look for thoughts before all else."""
        begin = self._pending.lstrip()
        if begin.startswith(THINK):
            self._pending = begin.removeprefix(THINK)
            self._read = self._thoughts
        elif last or not THINK.startswith(begin):
            self._read = self._answer
        yield from ()

    def _thoughts(self, last: bool) -> Iterator[Part]:
        thought, mark, rest = self._pending.partition(THOUGHT)
        if mark:
            self._pending, self._read = rest, self._after_thoughts
        else:
            held = 0 if last else _mark_begun(thought, THOUGHT)
            thought, self._pending = _split(thought, held)
        if thought:
            yield Thought(thought)

    def _after_thoughts(self, last: bool) -> Iterator[Part]:
        """Skip the empty lines between thoughts and answer."""
        self._pending = self._pending.lstrip()
        if self._pending or last:
            self._read = self._answer
        yield from ()

    def _answer(self, last: bool) -> Iterator[Part]:
        if not self._tools:
            yield from self._text(self._pending)
            self._pending = ""
            return
        begin = self._pending.lstrip()
        if not self._has_text and not self._has_calls:
            is_bare = begin[:1] in ("{", "[") and not begin.startswith(CALL_LIST)
            if is_bare and (last or not CALL_LIST.startswith(begin)):
                self._read = self._bare_calls
                return
        calls = [(self._pending.find(mark), mark) for mark in (CALL, CALL_LIST)]
        starts = sorted(call for call in calls if call[0] >= 0)
        if starts:
            start, mark = starts[0]
            yield from self._text(self._pending[:start].rstrip())
            self._pending = self._pending[start:]
            self._read = self._marked_call if mark == CALL else self._call_list
            return
        # the space before a call is no text, and what comes is not known yet
        held = 0
        if not last:
            held = max(_mark_begun(self._pending, mark) for mark in (CALL, CALL_LIST))
            visible = self._pending[: len(self._pending) - held]
            held += len(visible) - len(visible.rstrip())
        text, self._pending = _split(self._pending, held)
        if last and self._has_calls:
            text = text.rstrip()
        yield from self._text(text)

    def _text(self, text: str) -> Iterator[Part]:
        if self._has_calls and not self._has_text:
            text = text.lstrip()
        if text:
            self._has_text = True
            yield Text(text)

    def _marked_call(self, last: bool) -> Iterator[Part]:
        end = self._pending.find(CALLED, self._searched)
        if end < 0 and not last:
            self._searched = max(len(self._pending) - len(CALLED), 0)
            return
        self._searched = 0
        whole = len(self._pending) if end < 0 else end + len(CALLED)
        text, self._pending = self._pending[:whole], self._pending[whole:]
        self._read = self._answer
        content = text.removeprefix(CALL).removesuffix(CALLED)
        yield from self._calls_or_text(content, text, None)

    def _call_list(self, last: bool) -> Iterator[Part]:
        """Read the list of calls after the mark; it is the rest of the answer."""
        if last:
            text, self._pending = self._pending, ""
            self._read = self._answer
            yield from self._calls_or_text(text.removeprefix(CALL_LIST), text, None)

    def _bare_calls(self, last: bool) -> Iterator[Part]:
        """Read an answer that is JSON, which may be calls of tools that are offered."""
        if last:
            text, self._pending = self._pending, ""
            self._read = self._answer
            yield from self._calls_or_text(text, text, self._tools)

    def _calls_or_text(
        self, content: str, text: str, names: Collection[str] | None
    ) -> Iterator[Part]:
        calls = calls_in(content, names)
        if calls:
            self._has_calls = True
            yield from calls
        else:
            self._has_text = True
            yield Text(text)


def calls_in(text: str, names: Collection[str] | None = None) -> list[ParsedCall]:
    """Return the calls that the JSON values of a text are; none if it holds anything else, or a
    call of none of the tools `names`.

    >>> calls_in('{"name": "move", "parameters": {"to": "A"}}', ["move"])
    [ParsedCall(name='move', arguments='{"to": "A"}')]
    >>> calls_in('{"name": "Ann"}', ["move"])
    []
    """
    calls: list[ParsedCall] = []
    position = _after_space(text, 0)
    while position < len(text):
        try:
            value, position = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            return []
        for entry in value if isinstance(value, list) else [value]:
            call = _call(entry)
            if call is None or (names is not None and call.name not in names):
                return []
            calls.append(call)
        position = _after_space(text, position)
    return calls


def _after_space(text: str, position: int) -> int:
    match = _BETWEEN_CALLS.match(text, position)
    return match.end() if match else position


def _call(value: Any) -> ParsedCall | None:
    """Return the call that an object is, with its arguments under either name."""
    if isinstance(value, dict) and isinstance(value.get("function"), dict):
        value = value["function"]
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters"))
    if not isinstance(arguments, dict):
        return None
    return ParsedCall(value["name"], json.dumps(arguments, ensure_ascii=False))


def _split(text: str, held: int) -> tuple[str, str]:
    """Return the text without its last `held` characters, and these."""
    end = len(text) - held
    return text[:end], text[end:]


def _mark_begun(text: str, mark: str) -> int:
    """Return how many characters at the end of a text may be the beginning of a mark.

    >>> _mark_begun("so </th", "</think>"), _mark_begun("so", "</think>")
    (4, 0)
    """
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:length]):
            return length
    return 0
