"""Splits control tokens in the texts of a call, so that a model's server reads them as text.

llama-server, vLLM and Ollama tokenize the rendered prompt as one text: a user who writes the mark
that ends a turn would end it. The record keeps what the client wrote.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from thumbwheel.core.errors import InputError
from thumbwheel.gateway.protocol import CallRequest
from thumbwheel.gateway.reply_draft import parsed_arguments
from thumbwheel.gateway.routing import Upstream

ARGUMENTS = "arguments"
"""Where a message has the arguments of a call."""


@lru_cache(maxsize=64)
def _first_character(control_tokens: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern that matches the first character of every control token, also of one that
    begins inside another."""
    # by their first two characters: a hundred tokens that begin alike are tried only there
    endings: dict[str, list[str]] = defaultdict(list)
    for token in control_tokens:
        endings[token[:2]].append(re.escape(token[2:]))
    tokens = [f"{re.escape(start)}(?:{'|'.join(rest)})" for start, rest in endings.items()]
    return re.compile(f"(?=(?:{'|'.join(tokens)})).", re.DOTALL)


def _part_text(part: Any) -> str | None:
    """Return the text of a part of a content; None if it has none."""
    text = part.get("text") if isinstance(part, dict) else part
    return text if isinstance(text, str) else None


def _arguments(value: dict[str, Any]) -> dict[str, Any] | None:
    """Return the arguments of a call that are JSON text, which a server reads before it shows them;
    None if there are none."""
    text = value.get(ARGUMENTS)
    arguments = parsed_arguments(text) if isinstance(text, str) else None
    return arguments if isinstance(arguments, dict) else None


def _texts(value: Any) -> Iterator[str]:
    """Yield the strings of a JSON value, also the keys, and the texts of lists of parts, which a
    template may write one after the other. The value may be nested to any depth."""
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            yield part
        elif isinstance(part, dict):
            yield from part
            waiting.extend(part.values())
            waiting.append(_arguments(part))
        elif isinstance(part, list):
            waiting.extend(part)
            yield "".join(filter(None, map(_part_text, part)))


@dataclass(frozen=True)
class _Splitter:
    """Puts the separator behind the first character of every control token."""

    first_character: re.Pattern[str]
    separator: str

    def occurs_in(self, value: Any) -> bool:
        """Return whether a control token is in a JSON value."""
        return any(self.first_character.search(text) for text in _texts(value))

    def split(self, text: str) -> str:
        """Return the text with its control tokens split."""
        return self.first_character.sub(lambda match: match[0] + self.separator, text)

    def split_parts(self, parts: list[Any]) -> None:
        """Split the control tokens that begin in one part and end in another."""
        texts = [_part_text(part) or "" for part in parts]
        ends = (match.end() for match in self.first_character.finditer("".join(texts)))
        next_end = next(ends, None)
        begin = 0  # of the part in all texts
        for number, text in enumerate(texts):
            pieces = []
            cut = 0
            while next_end is not None and next_end <= begin + len(text):
                pieces.append(text[cut : next_end - begin])
                cut = next_end - begin
                next_end = next(ends, None)
            begin += len(text)
            if pieces:
                split_text = self.separator.join([*pieces, text[cut:]])
                if isinstance(parts[number], str):
                    parts[number] = split_text
                else:
                    parts[number]["text"] = split_text

    def split_in_place(self, holder: list[Any]) -> None:
        """Split the control tokens in all strings of a JSON value."""
        waiting: list[Any] = [holder]
        while waiting:
            part = waiting.pop()
            if isinstance(part, list):
                self.split_parts(part)
                members: list[tuple[Any, Any]] = list(enumerate(part))
            else:
                arguments = _arguments(part)
                if arguments is not None and self.occurs_in(arguments):
                    self.split_in_place([arguments])
                    part[ARGUMENTS] = json.dumps(arguments, ensure_ascii=False)
                members = list(part.items())
                part.clear()
            for key, member in members:
                new_key = self.split(key) if isinstance(key, str) else key
                part[new_key] = self.split(member) if isinstance(member, str) else member
                if isinstance(member, dict | list):
                    waiting.append(member)


def split_control_tokens(value: Any, upstream: Upstream) -> Any:
    """Return `value` (JSON) with every control token of the upstream in its strings split; `value`
    itself if there is none. Raises InputError for a value that is nested too deeply to be
    copied."""
    splitter = _Splitter(_first_character(upstream.control_tokens), upstream.separator)
    if not splitter.occurs_in(value):
        return value
    try:
        holder = [json.loads(json.dumps(value))]
        splitter.split_in_place(holder)
    except RecursionError:
        raise InputError("the request", "it is nested too deeply", "Send a flatter one") from None
    return holder[0]


def fields_as_text(call: CallRequest, upstream: Upstream) -> dict[str, Any]:
    """Return the fields of the request that show the model a control token of the upstream, with
    these split. Raises InputError as `split_control_tokens`."""
    # Ollama's `raw`: the client has rendered the prompt
    if not upstream.control_tokens or call.body.get("raw") is True:
        return {}
    fields = {}
    for name in call.protocol.shown_fields:
        value = call.body.get(name)
        text = split_control_tokens(value, upstream)
        if text is not value:
            fields[name] = text
    return fields
