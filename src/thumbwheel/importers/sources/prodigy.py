"""Prodigy: annotated examples as `prodigy db-out` writes them, with `answer`: accept, reject or
ignore.

The fields of the example are columns of a table (`--column prompt=text`). Accepting an answer is a
thumb up, rejecting it a thumb down, and ignoring it is nobody's word. Where the example has a
label, people said whether the label is right: an accepted one counts by its word. Options that were
chosen between are refused, because they may be answers or labels.
"""

from __future__ import annotations

from typing import Any

from thumbwheel.importers.messages import is_chat
from thumbwheel.importers.record_table import RecordTable
from thumbwheel.importers.source import Row
from thumbwheel.importers.types import Unreadable

THUMBS = {"accept": True, "reject": False, "ignore": None}
EXAMPLE = (
    '{"prompt": "Open today?", "response": "Until six.", "_input_hash": 1, "_task_hash": 2, '
    '"answer": "accept"}'
)


def claims(row: Row) -> bool:
    """Return whether the row is an annotated example with a decision about it."""
    if is_chat(row.get("messages")) or is_chat(row.get("conversations")):
        return False  # training data, in which the decision is a mark
    if {"prompt", "completion"} <= row.keys() or {"instruction", "output"} <= row.keys():
        return False
    return "_task_hash" in row and _is_decision(row.get("answer"))


def _is_decision(value: Any) -> bool:
    return isinstance(value, str) and value in THUMBS


def rows_of(record: Row) -> list[dict[str, Any]]:
    """Return an example as the row of a table. Raises Unreadable for one without a decision."""
    decision, label = record.get("answer"), record.get("label")
    if not isinstance(decision, str) or decision not in THUMBS:
        raise Unreadable(f"answer {decision!r} is none of {', '.join(THUMBS)}")
    if record.get("options"):
        raise Unreadable(
            "its options may be answers or labels; write each as prompt, chosen and rejected, or "
            "as prompt, response and thumb"
        )
    thumb: Any = THUMBS[decision]
    if label is not None and decision == "reject":
        raise Unreadable(f"it rejects the label {label!r}, and nobody says which one is right")
    if label is not None and decision == "accept":
        thumb = label
    fields = {
        key: value
        for key, value in record.items()
        if not key.startswith("_") and key not in ("answer", "label")
    }
    about = {
        "rater": record.get("_annotator_id") or record.get("_session_id"),
        "occurred_at": record.get("_timestamp"),
    }
    return [{**fields, **about, "thumb": thumb}]


SOURCE = RecordTable.of(
    rows_of,
    claims,
    EXAMPLE,
    about="annotated examples of Prodigy",
    reason="an annotated example with what was decided about it",
)
"""The source."""
