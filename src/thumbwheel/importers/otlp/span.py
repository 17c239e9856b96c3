"""A span, read from OTLP (JSON or protobuf) or from the span objects that SDKs of Python and
JavaScript write into files.

Trace and span ids are hex in OTLP/JSON and raw bytes in protobuf; protobuf's own JSON reader takes
them for base64 and makes other ids of them without an error, so it is not used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from thumbwheel.importers.fields import (
    DEEPEST,
    clip,
    list_at,
    moment,
    name_of,
    object_at,
    objects_at,
    unpacked,
)
from thumbwheel.importers.types import Unreadable, parse_time

Attributes = Mapping[str, Any]

HEX = re.compile(r"[0-9a-f]+")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ERROR_CODES = (2, "2", "STATUS_CODE_ERROR", "ERROR", "error", "Error")


@dataclass(frozen=True)
class SpanEvent:
    """Something that happened inside a span, or a log record."""

    name: str
    time: datetime | None
    attributes: Attributes


@dataclass(frozen=True)
class Span:
    """One span. Ids are lower-case hex; `parent_id` is None for the root of a trace."""

    trace_id: str
    span_id: str
    parent_id: str | None
    name: str
    started_at: datetime | None
    ended_at: datetime | None
    attributes: Attributes
    is_error: bool = False
    events: Sequence[SpanEvent] = ()
    resource: Attributes = field(default_factory=dict)
    sender: str | None = None
    """Who sent it to the server, which alone says so; None for an app with the files of the
    home."""


@dataclass(frozen=True)
class LogRecord:
    """A log record with the span that it belongs to, where it names one."""

    event: SpanEvent
    trace_id: str | None
    span_id: str | None
    resource: Attributes = field(default_factory=dict)


ANNOTATOR = "annotator_kind"
"""Attribute of an evaluation result: HUMAN, LLM or CODE, as Phoenix names who judged."""
EVALUATION_COLUMNS = ("score", "label", "explanation")
"""Ends of the columns `eval.NAME.END` in which Phoenix's dataframe of spans has evaluations."""


def spans_of_row(row: Mapping[str, Any]) -> list[Span]:
    """Return the spans of a JSON object: an OTLP export request, a file of an SDK with `spans`, or
    one span. Raises Unreadable."""
    if "resourceSpans" in row:
        return list(otlp_json_spans(row))
    if "context.trace_id" in row:
        return [_annotated(_of_dataframe(row))]
    if isinstance(row.get("spans"), list):
        return [_annotated(span) for span in objects_at(row, "spans")]
    return [_annotated(row)]


def _annotated(row: Mapping[str, Any]) -> Span:
    """Parse a span object whose `annotations`, if it has any, become events of evaluation
    results."""
    span = sdk_span(row)
    annotations = unpacked(row.get("annotations"))
    if not isinstance(annotations, list):
        return span
    objects = [annotation for annotation in annotations if isinstance(annotation, Mapping)]
    events = filter(None, map(_annotation_event, objects))
    return replace(span, events=[*span.events, *events])


def _annotation_event(annotation: Mapping[str, Any]) -> SpanEvent | None:
    """Return an annotation of Phoenix as an evaluation result; None if it says nothing."""
    result = annotation.get("result")
    values = result if isinstance(result, Mapping) else annotation
    score, label = values.get("score"), values.get("label")
    if (score is None or score != score) and not label:  # NaN is where a dataframe has no value
        return None
    attributes = {
        "gen_ai.evaluation.name": annotation.get("name") or annotation.get("annotation_name"),
        "gen_ai.evaluation.id": annotation.get("id"),
        "gen_ai.evaluation.score.value": None if score != score else score,
        "gen_ai.evaluation.score.label": label,
        "gen_ai.evaluation.explanation": values.get("explanation"),
        ANNOTATOR: annotation.get("annotator_kind"),
        "user.id": annotation.get("user_id"),
    }
    time = _sdk_time(annotation.get("updated_at") or annotation.get("created_at"))
    stated = {name: value for name, value in attributes.items() if value is not None}
    return SpanEvent("gen_ai.evaluation.result", time, stated)


