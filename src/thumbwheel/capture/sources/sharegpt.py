"""ShareGPT: conversations of `from` and `value` turns, as exported chats and many training sets
have them, with `system`, `tools`, and for preferences `chosen` and `rejected` (LLaMA-Factory).

Such a file says that the answers are good ones, and it is read so: the last answer becomes a trace
with the label good.
"""

from __future__ import annotations

from typing import Any

from thumbwheel.capture.fields import (
    Messages,
    chat,
    content_text,
    name_of,
    objects_at,
    split_answer,
    unpacked,
)
from thumbwheel.capture.pairs import pair_records
from thumbwheel.capture.source import JsonLines, Row
from thumbwheel.capture.types import AnyRecord, FeedbackRecord, TraceRecord, Unreadable

ROLES = {"function_call": "assistant", "observation": "tool", "tool_response": "tool"}
"""Speakers that are no roles -> the role that each of them has."""
USED = frozenset({"id", "conversations", "system", "tools", "chosen", "rejected"})
EXAMPLE = (
    '{"id": "c1", "conversations": [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": '
    '"4"}]}\n'
    '{"conversations": [{"from": "human", "value": "Hi"}], "chosen": {"from": "gpt", "value": '
    '"Hello!"}, "rejected": {"from": "gpt", "value": "What?"}}'
)


def claims(row: Row) -> bool:
    """A list `conversations` of turns."""
    turns = row.get("conversations")
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], dict):
        return False
    return bool({"from", "role"} & turns[0].keys())


def parse(row: dict[str, Any]) -> list[AnyRecord]:
    """A trace and its label, or two traces and the preference."""
    messages = _messages(objects_at(row, "conversations"))
    if row.get("system") and messages and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": content_text(row["system"])}, *messages]
    metadata = {key: value for key, value in row.items() if key not in USED and value is not None}
    tools = unpacked(row.get("tools"))
    if isinstance(tools, list) and tools:
        metadata["tools"] = tools
    if "chosen" in row or "rejected" in row:
        answers = _answer(row, "chosen"), _answer(row, "rejected")
        return pair_records(messages, answers, [(None, [[0], [1]])], {}, metadata=metadata or None)
    while messages and messages[-1]["role"] != "assistant":
        messages = messages[:-1]
    if not messages:
        raise Unreadable("its conversation holds no answer of the assistant")
    prompt, answer = split_answer(messages, "the conversation")
    fields = {"id": name_of(row.get("id")), "input": prompt, "output": answer}
    trace = TraceRecord.model_validate({**fields, "metadata": metadata or None})
    label = FeedbackRecord(kind="label", name="good", value=True, targets=[trace.as_target()])
    return [trace, label]


def _messages(turns: list[dict[str, Any]]) -> Messages:
    messages = []
    for turn in turns:
        speaker = turn.get("from", turn.get("role"))
        message = {**turn, "role": ROLES.get(str(speaker), speaker)}
        message.pop("from", None)
        messages += chat([message])
    return messages


def _answer(row: Row, key: str) -> str:
    turn = row.get(key)
    messages = _messages([turn]) if isinstance(turn, dict) else []
    if messages and isinstance(messages[0]["content"], str):
        return messages[0]["content"]
    raise Unreadable(f"{key} is not one turn of the assistant")


SOURCE = JsonLines(
    parse, claims, EXAMPLE, about="conversations of from and value turns, also with chosen/rejected"
)
"""The source."""
