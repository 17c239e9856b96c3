"""Calls of tools in the text of an answer, in the form of Hermes and Qwen, which models of other
families are asked for too: <tool_call>{"name": ..., "arguments": {...}}</tool_call>.

An answer of a dataset is a text. One that is a call is written so, and `prompt.py` renders it as
the chat template does. Reading what a served model writes is in `deploy/answer_parser.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

OPENING, CLOSING = "<tool_call>", "</tool_call>"


class WrittenAnswer(NamedTuple):
    """What an answer says, and the calls that it ends in: name and arguments of each."""

    content: str
    calls: list[dict[str, Any]]

    def message(self) -> dict[str, Any]:
        """Return the answer as a chat template takes it."""
        tool_calls = [
            {"id": f"call{index:05}", "type": "function", "function": dict(call)}
            for index, call in enumerate(self.calls)
        ]
        return {"role": "assistant", "content": self.content, "tool_calls": tool_calls}


def write_answer(content: str | None, calls: Sequence[Mapping[str, Any]]) -> str:
    """Write an answer with these calls, in the form of OpenAI, as one text.

    >>> call = {"function": {"name": "hours", "arguments": '{"day": 1}'}}
    >>> write_answer("", [call])
    '<tool_call>\\n{"name": "hours", "arguments": {"day": 1}}\\n</tool_call>'
    """
    parts = [content.strip()] if content and content.strip() else []
    for call in calls:
        function = call.get("function", call)
        arguments = _opened(function.get("arguments"))
        text = json.dumps(
            {"name": function.get("name"), "arguments": arguments}, ensure_ascii=False
        )
        parts.append(f"{OPENING}\n{text}\n{CLOSING}")
    return "\n".join(parts)


def _opened(arguments: Any) -> Any:
    """Return arguments as an object if they are one, also as JSON text; missing arguments become an
    empty object."""
    if arguments is None or arguments == "":
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def read_answer(text: str) -> WrittenAnswer | None:
    """Return what a text says and the calls that it ends in; None where it ends in none, or a block
    is no JSON of a call.

    >>> read_answer('Let me see. <tool_call>{"name": "hours"}</tool_call>')
    WrittenAnswer(content='Let me see.', calls=[{'name': 'hours', 'arguments': {}}])
    """
    before, mark, left = text.partition(OPENING)
    calls = []
    while mark:
        block, end, left = left.partition(CLOSING)
        call = _call_in(block) if end else None
        if call is None:
            return None
        calls.append(call)
        between, mark, left = left.partition(OPENING)
        if between.strip():
            return None
    return WrittenAnswer(before.strip(), calls) if calls else None


def _call_in(block: str) -> dict[str, Any] | None:
    try:
        value = json.loads(block)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    return {"name": value["name"], "arguments": value.get("arguments", value.get("parameters", {}))}
