"""Reading a row of somebody else's: typed access that says in words what is wrong, and the shapes
in which chats are written.

Every function raises Unreadable and nothing else, whatever it is given. Lives here: what several
sources need. Not here: a format.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from thumbwheel.capture.json_text import value_in
from thumbwheel.capture.types import ROLES, Unreadable

Messages = list[dict[str, Any]]
DEEPEST = 50
"""Levels of JSON in JSON, or of one shape in another, that are opened."""
LATEST = 1e11
"""Seconds since 1970 are less."""
_COUNTED = re.compile(r"\d{10}(\.\d+)?|\d{13}|\d{16}|\d{19}")
_NAMES = {
    "human": "user",
    "gpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "ai": "assistant",
}
"""Roles by other names."""


def clip(value: Any) -> str:
    """`value` in a few letters, for a reason."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def text_at(row: Mapping[str, Any], key: str) -> str:
    """The text at `key`, which has to be there."""
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise Unreadable(
            f"{key} {clip(value)} is no text" if key in row else f"key {key!r} is missing"
        )
    return value


def answer_at(row: Mapping[str, Any], key: str) -> str:
    """The text at `key`, which has to be there and may be empty: a model that said nothing gave an
    answer too."""
    value = row.get(key)
    if isinstance(value, str):
        return value
    return text_at(row, key)


def object_at(row: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The object at `key`; {} where it is absent or null."""
    value = row.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Unreadable(f"{key} {clip(value)} is no object")
    return value


def list_at(row: Mapping[str, Any], key: str) -> list[Any]:
    """The list at `key`; [] where it is absent or null."""
    value = row.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise Unreadable(f"{key} {clip(value)} is no list")
    return value


def objects_at(row: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """The list of objects at `key`; [] where it is absent or null."""
    found = list_at(row, key)
    if bad := [one for one in found if not isinstance(one, dict)]:
        raise Unreadable(f"{key} holds {clip(bad[0])}, which is no object")
    return found


def number_of(value: Any, what: str) -> float:
    """A number, also written as text."""
    try:
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float | str)
            or not math.isfinite(float(value))
        ):
            raise ValueError
    except (ValueError, OverflowError):
        raise Unreadable(f"{what} {clip(value)} is no number") from None
    return float(value) if isinstance(value, str) else value


def name_of(value: Any) -> str | None:
    """An id as text; None where there is none."""
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise Unreadable(f"{clip(value)} is no id")
    return str(value)


def moment(value: Any) -> datetime | str | None:
    """A time: seconds since 1970, or thousandths, millionths or billionths of them, also as text;
    other texts are left to be read later.

    >>> [str(moment(one)) for one in (1767600000, "1767600000", 1767600000123, 1767600000123456789)]
    ['2026-01-05 08:00:00+00:00', '2026-01-05 08:00:00+00:00', '2026-01-05 08:00:00.123000+00:00',
    '2026-01-05 08:00:00.123457+00:00']
    """
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise Unreadable(f"{clip(value)} is no time")
    if isinstance(value, str) and not _COUNTED.fullmatch(value.strip()):
        return value
    seconds = float(value)
    while seconds > LATEST:
        seconds /= 1000
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        raise Unreadable(f"{clip(value)} is no possible time") from None


def unpacked(value: Any) -> Any:
    """`value`, or what it holds where it is JSON in a text (and that again)."""
    for _ in range(3):
        if not isinstance(value, str) or not value.lstrip().startswith(("{", "[", '"')):
            break
        opened = value_in(value)
        if opened is value:
            break
        value = opened
    return value


def said(content: Any, depth: int = 0) -> str | None:
    """The text of a message's content, of its parts, or of what a model's API wrapped it in; None
    where there is none."""
    if isinstance(content, str) or content is None:
        return content
    if depth > DEEPEST:
        raise Unreadable("it is nested too deeply")
    if isinstance(content, list):
        texts = [text for part in content if (text := said(part, depth + 1)) is not None]
        return "".join(texts) if texts else None
    if isinstance(content, dict):
        for key in ("text", "content", "parts", "message"):
            if (
                isinstance(content.get(key), str | list | dict)
                and (text := said(content[key], depth + 1)) is not None
            ):
                return text
    return None


def is_chat(value: Any) -> bool:
    """Whether `value` is a list of messages, whatever their dialect."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(one, dict) and ("role" in one or "from" in one) for one in value)
    )


def chat(value: Iterable[Mapping[str, Any]]) -> Messages:
    """Messages of any dialect in the one of this project: a role, a text, and tool calls where
    there are some."""
    found = []
    for message in value:
        role = message.get("role", message.get("from"))
        role = _NAMES.get(role, role) if isinstance(role, str) else role
        if role not in ROLES:
            raise Unreadable(f"role {clip(role)} is none of {', '.join(ROLES)}")
        content = next(
            (message[key] for key in ("content", "parts", "value") if message.get(key) is not None),
            None,
        )
        text = said(content)
        kept = {
            key: message[key] for key in ("name", "tool_calls", "tool_call_id") if message.get(key)
        }
        if (
            isinstance(message.get("function_call"), dict) and "tool_calls" not in kept
        ):  # their older form
            kept["tool_calls"] = [{"type": "function", "function": message["function_call"]}]
        found.append(
            {"role": role, "content": text if text is not None or kept.get("tool_calls") else ""}
            | kept
        )
    return found


def split_answer(messages: Messages, what: str) -> tuple[Messages, str]:
    """(what came before, the text of the last message, which has to be the assistant's)."""
    if (
        len(messages) < 2
        or messages[-1].get("role") != "assistant"
        or not isinstance(messages[-1].get("content"), str)
    ):
        raise Unreadable(f"{what} does not end in a text of the assistant after a question")
    return messages[:-1], messages[-1]["content"]
