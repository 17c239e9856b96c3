"""Spans of OpenTelemetry in files: OTLP's JSON as a collector writes it, and span objects as SDKs
and tools that follow OpenInference write them, a line each.

The spans of a run may be spread over lines. A run is put together when its root and the parents of
all its spans have been read and the next lines hold no more of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from thumbwheel.importers.lines import OnPosition
from thumbwheel.importers.otlp.assemble import is_complete, records_of
from thumbwheel.importers.otlp.evaluations import EVENT, evaluation_record, is_evaluation
from thumbwheel.importers.otlp.span import Span, otlp_json_logs, spans_of_row
from thumbwheel.importers.rowfile import FileRow, read_rows
from thumbwheel.importers.source import Item, Refused, Row, item_of
from thumbwheel.importers.types import AnyRecord, Unreadable

QUIET_ROWS = 1_000
"""A complete trace is put together when so many further lines held no span of it."""
MOST_SPANS = 50_000
"""Spans that wait for the rest of their traces; beyond it the oldest trace is put together as it
is."""
OTLP_EXAMPLE = (
    '{"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [{"spans": [{"traceId": '
    '"5b8efff798038103d269b633813fc60c", "spanId": "eee19b7ec3c1b174", "name": "chat llama3.2", '
    '"startTimeUnixNano": "1767600000000000000", "endTimeUnixNano": "1767600001000000000", '
    '"attributes": [{"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}}, {"key": '
    '"gen_ai.input.messages", "value": {"stringValue": "[{\\"role\\": \\"user\\", \\"parts\\": '
    '[{\\"type\\": \\"text\\", \\"content\\": \\"Hi\\"}]}]"}}, {"key": "gen_ai.output.messages", '
    '"value": {"stringValue": "[{\\"role\\": \\"assistant\\", \\"parts\\": [{\\"type\\": '
    '\\"text\\", \\"content\\": \\"Hello!\\"}]}]"}}]}]}]}]}'
)
OPENINFERENCE_EXAMPLE = (
    '{"name": "ChatCompletion", "context": {"trace_id": "5b8efff798038103d269b633813fc60c", '
    '"span_id": "eee19b7ec3c1b174"}, "parent_id": null, "start_time": "2026-01-05T08:00:00Z", '
    '"end_time": "2026-01-05T08:00:01Z", "attributes": {"openinference.span.kind": "LLM", '
    '"llm.model_name": "llama3.2", "llm.input_messages.0.message.role": "user", '
    '"llm.input_messages.0.message.content": "Hi", "llm.output_messages.0.message.role": '
    '"assistant", "llm.output_messages.0.message.content": "Hello!"}}'
)


def claims_otlp(row: Row) -> bool:
    """Return whether the row is an export request of OTLP, or a file with `spans`."""
    spans = row.get("spans")
    is_file = isinstance(spans, list) and bool(spans) and isinstance(spans[0], dict)
    if "request" in row and "response" in row:
        return False  # MLflow's, which says more
    return "resourceSpans" in row or "resourceLogs" in row or is_file


def claims_spans(row: Row) -> bool:
    """Return whether the row is a span object of an SDK."""
    if "context.trace_id" in row and "name" in row:
        return True  # a row of Phoenix's dataframe of spans
    has_context = isinstance(row.get("spanContext", row.get("context")), dict)
    return "attributes" in row and (has_context or {"traceId", "spanId"} <= row.keys())


@dataclass
class _WaitingTrace:
    """A trace that is being read: its spans, the row of its first span, the row of its last."""

    spans: list[Span]
    first_row: int
    last_row: int


@dataclass(frozen=True)
class SpanFile:
    """The source; `claims` says of which rows."""

    claims: Callable[[Row], bool]
    example: str
    about: str
    reason: str

    def read(self, path: Path, on_position: OnPosition) -> Iterator[Item]:
        waiting: dict[str, _WaitingTrace] = {}
        for row in read_rows(path, on_position):
            yield from self._take(row, waiting)
            for trace_id in _settled(waiting, row.number):
                yield _put_together(trace_id, waiting.pop(trace_id))
        for trace_id, trace in waiting.items():
            yield _put_together(trace_id, trace)

    def _take(self, row: FileRow, waiting: dict[str, _WaitingTrace]) -> Iterator[Item]:
        """Add the spans of a row to their traces; yield the row if it holds no spans, and the
        evaluation results in it."""
        if row.row is None:
            yield Refused(row.number, row.reason, row.text)
            return
        if "resourceLogs" in row.row:
            yield item_of(row.number, row.text, lambda: _evaluations(row.row or {}))
            return
        try:
            spans = spans_of_row(row.row)
        except Unreadable as error:
            yield Refused(row.number, str(error), row.text)
            return
        for span in spans:
            trace = waiting.setdefault(span.trace_id, _WaitingTrace([], row.number, row.number))
            trace.spans.append(span)
            trace.last_row = row.number


def _evaluations(row: Row) -> list[AnyRecord]:
    logs = [log for log in otlp_json_logs(row) if is_evaluation(log.event)]
    if not logs:
        raise Unreadable(f"none of its log records is a {EVENT}")
    return [evaluation_record(log.event, log.trace_id) for log in logs]


def _settled(waiting: dict[str, _WaitingTrace], row_number: int) -> list[str]:
    """Return the ids of traces that expect no more spans, and of the oldest ones if too many spans
    are held."""
    settled = []
    for trace_id, trace in waiting.items():
        is_quiet = row_number - trace.last_row >= QUIET_ROWS
        if is_quiet and is_complete(trace.spans):
            settled.append(trace_id)
    held = sum(len(trace.spans) for trace in waiting.values())
    for trace_id, trace in waiting.items():
        if held <= MOST_SPANS:
            break
        if trace_id not in settled:
            settled.append(trace_id)
            held -= len(trace.spans)
    return settled


def _put_together(trace_id: str, trace: _WaitingTrace) -> Item:
    text = json.dumps({"traceId": trace_id, "spans": [span.name for span in trace.spans]})
    return item_of(trace.first_row, text, lambda: records_of(trace.spans))


OTLP = SpanFile(
    claims_otlp,
    OTLP_EXAMPLE,
    "OTLP/JSON of OpenTelemetry: a run with its steps, evaluations",
    reason="export requests of OTLP, or a file with `spans`",
)
OPENINFERENCE = SpanFile(
    claims_spans,
    OPENINFERENCE_EXAMPLE,
    "span objects of SDKs, OpenInference, Vercel's AI SDK",
    reason="span objects of an SDK, one a line",
)
