"""Messages of Open WebUI as the model was shown them and as it wrote them.

Open WebUI keeps what a model thought, the tools that it called and the code that it ran in blocks
of the answer (`<details type="reasoning">`), since 0.10 also as items beside it (`output`). Lives
here: taking a turn apart. Not here: who rated it (`sources/openwebui.py`).
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from thumbwheel.importers.assistant_turn import AssistantTurn, ToolUse
from thumbwheel.importers.chat_messages import without_data
from thumbwheel.importers.fields import content_text, unpacked
from thumbwheel.importers.messages import Messages, converted
from thumbwheel.importers.thoughts import without_thoughts
from thumbwheel.importers.types import Unreadable

Row = Mapping[str, Any]
KINDS = frozenset({"reasoning", "tool_calls", "code_interpreter"})
"""Types of the blocks that are no part of the answer."""
OPENED, CLOSED = "<details", "</details>"
_QUOTED = re.compile(r"^> ?", re.MULTILINE)
CODE = "code_interpreter"


def read_turn(message: Row, key: str = "content") -> AssistantTurn:
    """Return the assistant's turn, from the text at `key` and the items in `output`."""
    text = content_text(message.get(key)) or ""
    turn = _of_text(text)
    items = _of_items(message.get("output"))
    if not turn.answer:
        # the text is in the items alone
        return items if items.answer or not turn.parts else turn
    has_call = any(isinstance(part, ToolUse) for part in turn.parts)
    if not has_call:
        calls = [part for part in items.parts if isinstance(part, ToolUse)]
        turn.parts = [*calls, *turn.parts]
    turn.thoughts = turn.thoughts or items.thoughts
    return turn


def user_message(message: Row) -> Messages:
    """Return a message of the user, or of the system, with its files; [] if it is empty."""
    parts: list[dict[str, Any]] = []
    files = message.get("files")
    parts += [_file_part(file) for file in _objects(files)]
    content = message.get("content")
    if parts:
        content = [*(content if isinstance(content, list) else [content or ""]), *parts]
    if not content:
        return []
    return converted({"role": message.get("role"), "content": content})


def _file_part(file: Row) -> dict[str, Any]:
    """Return a picture as a part; for any other file only its name, because it is unknown what of
    it was shown."""
    url = file.get("url")
    is_image = file.get("type") == "image" or str(file.get("content_type")).startswith("image/")
    if is_image and isinstance(url, str):
        return dict(without_data({"type": "image_url", "image_url": {"url": url}}))
    return {"type": "file", "file": {"filename": str(file.get("name") or file.get("id") or "file")}}


@dataclass(frozen=True)
class _Block:
    """A block of a text: where it begins and ends, its attributes, and its body without summary."""

    start: int
    end: int
    attributes: dict[str, str]
    body: str


def _blocks(text: str) -> Iterator[_Block]:
    """Yield the blocks of KINDS. A block without an end goes to the end of the text. Raises
    Unreadable for a block of another type that Open WebUI wrote.

    It looks for fixed texts, each once, because a pattern over them takes time that grows with the
    square of a hostile text.
    """
    position = 0
    while (start := text.find(OPENED, position)) >= 0:
        tag_end = text.find(">", start)
        if tag_end < 0:
            return
        position = tag_end + 1
        attributes = _attributes(text[start + len(OPENED) : tag_end])
        if attributes.get("type") not in KINDS:
            if {"type", "done"} <= attributes.keys():  # of Open WebUI, not of the model
                raise Unreadable(
                    f"its text has a block of the type {attributes['type'][:40]!r}, of which "
                    "nobody knows whether the model wrote it"
                )
            continue
        body_end, end = _end_of_block(text, position)
        body = text[position:body_end]
        yield _Block(start, end, attributes, html.unescape(_without_summary(body)).strip())
        position = end


def _end_of_block(text: str, position: int) -> tuple[int, int]:
    """Return (end of the body, end of its block) for the body that begins at `position`; it may
    contain other blocks."""
    depth = 1
    body_end = text.find(CLOSED, position)
    while body_end >= 0:
        opening = text.find(OPENED, position, body_end)
        if opening >= 0:
            depth += 1
            position = opening + len(OPENED)
            continue
        depth -= 1
        position = body_end + len(CLOSED)
        if depth == 0:
            return body_end, position
        body_end = text.find(CLOSED, position)
    return len(text), len(text)


def _attributes(tag: str) -> dict[str, str]:
    """Return the attributes of a tag; their values are in quotes."""
    parts = tag.split('"')
    attributes = {}
    for before, value in zip(parts[::2], parts[1::2], strict=False):
        words = before.removesuffix("=").split()
        if before.endswith("=") and words:
            attributes[words[-1]] = html.unescape(value)
    return attributes


def _without_summary(body: str) -> str:
    before, opening, rest = body.partition("<summary>")
    _, closing, after = rest.partition("</summary>")
    return before.rstrip() + after if opening and closing else body


def _of_text(text: str) -> AssistantTurn:
    turn = AssistantTurn()
    position = 0
    for block in _blocks(text):
        _add_text(turn, text[position : block.start])
        position = block.end
        attributes, body = block.attributes, block.body
        if attributes.get("type") == "reasoning":
            turn.thoughts.append(_QUOTED.sub("", body).strip())
        elif attributes.get("type") == CODE:
            code = _QUOTED.sub("", body).strip()
            result = unpacked(attributes.get("output"))
            turn.parts.append(ToolUse(f"call_{len(turn.parts)}", CODE, {"code": code}, result))
        else:
            turn.parts.append(
                ToolUse(
                    attributes.get("id") or f"call_{len(turn.parts)}",
                    attributes.get("name") or "tool",
                    unpacked(attributes.get("arguments") or "{}"),
                    unpacked(attributes.get("result")),
                )
            )
    _add_text(turn, text[position:])
    turn.thoughts = [thought for thought in turn.thoughts if thought]
    return turn


def _add_text(turn: AssistantTurn, text: str) -> None:
    thought, text = without_thoughts(text)
    if thought:
        turn.thoughts.append(thought)
    if text.strip():
        turn.parts.append(text.strip())


def _of_items(items: Any) -> AssistantTurn:
    """Return the turn in items of OpenAI's Responses API, which Open WebUI stores since 0.10."""
    turn = AssistantTurn()
    objects = list(_objects(items))
    results = {}
    for item in objects:
        if item.get("type") == "function_call_output":
            output = item.get("output")
            results[str(item.get("call_id"))] = content_text(output) if output else output
    for item in objects:
        kind = str(item.get("type")).rpartition(":")[2]
        if kind == "reasoning":
            thought = content_text(item.get("content")) or content_text(item.get("summary"))
            turn.thoughts += [thought] if thought else []
        elif kind == "message":
            _add_text(turn, content_text(item.get("content")) or "")
        elif kind == "function_call":
            call_id = str(item.get("call_id") or item.get("id") or f"call_{len(turn.parts)}")
            name, arguments = str(item.get("name") or "tool"), unpacked(item.get("arguments"))
            turn.parts.append(ToolUse(call_id, name, arguments or {}, results.get(call_id)))
        elif kind == CODE:
            code = {"code": str(item.get("code") or "")}
            result = item.get("output")
            turn.parts.append(ToolUse(f"call_{len(turn.parts)}", CODE, code, result))
    return turn


def _objects(value: Any) -> Iterator[Row]:
    for item in value if isinstance(value, list) else ():
        if isinstance(item, Mapping):
            yield item
