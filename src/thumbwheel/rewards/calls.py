"""Parses tool calls, as models write them in text and as the steps of a run record them.

Formats: an object or a list as JSON (`name` with `arguments`, `parameters` or `input`; `function`
as OpenAI nests it, arguments as a text too; `tool_calls`; `{"name": {arguments}}`) and Python calls
(`[f(a=1), g.h(b=[2])]`). A call may be alone, in a code fence, in `<tool_call>` tags, or on a line
of its own. Nothing is ever run.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from thumbwheel.rewards.function import DEEPEST_JSON, Step

LONGEST, MOST_LINES, MOST_CALLS = 20_000, 400, 200
"""Characters of one piece that is parsed, lines that are tried, calls that are compared."""

TAG = re.compile(r"<(/?)(tool_call|function_call|tool|function)>")
FENCED = re.compile(r"^```[^\n`]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
ARGUMENTS = ("arguments", "parameters", "input", "args")
STRINGS = re.compile(
    r"'(?:[^'\\\n]++|\\.)*+(?:'|\\?(?:\n|\Z))|\"(?:[^\"\\\n]++|\\.)*+(?:\"|\\?(?:\n|\Z))"
)
"""Texts in JSON or Python; one that has no end on its line is no text of either."""
SIGNS = re.compile(r"[-+~.*/%]{40}|(?:not\s+){20}")
"""Runs that an honest call does not have and a parser has to descend for."""


@dataclass(frozen=True)
class Call:
    """A call of a tool, with its named and its positional arguments."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    positional: tuple[Any, ...] = ()


def calls_of_steps(steps: tuple[Step, ...]) -> list[Call]:
    """Return the calls that a run made, in order; also reads the live hook's `{"args",
    "kwargs"}`."""
    return [_of_input(step.name, step.input) for step in steps if step.kind == "tool" and step.name]


def _of_input(name: str, arguments: Any) -> Call:
    if (
        isinstance(arguments, Mapping)
        and set(arguments) == {"args", "kwargs"}
        and isinstance(arguments["kwargs"], Mapping)
    ):
        return Call(name, arguments["kwargs"], tuple(arguments["args"] or ()))
    return _call(name, arguments) or Call(name, {}, () if arguments is None else (arguments,))


def calls_of_text(text: str) -> list[Call] | None:
    """Return the calls written in an answer, in order, or None if none can be read."""
    tagged = _tagged(text)
    fenced = [] if tagged else [match[1] for match in FENCED.finditer(text)]
    lines = text.split("\n")[:MOST_LINES]
    for pieces in (tagged, fenced, [text], lines):
        calls: list[Call] = []
        for piece in pieces:
            calls += _read(piece.strip()) or ()
        if calls:
            return calls[:MOST_CALLS]
    return None


def _tagged(text: str) -> list[str]:
    """Return the texts between each opening tag and the next tag that closes it."""
    tags = list(TAG.finditer(text))
    last_ends = {tag[2]: tag.start() for tag in tags if tag[1]}
    pieces: list[str] = []
    opening: re.Match[str] | None = None
    for tag in tags:
        if opening is None:
            # one that is never closed is passed over, and what is behind it read
            if not tag[1] and last_ends.get(tag[2], -1) > tag.start():
                opening = tag
        elif tag[1] and tag[2] == opening[2]:
            pieces.append(text[opening.end() : tag.start()])
            opening = None
    return pieces


def _read(piece: str) -> list[Call] | None:
    if not piece or len(piece) > LONGEST or not _shallow(piece):
        return None
    return _json(piece) if piece[0] in "[{" and (_is_json(piece)) else _python(piece)


def _is_json(piece: str) -> bool:
    try:
        json.loads(piece)
    except (ValueError, RecursionError):
        return False
    return True


def _json(piece: str) -> list[Call] | None:
    return calls_of_value(json.loads(piece))


def calls_of_value(value: Any) -> list[Call] | None:
    """Return the calls that a JSON value spells, or None if it spells none."""
    if isinstance(value, list):
        calls: list[Call] = []
        for item in value:
            calls_of_item = calls_of_value(item)
            if calls_of_item is None:
                return None
            calls += calls_of_item
        return calls if value else None
    if not isinstance(value, Mapping):
        return None
    if isinstance(value.get("tool_calls"), list):
        return calls_of_value(value["tool_calls"])
    if isinstance(value.get("function"), Mapping):
        return calls_of_value(value["function"])
    call = _named(value)
    return None if call is None else [call]


def _named(value: Mapping[str, Any]) -> Call | None:
    name = value.get("name", value.get("function", value.get("tool")))
    if isinstance(name, str):
        key = next((key for key in ARGUMENTS if key in value), None)
        return _call(name, value[key] if key else {})
    if len(value) == 1:
        ((name, arguments),) = value.items()
        return Call(name, arguments) if isinstance(arguments, Mapping) else None
    return None


def _call(name: str, arguments: Any) -> Call | None:
    """Return a call with the arguments of an object or of a text that is one, or None for any other
    arguments."""
    if isinstance(arguments, str) and len(arguments) <= LONGEST and _shallow(arguments):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            return None
    return Call(name, arguments) if isinstance(arguments, Mapping) else None


def _python(piece: str) -> list[Call] | None:
    if "(" not in piece or SIGNS.search(piece):
        return None
    calls: list[Call] = []
    try:
        body = ast.parse(piece, mode="eval").body
        nodes = body.elts if isinstance(body, ast.List | ast.Tuple) else [body]
        for node in nodes:
            call = _of_node(node)
            if call is None:
                return None
            calls.append(call)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return calls or None


def _of_node(node: ast.expr) -> Call | None:
    if (
        not isinstance(node, ast.Call)
        or (name := _dotted(node.func)) is None
        or any(argument.arg is None for argument in node.keywords)
    ):
        return None
    return Call(
        name,
        {argument.arg or "": _value(argument.value) for argument in node.keywords},
        tuple(_value(argument) for argument in node.args),
    )


def _dotted(node: ast.expr) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def _value(node: ast.expr) -> Any:
    """Return a literal as JSON would have it, and the source text of anything else, because
    functions are often given formulas."""
    try:
        return _plain(ast.literal_eval(node))
    except (ValueError, TypeError, SyntaxError):
        return ast.unparse(node)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list | set | frozenset):
        return [_plain(item) for item in value]
    return (
        {str(key): _plain(item) for key, item in value.items()}
        if isinstance(value, dict)
        else value
    )


def _shallow(piece: str) -> bool:
    """Return whether brackets outside of strings nest no deeper than the limit."""
    return all(level <= DEEPEST_JSON for level in _levels(piece))


def _levels(piece: str) -> Iterator[int]:
    level = 0
    for character in STRINGS.sub("", piece):
        level += (character in "([{") - (character in ")]}")
        yield level
