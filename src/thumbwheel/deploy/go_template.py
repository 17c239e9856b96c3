"""Renders the part of Go's text/template that a chat loop needs: text, `.Content`, `eq` on `.Role`
and a variable, if/else, and range over `.Messages`.

That is enough to check a template before a server gets it. Anything else is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from thumbwheel.core.errors import InputError

ACTION = re.compile(r"\{\{ ((?:(?!\{\{ ).)*?) \}\}", re.DOTALL)
TEST = re.compile(r'if eq (\.Role|\$\w+) "(\w*)"')
SET = re.compile(r'(\$\w+) :?= (?:"(\w*)"|\.Role)')

Node = tuple[str, Any]


def literal(text: str) -> str:
    """Return a Go template that writes `text`: its braces are escaped."""
    return text.replace("{", '{{ "{" }}')


def render(template: str, messages: Sequence[Mapping[str, str]]) -> str:
    """Render `template` as Go does, with `messages` as `.Messages`. Raises InputError for anything
    that is not supported here."""
    parts = ACTION.split(template)
    # texts and actions alternate
    tokens = iter([(index % 2 == 1, part) for index, part in enumerate(parts)])
    nodes, _ = _parse(tokens)
    out: list[str] = []
    _run(nodes, messages, {}, {}, out)
    return "".join(out)


def _parse(tokens: Iterator[tuple[bool, str]]) -> tuple[list[Node], str]:
    """Return (nodes up to the end of this block, the action that ended it)."""
    nodes: list[Node] = []
    for action, text in tokens:
        if not action:
            nodes.append(("text", text))
        elif text == "end" or text.startswith("else"):
            return nodes, text
        elif text.startswith("if "):
            nodes.append(("if", _branches(text, tokens)))
        elif text == "range .Messages":
            nodes.append(("range", _parse(tokens)[0]))
        else:
            nodes.append(("do", text))
    return nodes, ""


def _branches(test: str, tokens: Iterator[tuple[bool, str]]) -> list[tuple[str, list[Node]]]:
    branches = []
    while True:
        body, ended = _parse(tokens)
        branches.append((test, body))
        if not ended.startswith("else"):
            return branches
        test = ended.removeprefix("else").strip()


def _run(
    nodes: Sequence[Node],
    messages: Sequence[Mapping[str, str]],
    names: dict[str, str],
    dot: Mapping[str, str],
    out: list[str],
) -> None:
    for kind, what in nodes:
        if kind == "text":
            out.append(what)
        elif kind == "range":
            for message in messages:
                _run(what, messages, names, message, out)
        elif kind == "if":
            chosen: list[Node] = next((body for test, body in what if _holds(test, names, dot)), [])
            _run(chosen, messages, names, dot, out)
        else:
            out.append(_do(what, names, dot))


def _holds(test: str, names: Mapping[str, str], dot: Mapping[str, str]) -> bool:
    if not test:
        return True
    if not (match := TEST.fullmatch(test)):
        raise _unknown(test)
    name, value = match.groups()
    return (dot["role"] if name == ".Role" else names[name]) == value


def _do(action: str, names: dict[str, str], dot: Mapping[str, str]) -> str:
    if action == ".Content":
        return dot["content"]
    if action == '"{"':
        return "{"
    if match := SET.fullmatch(action):
        names[match[1]] = dot["role"] if match[2] is None else match[2]
        return ""
    raise _unknown(action)


def _unknown(action: str) -> InputError:
    return InputError(
        f"Go template action {action!r}",
        "only what chat templates are written with here is known",
        "Derive the template anew",
    )
