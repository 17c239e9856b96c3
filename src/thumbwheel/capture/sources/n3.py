"""Feedback rows of an n3 server: {prompt, response, score from 0 to 1, runId, notes} as posted, with `run_id` as stored, and its datasets.

The score is of the scale 0 to 1 and anything else is refused (a stored row may hold NaN or 7). In a dataset that the server wrote,
{examples: [...], max_length}, the scores were scaled to -1..1 already, and that scale is kept with them. A run is a session: a run that
answered twice was judged twice.
"""

from __future__ import annotations

from typing import Any

from thumbwheel.capture.fields import moment, name_of, number_of, objects_at, text_at
from thumbwheel.capture.source import AnyRecord, JsonLines, Row
from thumbwheel.capture.types import FeedbackRecord, Scale, TargetRef, TraceRecord, Unreadable

KNOWN = ("prompt", "response", "score", "runId", "run_id", "notes", "id", "created_at", "createdAt")
POSTED, SCALED = Scale(min=0, max=1), Scale(min=-1, max=1)
EXAMPLE = (
    '{"prompt": "Opening hours?", "response": "Nine to five.", "score": 0.9, "runId": "run-7", "notes": null}\n'
    '{"id": "V1StGXR8_Z5j", "agent_id": "desk", "run_id": "run-8", "prompt": "Open on Sunday?", "response": "Yes.", "score": 0.1,'
    ' "notes": "wrong", "created_at": "2025-11-02 10:00:00"}'
)


def claims(row: Row) -> bool:
    """A scored answer of a run, or a dataset of the server."""
    return ({"prompt", "response", "score"} <= row.keys() and bool({"runId", "run_id"} & row.keys())) or {
        "examples",
        "max_length",
    } <= row.keys()


def parse(row: dict[str, Any]) -> list[AnyRecord]:
    """Trace and score of a row, or of every example of a dataset."""
    if "examples" in row:
        examples = objects_at(row, "examples")
        if not examples:
            raise Unreadable("it has no examples")
        return [one for example in examples for one in _scored(example, SCALED)]
    return _scored(row, POSTED)


def _scored(row: Row, scale: Scale) -> list[AnyRecord]:
    if row.get("score") is None:
        raise Unreadable("key 'score' is missing")
    run = name_of(row.get("runId", row.get("run_id")))
    at = moment(row.get("created_at", row.get("createdAt")))
    rest = {key: value for key, value in row.items() if key not in KNOWN and value is not None}
    fields = {"session": run, "input": text_at(row, "prompt"), "output": text_at(row, "response"), "metadata": rest or None}
    trace = TraceRecord.model_validate(fields)
    target = TargetRef(kind="trace", id=trace.identified()[0])
    notes = row.get("notes") or None
    said = {
        "kind": "score",
        "id": name_of(row.get("id")),
        "value": number_of(row["score"], "score"),
        "scale": scale,
        "comment": notes,
        "occurred_at": at,
    }
    return [trace, FeedbackRecord.model_validate(said | {"targets": [target]})]


SOURCE = JsonLines(parse, claims, EXAMPLE)
