"""Lines of a FeedbackCollector: query, response, feedback_type, rating, correction, timestamp, metadata; null is "not given".

A thumb, a rating and a correction of one line are three signals of their own: a missing rating is no opinion, never a bad one, and a
correction is the better answer, never a bad label alone. Times may be written with a space and without a zone (then UTC).
"""

from __future__ import annotations

from typing import Any

from thumbwheel.capture.source import AnyRecord, JsonLines, Row
from thumbwheel.capture.types import FeedbackRecord, TargetRef, TraceRecord, Unreadable
from thumbwheel.core.plugins import nearest

KEYS = ("query", "response", "feedback_type", "rating", "correction", "timestamp", "metadata")
TYPES = ("thumbs_up", "thumbs_down", "rating", "correction")
EXAMPLE = (
    '{"query": "Opening hours?", "response": "Nine to five.", "feedback_type": "thumbs_up", "rating": null, "correction": null,'
    ' "timestamp": "2026-01-05 09:12:44.120000", "metadata": {}}'
)


def claims(row: Row) -> bool:
    """A query with the kind of feedback."""
    return {"query", "feedback_type"} <= row.keys()


def parse(row: dict[str, Any]) -> list[AnyRecord]:
    """One trace and its signals."""
    for key in row.keys() - set(KEYS):
        raise Unreadable(f"key {key!r} is unknown in a FeedbackCollector line.{nearest(key, KEYS)}")
    at = row.get("timestamp")
    trace = TraceRecord.model_validate(
        {"input": row.get("query"), "output": row.get("response"), "occurred_at": at, "metadata": row.get("metadata") or None}
    )
    target = TargetRef(kind="trace", id=trace.identified()[0])
    shared = {"targets": [target], "occurred_at": at}
    return [trace, *(FeedbackRecord.model_validate(shared | signal) for signal in _signals(row))]


def _signals(row: Row) -> list[dict[str, Any]]:
    kind, rating, correction = row.get("feedback_type"), row.get("rating"), row.get("correction")
    if kind not in TYPES:
        raise Unreadable(f"feedback_type {kind!r} is none of {', '.join(TYPES)}")
    if kind in ("rating", "correction") and row.get(kind) is None:
        raise Unreadable(f"feedback_type {kind!r} without a {kind}")
    thumb = [{"kind": "thumb", "value": kind == "thumbs_up"}] if kind.startswith("thumbs_") else []
    rated = [{"kind": "rating", "value": rating}] if rating is not None else []
    return thumb + rated + ([{"kind": "correction", "value": correction}] if correction is not None else [])


SOURCE = JsonLines(parse, claims, EXAMPLE)
