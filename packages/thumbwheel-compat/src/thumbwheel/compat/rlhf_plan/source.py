"""Lines of a FeedbackCollector: query, response, feedback_type, rating, correction, timestamp,
metadata; null is "not given".

A thumb, a rating and a correction of one line are three signals of their own: a missing rating is
no opinion, never a bad one, and a correction is the better answer, never a bad label alone. Times
may be written with a space and without a zone (then UTC).

`collect(..., **metadata)` takes anything: `user_id` in the metadata is who judged, and whose data
it is; `session_id` is the session. Other keys of a line are kept in the metadata of the trace.
"""

from __future__ import annotations

from typing import Any

from thumbwheel.importers.fields import name_of, object_at
from thumbwheel.importers.source import JsonLines, Row
from thumbwheel.importers.types import AnyRecord, FeedbackRecord, TraceRecord, Unreadable

KEYS = ("query", "response", "feedback_type", "rating", "correction", "timestamp", "metadata")
TYPES = ("thumbs_up", "thumbs_down", "rating", "correction")
EXAMPLE = (
    '{"query": "Opening hours?", "response": "Nine to five.", "feedback_type": "thumbs_up", '
    '"rating": null, "correction": null,'
    ' "timestamp": "2026-01-05 09:12:44.120000", "metadata": {}}'
)


def claims(row: Row) -> bool:
    """Return whether the row has a query and the kind of its feedback."""
    return {"query", "feedback_type"} <= row.keys()


def parse(row: dict[str, Any]) -> list[AnyRecord]:
    """Return one trace and its signals."""
    metadata = object_at(row, "metadata")
    user, session = name_of(metadata.get("user_id")), name_of(metadata.get("session_id"))
    further = {key: value for key, value in row.items() if key not in KEYS and value is not None}
    fields = {
        "input": row.get("query"),
        "output": row.get("response"),
        "session": session,
        "subject": user,
        "occurred_at": row.get("timestamp"),
        "metadata": further | metadata or None,
    }
    trace = TraceRecord.model_validate(fields)
    if user:
        # the time is that of the feedback: somebody who thinks again means the same answer, and the
        # last word counts
        trace.with_identity(
            {
                "query": row.get("query"),
                "response": row.get("response"),
                "user": user,
                "session": session,
            }
        )
    shared = {
        "targets": [trace.as_target()],
        "rater": {"id": user} if user else None,
        "occurred_at": row.get("timestamp"),
    }
    return [trace, *(FeedbackRecord.model_validate(shared | signal) for signal in _signals(row))]


def _signals(row: Row) -> list[dict[str, Any]]:
    kind, rating, correction = row.get("feedback_type"), row.get("rating"), row.get("correction")
    if kind not in TYPES:
        raise Unreadable(f"feedback_type {kind!r} is none of {', '.join(TYPES)}")
    if kind in ("rating", "correction") and row.get(kind) is None:
        raise Unreadable(f"feedback_type {kind!r} without a {kind}")
    signals: list[dict[str, Any]] = []
    if kind.startswith("thumbs_"):
        signals.append({"kind": "thumb", "value": kind == "thumbs_up"})
    if rating is not None:
        signals.append({"kind": "rating", "value": rating})
    if correction is not None:
        signals.append({"kind": "correction", "value": correction})
    return signals


SOURCE = JsonLines(
    parse,
    claims,
    EXAMPLE,
    about="the lines of a FeedbackCollector.",
    reason="a query with the kind of feedback",
)
