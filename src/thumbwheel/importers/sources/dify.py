"""Dify: the feedback of an app as its console exports it (CSV, or JSON with `feedback_data`).

A row is a question with its answer, the thumb of the person who asked or of the team, and the
comment. Dify cuts answers after 500 characters: such a row is refused, because nobody may learn
half an answer. Messages of Dify's API are a table (`columns.py`), whose answers are whole.
"""

from __future__ import annotations

from typing import Any

from thumbwheel.importers.record_table import RecordTable
from thumbwheel.importers.source import Row
from thumbwheel.importers.types import Unreadable

LOG = frozenset({"user_query", "ai_response", "feedback_rating"})
CUT, LONGEST = "...", 500
"""How a cut answer ends, and the characters before that."""
EXAMPLE = (
    '{"feedback_id": "f1", "conversation_id": "c1", "message_id": "m1", "user_query": "Open?", '
    '"ai_response": "Until six.", "feedback_rating": "👍", "feedback_rating_raw": "like", '
    '"feedback_comment": "", "feedback_date": "2026-01-05 09:00:00", "from_end_user_id": "u1"}'
)


def claims(row: Row) -> bool:
    """Return whether the row is a rated message of a Dify app."""
    return row.keys() >= LOG


def rows_of(record: Row) -> list[dict[str, Any]]:
    """Return a rated message as the row of a table. Raises Unreadable for an answer that was
    cut."""
    answer = record.get("ai_response")
    if isinstance(answer, str) and len(answer) == LONGEST + len(CUT) and answer.endswith(CUT):
        raise Unreadable(
            f"its answer was cut after {LONGEST} characters; read the message by Dify's API "
            "(GET /v1/messages), and import that file as a table"
        )
    rating = record.get("feedback_rating_raw") or record.get("feedback_rating")
    return [
        {
            "prompt": record.get("user_query"),
            "response": answer,
            "thumb": rating,
            "comment": record.get("feedback_comment") or None,
            "rater": record.get("from_end_user_id") or record.get("from_account_name"),
            "session": record.get("conversation_id"),
            "id": record.get("message_id"),
            "occurred_at": record.get("feedback_date"),
        }
    ]


SOURCE = RecordTable.of(
    rows_of,
    claims,
    EXAMPLE,
    about="the feedback of a Dify app, as its console exports it",
    reason="a rated message of a Dify app",
)
"""The source."""
