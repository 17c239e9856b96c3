"""Export requests of OTLP/HTTP as lines of the inbox, and the answers to them.

A span becomes a line of its own, because the spans of a run come in several requests; when the run
is complete they become a trace (`span_store.py`). An evaluation result among log records becomes
feedback at once; other log records are not kept.

Evaluation results inside spans are words like all others: they need the right to rate, a user
speaks in no other name, and each span keeps who sent it until its run is complete.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from thumbwheel.core import ids
from thumbwheel.core.errors import InputError
from thumbwheel.importers.json_text import has_nul, json_value
from thumbwheel.importers.otlp.evaluations import RATER, evaluation_record, is_evaluation, rater_of
from thumbwheel.importers.otlp.span import (
    Attributes,
    LogRecord,
    Span,
    SpanEvent,
    otlp_json_logs,
    otlp_json_spans,
    protobuf_logs,
    protobuf_spans,
    span_row,
)
from thumbwheel.importers.types import Unreadable, explain
from thumbwheel.importers.voice import Voice

JSON, PROTOBUF = "application/json", "application/x-protobuf"
AGENT = ("thumbwheel.agent", "service.name")
"""Attributes of a resource that name the agent."""
NAMELESS = "unknown_service"
"""What SDKs call a service that nobody named; a program's name may follow after a colon."""
SPAN = "span"
"""The type of a line that is a span."""


@dataclass(frozen=True)
class SpanSender:
    """Who sends a request of spans or log records."""

    agent: str | None
    """The agent that the request names; None where the resources of its spans do."""
    voice: Voice
    may_rate: Callable[[str], bool]
    """Whether they may rate the answers of an agent."""


@dataclass
class SpanLines:
    """The lines of a request, and what of it cannot be taken."""

    signal: str
    """"trace" or "logs"."""
    lines: list[bytes] = field(default_factory=list)
    rejected: int = 0
    reason: str = ""
    """Of the first rejection, or why words inside spans are left out."""

    def add(self, row: dict[str, Any]) -> None:
        self.lines.append(json.dumps(row, ensure_ascii=False, allow_nan=False).encode("utf-8"))

    def reject(self, reason: str) -> None:
        self.rejected += 1
        self.reason = self.reason or reason


def span_lines(content: bytes, content_type: str, sender: SpanSender) -> SpanLines:
    """Read the spans of an ExportTraceServiceRequest. Raises Unreadable for anything else."""
    result = SpanLines("trace")
    spans: Iterable[Span]
    if content_type == PROTOBUF:
        spans = protobuf_spans(content)
    else:
        spans = list(otlp_json_spans(_object(content)))
    for span in spans:
        try:
            agent = _agent(span.resource, sender.agent)
            events = _admitted_events(span.events, agent, sender, result)
            row = span_row(replace(span, events=events, sender=sender.voice.sender))
            if has_nul(row):
                raise Unreadable("it holds a NUL character")
            result.add({"type": SPAN, "agent": agent, **row})
        except (Unreadable, ValueError) as error:  # ValueError: NaN, half of a character
            result.reject(f"span {span.span_id}: {error}")
    return result


def _admitted_events(
    events: Sequence[SpanEvent], agent: str, sender: SpanSender, result: SpanLines
) -> list[SpanEvent]:
    """Return the events without evaluation results that the sender may not give; the reason goes
    into the response. A logged-in user is the rater of their own results."""
    admitted = []
    for event in events:
        if not is_evaluation(event):
            admitted.append(event)
            continue
        name = sender.voice.rater
        if not sender.may_rate(agent):
            why = f"whoever sends it may not rate agent {agent!r}"
            result.reason = result.reason or f"evaluation results are left out: {why}"
        elif name is not None and rater_of(event) not in (None, name):
            why = f"the rater is not {name!r}, who sends it"
            result.reason = result.reason or f"evaluation results are left out: {why}"
        elif name is not None:
            admitted.append(replace(event, attributes={**event.attributes, RATER: name}))
        else:
            admitted.append(event)
    return admitted


def log_lines(content: bytes, content_type: str, sender: SpanSender) -> SpanLines:
    """Read the evaluation results of an ExportLogsServiceRequest as feedback. Raises Unreadable for
    anything else."""
    result = SpanLines("logs")
    records: Iterable[LogRecord]
    if content_type == PROTOBUF:
        records = protobuf_logs(content)
    else:
        records = list(otlp_json_logs(_object(content)))
    for record in records:
        if not is_evaluation(record.event):
            continue
        try:
            feedback = evaluation_record(record.event, record.trace_id)
            row = feedback.model_dump(mode="json", exclude_none=True)
            targets = [{"trace": target.id} for target in feedback.targets]
            agent = _agent(record.resource, sender.agent)
            row |= {"type": "feedback", "agent": agent, "targets": targets}
            row.setdefault("id", uuid.uuid4().hex)
            if has_nul(row):
                raise Unreadable("it holds a NUL character")
            result.add(sender.voice.spoken(row))
        except ValidationError as error:
            result.reject(explain(error))
        except (Unreadable, ValueError) as error:
            result.reject(str(error))
    return result


def response_body(result: SpanLines, content_type: str) -> bytes:
    """Return the response to an export request, in the request's encoding."""
    counter = "rejected_spans" if result.signal == "trace" else "rejected_log_records"
    if content_type == JSON:
        camel = "rejectedSpans" if result.signal == "trace" else "rejectedLogRecords"
        partial = {camel: str(result.rejected), "errorMessage": result.reason}
        return json.dumps({"partialSuccess": partial} if result.reason else {}).encode()
    response = _response(result.signal)
    if result.reason:
        setattr(response.partial_success, counter, result.rejected)
        response.partial_success.error_message = result.reason
    body: bytes = response.SerializeToString()
    return body


def _response(signal: str) -> Any:
    if signal == "trace":
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

        return trace_service_pb2.ExportTraceServiceResponse()
    from opentelemetry.proto.collector.logs.v1 import logs_service_pb2

    return logs_service_pb2.ExportLogsServiceResponse()


def _object(content: bytes) -> dict[str, Any]:
    value = json_value(content, allow_nul=True)
    if not isinstance(value, dict):
        raise Unreadable(f"it is a JSON {type(value).__name__}, not an object")
    return value


def _agent(resource: Attributes, agent: str | None) -> str:
    """Return the slug of the run's agent: from the request, else from its resource. Raises
    Unreadable if neither names one."""
    names = [agent, *(resource.get(name) for name in AGENT)]
    for name in names:
        if isinstance(name, str) and name and not name.startswith(NAMELESS):
            try:
                return ids.slug_of(name)
            except InputError as error:
                raise Unreadable(str(error)) from None
    raise Unreadable(
        "it names no agent: set OTEL_SERVICE_NAME, the header x-thumbwheel-agent, or send it to "
        "/a/AGENT/v1/traces"
    )