def _of_dataframe(row: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a row of Phoenix's dataframe of spans, whose columns are dotted names, to a span
    object."""
    attributes: dict[str, Any] = {}
    context: dict[str, Any] = {}
    evaluations: dict[str, dict[str, Any]] = {}
    span: dict[str, Any] = {"attributes": attributes, "context": context}
    for column, value in row.items():
        if value is None:
            continue
        group, _, name = column.partition(".")
        if group == "attributes" and name:
            attributes[name] = unpacked(value)
        elif group == "context" and name:
            context[name] = value
        elif group == "eval" and name.rpartition(".")[2] in EVALUATION_COLUMNS:
            about, _, part = name.rpartition(".")
            evaluations.setdefault(about, {"name": about})[part] = value
        elif column == "events":
            events = unpacked(value)
            span["events"] = events if isinstance(events, list) else []
        else:
            span[column] = value
    if span.get("span_kind"):
        attributes.setdefault("openinference.span.kind", span["span_kind"])
    if evaluations:
        annotations = unpacked(span.get("annotations"))
        listed = annotations if isinstance(annotations, list) else []
        span["annotations"] = [*listed, *evaluations.values()]
    return span


def otlp_json_spans(request: Mapping[str, Any]) -> Iterator[Span]:
    """Yield the spans of an ExportTraceServiceRequest in OTLP's JSON. Raises Unreadable."""
    for resource_spans in objects_at(request, "resourceSpans"):
        resource = otlp_attributes(object_at(resource_spans, "resource").get("attributes"))
        for scope_spans in objects_at(resource_spans, "scopeSpans"):
            for span in objects_at(scope_spans, "spans"):
                yield _otlp_json_span(span, resource)


def otlp_json_logs(request: Mapping[str, Any]) -> Iterator[LogRecord]:
    """Yield the log records of an ExportLogsServiceRequest in OTLP's JSON. Raises Unreadable."""
    for resource_logs in objects_at(request, "resourceLogs"):
        resource = otlp_attributes(object_at(resource_logs, "resource").get("attributes"))
        for scope_logs in objects_at(resource_logs, "scopeLogs"):
            for record in objects_at(scope_logs, "logRecords"):
                yield _otlp_json_log(record, resource)


def protobuf_spans(request: bytes) -> list[Span]:
    """Return the spans of an ExportTraceServiceRequest in protobuf. Raises Unreadable."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    message = _decoded(ExportTraceServiceRequest, request)
    spans = []
    for resource_spans in message.resource_spans:
        resource = _protobuf_attributes(resource_spans.resource.attributes)
        for scope_spans in resource_spans.scope_spans:
            spans += [_protobuf_span(span, resource) for span in scope_spans.spans]
    return spans


def protobuf_logs(request: bytes) -> list[LogRecord]:
    """Return the log records of an ExportLogsServiceRequest in protobuf. Raises Unreadable."""
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

    message = _decoded(ExportLogsServiceRequest, request)
    records = []
    for resource_logs in message.resource_logs:
        resource = _protobuf_attributes(resource_logs.resource.attributes)
        for scope_logs in resource_logs.scope_logs:
            for record in scope_logs.log_records:
                attributes = _protobuf_attributes(record.attributes)
                nanoseconds = record.time_unix_nano or record.observed_time_unix_nano
                name = record.event_name or str(attributes.get("event.name") or "")
                event = SpanEvent(name, _nanoseconds(nanoseconds), attributes)
                records.append(
                    LogRecord(
                        event, record.trace_id.hex() or None, record.span_id.hex() or None, resource
                    )
                )
    return records


def sdk_span(row: Mapping[str, Any]) -> Span:
    """Parse a span object as the SDKs of Python (`context`, ids as numbers or 0x-hex) and
    JavaScript (`spanContext`, times as [seconds, nanoseconds]) write it, or one in OTLP's JSON.
    Raises Unreadable."""
    if "startTimeUnixNano" in row or ("traceId" in row and "spanContext" not in row):
        return _otlp_json_span(row, {})
    context = object_at(row, "spanContext") or object_at(row, "context")
    trace_id = _id(context.get("traceId", context.get("trace_id")), 32)
    span_id = _id(context.get("spanId", context.get("span_id")), 16)
    if trace_id is None or span_id is None:
        raise Unreadable(f"{clip(dict(row))} is no span: it has no trace id and span id")
    status = row.get("status")
    code = status.get("code", status.get("status_code")) if isinstance(status, Mapping) else status
    code = row.get("status_code", code)
    return Span(
        trace_id=trace_id,
        span_id=span_id,
        parent_id=_parent_id(row),
        name=str(row.get("name") or ""),
        started_at=_sdk_time(row.get("startTime", row.get("start_time"))),
        ended_at=_sdk_time(row.get("endTime", row.get("end_time"))),
        attributes=flattened(object_at(row, "attributes")),
        is_error=code in _ERROR_CODES,
        events=[_sdk_event(event) for event in objects_at(row, "events")],
        resource=flattened(object_at(object_at(row, "resource"), "attributes")),
    )


def flattened(attributes: Mapping[str, Any], prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """Return attributes with nested objects as dotted names; Phoenix and others store them nested.
    Raises Unreadable if they are nested too deeply.

    >>> flattened({"llm": {"token_count": {"prompt": 3}}, "input.value": "Hi"})
    {'llm.token_count.prompt': 3, 'input.value': 'Hi'}
    """
    if depth > DEEPEST:
        raise Unreadable("its attributes are nested too deeply")
    flat: dict[str, Any] = {}
    for key, value in attributes.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat |= flattened(value, f"{name}.", depth + 1)
        elif isinstance(value, list) and value and all(isinstance(v, Mapping) for v in value):
            for index, element in enumerate(value):
                flat |= flattened(element, f"{name}.{index}.", depth + 1)
        else:
            flat[name] = value
    return flat


def otlp_attributes(pairs: Any) -> dict[str, Any]:
    """Return a list of OTLP's key-value pairs as a dictionary. Raises Unreadable."""
    attributes = {}
    for pair in objects_at({"attributes": pairs}, "attributes"):
        attributes[str(pair.get("key"))] = _otlp_value(pair.get("value"))
    return attributes


def _otlp_json_span(row: Mapping[str, Any], resource: Attributes) -> Span:
    trace_id, span_id = _id(row.get("traceId"), 32), _id(row.get("spanId"), 16)
    if trace_id is None or span_id is None:
        raise Unreadable(f"{clip(dict(row))} is no span: it has no trace id and span id")
    events = []
    for event in objects_at(row, "events"):
        time = _nanoseconds(event.get("timeUnixNano"))
        attributes = otlp_attributes(event.get("attributes"))
        events.append(SpanEvent(str(event.get("name") or ""), time, attributes))
    return Span(
        trace_id=trace_id,
        span_id=span_id,
        parent_id=_id(row.get("parentSpanId"), 16),
        name=str(row.get("name") or ""),
        started_at=_nanoseconds(row.get("startTimeUnixNano")),
        ended_at=_nanoseconds(row.get("endTimeUnixNano")),
        attributes=otlp_attributes(row.get("attributes")),
        is_error=object_at(row, "status").get("code") in _ERROR_CODES,
        events=events,
        resource=resource,
    )


def _otlp_json_log(row: Mapping[str, Any], resource: Attributes) -> LogRecord:
    attributes = otlp_attributes(row.get("attributes"))
    name = str(row.get("eventName") or attributes.get("event.name") or "")
    time = _nanoseconds(row.get("timeUnixNano") or row.get("observedTimeUnixNano"))
    event = SpanEvent(name, time, attributes)
    return LogRecord(event, _id(row.get("traceId"), 32), _id(row.get("spanId"), 16), resource)


def _otlp_value(value: Any, depth: int = 0) -> Any:
    """Return the value of an AnyValue; None if it is empty. Raises Unreadable if it is nested too
    deeply."""
    if depth > DEEPEST:
        raise Unreadable("an attribute is nested too deeply")
    if not isinstance(value, Mapping):
        return value
    for key in ("stringValue", "boolValue", "doubleValue", "bytesValue"):
        if key in value:
            return value[key]
    if "intValue" in value:
        return _integer(value["intValue"])
    if "arrayValue" in value:
        elements = list_at(object_at(value, "arrayValue"), "values")
        return [_otlp_value(element, depth + 1) for element in elements]
    if "kvlistValue" in value:
        pairs = objects_at(object_at(value, "kvlistValue"), "values")
        return {str(pair.get("key")): _otlp_value(pair.get("value"), depth + 1) for pair in pairs}
    return None


def _integer(value: Any) -> int:
    """Parse an integer, which OTLP writes as text for 64 bits. Raises Unreadable."""
    try:
        return int(value)
    except (ValueError, TypeError, OverflowError):
        raise Unreadable(f"intValue {clip(value)} is no whole number") from None


def _decoded(message_type: Any, request: bytes) -> Any:
    from google.protobuf.message import DecodeError

    message = message_type()
    try:
        message.ParseFromString(request)
    except (DecodeError, RecursionError) as error:
        raise Unreadable(f"it is no {message_type.DESCRIPTOR.name} in protobuf ({error})") from None
    return message


def _protobuf_span(span: Any, resource: Attributes) -> Span:
    trace_id, span_id = span.trace_id.hex(), span.span_id.hex()
    if len(trace_id) != 32 or len(span_id) != 16:
        raise Unreadable(f"span {span.name!r} has no trace id of 16 bytes and span id of 8")
    events = []
    for event in span.events:
        attributes = _protobuf_attributes(event.attributes)
        events.append(SpanEvent(event.name, _nanoseconds(event.time_unix_nano), attributes))
    return Span(
        trace_id=trace_id,
        span_id=span_id,
        parent_id=_id(span.parent_span_id.hex(), 16),
        name=span.name,
        started_at=_nanoseconds(span.start_time_unix_nano),
        ended_at=_nanoseconds(span.end_time_unix_nano),
        attributes=_protobuf_attributes(span.attributes),
        is_error=span.status.code in _ERROR_CODES,
        events=events,
        resource=resource,
    )


def _protobuf_attributes(pairs: Iterable[Any]) -> dict[str, Any]:
    return {pair.key: _protobuf_value(pair.value) for pair in pairs}


def _protobuf_value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_protobuf_value(element) for element in value.array_value.values]
    if kind == "kvlist_value":
        return {pair.key: _protobuf_value(pair.value) for pair in value.kvlist_value.values}
    if kind == "bytes_value":
        return value.bytes_value.hex()
    return getattr(value, kind) if kind else None


