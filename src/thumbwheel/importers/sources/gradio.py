"""Gradio: the CSV log of flagged samples, and of liked and disliked messages of a chat
(`ChatInterface(flagging_mode="manual")`).

What was flagged is the thumb: Like, Dislike, incorrect, or what `--scale thumb=WORST:BEST` says of
other words. The labels of the inputs and outputs are columns of a table. A sample that was flagged
without a word is nobody's opinion.
"""

from __future__ import annotations

from typing import Any

from thumbwheel.importers.fields import unpacked
from thumbwheel.importers.messages import is_chat
from thumbwheel.importers.record_table import RecordTable
from thumbwheel.importers.source import Row
from thumbwheel.importers.types import Unreadable

LOG = frozenset({"flag", "username", "timestamp"})
CHAT = frozenset({"conversation", "index", "value"})
EXAMPLE = (
    '{"question": "Open?", "output": "Perhaps.", "flag": "incorrect", "username": "ann", '
    '"timestamp": "2026-01-05 09:00:00"}'
)


def claims(row: Row) -> bool:
    """Return whether the row is a sample with its flag, and who flagged it when."""
    return row.keys() >= LOG


def rows_of(record: Row) -> list[dict[str, Any]]:
    """Return a sample as the row of a table."""
    fields = {key: value for key, value in record.items() if key not in LOG}
    if record.keys() >= CHAT:
        fields = _turn(record)
    about = {"rater": record.get("username"), "occurred_at": record.get("timestamp")}
    return [{**fields, **about, "thumb": record.get("flag")}]


def _turn(record: Row) -> dict[str, Any]:
    """Return the question and the rated message of a chat. Raises Unreadable if the index names
    no message of the assistant."""
    messages, position = unpacked(record["conversation"]), unpacked(record["index"])
    if isinstance(position, str) and position.isdigit():
        position = int(position)
    if not is_chat(messages) or not isinstance(position, int) or not 0 < position < len(messages):
        raise Unreadable("its index is no message of its conversation")
    if messages[position].get("role") != "assistant":
        raise Unreadable(f"message {position} of its conversation is not the assistant's")
    return {"prompt": messages[:position], "response": messages[position]}


SOURCE = RecordTable.of(
    rows_of,
    claims,
    EXAMPLE,
    about="Gradio's log of flagged samples",
    reason="a sample with its flag, and who flagged it when",
)
"""The source."""
