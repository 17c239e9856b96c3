"""Evaluation results (`gen_ai.evaluation.result`, an event or a log record) as feedback.

A result whose name says that it is a person's opinion (`user-feedback`, `rating`, ...) is one; any
other is a label, because nobody says whether more of it is better.
"""

from __future__ import annotations

from typing import Any

from thumbwheel.importers.fields import name_of
from thumbwheel.importers.opinions import judgement, opinion_of
from thumbwheel.importers.otlp.span import ANNOTATOR, SpanEvent
from thumbwheel.importers.types import FeedbackRecord, TargetRef, Unreadable

EVENT = "gen_ai.evaluation.result"
RATER = "user.id"
"""The attribute that names the person whose opinion it is."""
ANNOTATORS = {"HUMAN": "person", "LLM": "model", "CODE": "checker"}
"""Who judged, as an annotation names them -> kind of rater."""


def is_evaluation(event: SpanEvent) -> bool:
    """Return whether the event evaluates an answer."""
    return event.name == EVENT or "gen_ai.evaluation.name" in event.attributes


def rater_of(event: SpanEvent) -> str | None:
    """Return the rater that an evaluation result claims to be of."""
    attributes = event.attributes
    rater = attributes.get(RATER) or attributes.get("gen_ai.evaluation.evaluator.name")
    return str(rater) if rater else None


def evaluation_record(
    event: SpanEvent, trace: str | None, sender: str | None = None
) -> FeedbackRecord:
    """Return the feedback of an evaluation result about `trace`, which `sender` sent. Raises
    Unreadable if it names no trace or has no value."""
    if trace is None:
        raise Unreadable(f"the {EVENT} belongs to no trace; send it inside the span that it judges")
    attributes = event.attributes
    name = str(attributes.get("gen_ai.evaluation.name") or "evaluation")
    opinion = opinion_of(name)
    rater = rater_of(event)
    fields: dict[str, Any] = {
        "sender": sender,
        "id": name_of(attributes.get("gen_ai.evaluation.id")),
        "targets": [TargetRef(kind="trace", id=trace)],
        "occurred_at": event.time,
        "comment": attributes.get("gen_ai.evaluation.explanation") or None,
    }
    kind = ANNOTATORS.get(str(attributes.get(ANNOTATOR)), "person" if opinion else "model")
    if rater:
        fields["rater"] = {"id": rater, "kind": kind}
    elif kind != "person":
        fields["rater"] = {"id": name, "kind": kind}
    score = attributes.get("gen_ai.evaluation.score.value")
    label = attributes.get("gen_ai.evaluation.score.label")
    return FeedbackRecord.model_validate(fields | judgement(name, score, label))