def _id(value: Any, digits: int) -> str | None:
    """Return a trace or span id as `digits` lower-case hex digits; None if it is missing or all
    zeros. Raises Unreadable if it is malformed."""
    if value in (None, ""):
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        text = f"{value:0{digits}x}" if value >= 0 else ""
    else:
        text = str(value).lower().removeprefix("0x")
    if len(text) != digits or not HEX.fullmatch(text):
        raise Unreadable(f"{clip(value)} is no id of {digits} hex digits")
    return None if text.strip("0") == "" else text


def _parent_id(row: Mapping[str, Any]) -> str | None:
    for key in ("parentSpanId", "parent_id", "parentId"):
        if row.get(key):
            return _id(row[key], 16)
    parent = object_at(row, "parentSpanContext") or object_at(row, "parent")
    return _id(parent.get("spanId", parent.get("span_id")), 16)


def _sdk_event(row: Mapping[str, Any]) -> SpanEvent:
    time = _sdk_time(row.get("time", row.get("timestamp")))
    return SpanEvent(str(row.get("name") or ""), time, flattened(object_at(row, "attributes")))


def _sdk_time(value: Any) -> datetime | None:
    """Parse a time in nanoseconds, as [seconds, nanoseconds], or in ISO 8601; None if it is
    unknown."""
    if isinstance(value, list) and len(value) == 2 and all(type(part) is int for part in value):
        seconds, nanoseconds = value
        return _nanoseconds(seconds * 10**9 + nanoseconds)
    time = moment(value)
    return None if time is None else parse_time(time)


def _nanoseconds(value: Any) -> datetime | None:
    """Return the time `value` nanoseconds after 1970; None for 0, which OTLP writes for unknown.
    Raises Unreadable for an impossible time."""
    if value in (None, "", 0, "0"):
        return None
    nanoseconds = _integer(value)
    try:
        return parse_time(_EPOCH + timedelta(microseconds=nanoseconds // 1000))
    except OverflowError:
        raise Unreadable(f"{clip(value)} is no possible time in nanoseconds") from None


def span_row(span: Span) -> dict[str, Any]:
    """Return the span as JSON, which `span_of_row` reads."""
    return {
        "trace_id": span.trace_id,
        "span_id": span.span_id,
        "parent_id": span.parent_id,
        "name": span.name,
        "started_at": span.started_at.isoformat() if span.started_at else None,
        "ended_at": span.ended_at.isoformat() if span.ended_at else None,
        "attributes": dict(span.attributes),
        "is_error": span.is_error,
        "events": [_event_row(event) for event in span.events],
        "sender": span.sender,
    }


def span_of_row(row: Mapping[str, Any]) -> Span:
    """Read the span that `span_row` wrote. Raises Unreadable."""
    trace_id, span_id = _id(row.get("trace_id"), 32), _id(row.get("span_id"), 16)
    if trace_id is None or span_id is None:
        raise Unreadable(f"{clip(dict(row))} is no span: it has no trace id and span id")
    return Span(
        trace_id=trace_id,
        span_id=span_id,
        parent_id=_id(row.get("parent_id"), 16),
        name=str(row.get("name") or ""),
        started_at=_sdk_time(row.get("started_at")),
        ended_at=_sdk_time(row.get("ended_at")),
        attributes=object_at(row, "attributes"),
        is_error=row.get("is_error") is True,
        events=[_event_of_row(event) for event in objects_at(row, "events")],
        sender=name_of(row.get("sender")),
    )


def _event_of_row(row: Mapping[str, Any]) -> SpanEvent:
    attributes = object_at(row, "attributes")
    return SpanEvent(str(row.get("name") or ""), _sdk_time(row.get("time")), attributes)


def _event_row(event: SpanEvent) -> dict[str, Any]:
    time = event.time.isoformat() if event.time else None
    return {"name": event.name, "time": time, "attributes": dict(event.attributes)}
