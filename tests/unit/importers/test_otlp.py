"""Spans of OpenTelemetry become traces: real ones of several frameworks, every convention, JSON and
protobuf alike, spread over lines, and hostile ones."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as ProtobufSpan
from pydantic import ValidationError

from tests.public_data import public_data
from thumbwheel.importers.otlp.assemble import is_complete, records_of
from thumbwheel.importers.otlp.evaluations import EVENT, evaluation_record
from thumbwheel.importers.otlp.span import (
    Span,
    SpanEvent,
    otlp_json_logs,
    otlp_json_spans,
    protobuf_spans,
    sdk_span,
    spans_of_row,
)
from thumbwheel.importers.source import Item, Line, Refused
from thumbwheel.importers.sources import SOURCES
from thumbwheel.importers.sources.otlp import QUIET_ROWS
from thumbwheel.importers.types import FeedbackRecord, TraceRecord, Unreadable

TRACE_ID = "5b8efff798038103d269b633813fc60c"
START = datetime(2026, 1, 5, 8, tzinfo=UTC)
FRAMEWORKS = ("llama_index", "smolagents", "tinyagent")


def read(source: str, path: Path) -> list[Item]:
    return list(SOURCES.get(source).read(path, lambda position: None))


def only_trace(items: list[Item]) -> TraceRecord:
    (item,) = items
    assert isinstance(item, Line), item
    (trace,) = item.records
    assert isinstance(trace, TraceRecord)
    return trace


def span(number: int = 1, parent: int | None = None, **fields: Any) -> Span:
    attributes = fields.pop("attributes", {})
    return Span(
        trace_id=TRACE_ID,
        span_id=f"{number:016x}",
        parent_id=None if parent is None else f"{parent:016x}",
        name=fields.pop("name", f"span {number}"),
        started_at=START.replace(second=number),
        ended_at=START.replace(second=number + 1),
        attributes=attributes,
        **fields,
    )


def trace_of(*spans: Span) -> TraceRecord:
    trace = records_of(spans)[0]
    assert isinstance(trace, TraceRecord)
    return trace


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_real_runs_of_agents(framework: str) -> None:
    """The file of the SDK and the same as OTLP give the same trace, with all their spans."""
    sdk_file = public_data(f"otel-traces/any-agent/{framework}.json")
    otlp_file = public_data(f"otel-traces/any-agent-otlp-derived/{framework}.otlp.json")
    trace = only_trace(read("otlp", sdk_file))
    assert trace == only_trace(read("otlp", otlp_file))
    spans = json.loads(sdk_file.read_text())["spans"]
    assert trace.id == f"{spans[0]['context']['trace_id']:032x}"
    assert len(trace.steps) == len(spans) - 1  # all but the run itself
    operations = [row["attributes"]["gen_ai.operation.name"] for row in spans]
    for kind, operation in (("llm", "call_llm"), ("tool", "execute_tool")):
        assert sum(step.kind == kind for step in trace.steps) == operations.count(operation)
    assert [message["role"] for message in trace.input] == ["system", "user"]
    assert "America/New_York" in trace.input[1]["content"]
    assert trace.output is not None
    assert "steps" in trace.output or "New_York" in trace.output
    tokens = [row["attributes"].get("gen_ai.usage.input_tokens") for row in spans]
    counted = [step.tokens.prompt for step in trace.steps if step.tokens]
    assert counted == [count for count in tokens if count]
    assert trace.steps[0].model == "mistral/mistral-small-latest"


def test_real_spans_of_the_ai_sdk() -> None:
    path = public_data("otel-traces/openinference-vercel-v6-spans.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    items = read("openinference", path)
    assert len(items) == len(rows) == 6
    traces = {
        item.records[0].id: item.records[0]
        for item in items
        if isinstance(item, Line) and isinstance(item.records[0], TraceRecord)
    }
    for row in rows:
        text = row["attributes"].get("ai.response.text")
        trace = traces.get(row["spanContext"]["traceId"])
        assert (trace.output if trace else None) == text
    (refusal,) = [item for item in items if isinstance(item, Refused)]
    assert "none of its spans says what a model was asked" in refusal.reason  # an embedding
    chat = traces["edff2fc5854be6170e8cccccec0c82cf"]
    assert [message["role"] for message in chat.input] == ["system", "user", "assistant", "user"]
    assert chat.steps[0].finish_reason == "stop"
    assert chat.steps[0].served_model == "gpt-4o-mini-2024-07-18"
    assert chat.steps[0].tokens and chat.steps[0].tokens.completion == 9


def as_protobuf(request: dict[str, Any]) -> bytes:
    """An OTLP/JSON request in protobuf, with ids as bytes."""
    message = ExportTraceServiceRequest()
    for resource_spans in request["resourceSpans"]:
        resource = message.resource_spans.add()
        for scope_spans in resource_spans["scopeSpans"]:
            scope = resource.scope_spans.add()
            for row in scope_spans["spans"]:
                proto = ProtobufSpan(
                    trace_id=bytes.fromhex(row["traceId"]),
                    span_id=bytes.fromhex(row["spanId"]),
                    parent_span_id=bytes.fromhex(row.get("parentSpanId", "")),
                    name=row["name"],
                    start_time_unix_nano=int(row["startTimeUnixNano"]),
                    end_time_unix_nano=int(row["endTimeUnixNano"]),
                )
                for pair in row["attributes"]:
                    proto.attributes.append(KeyValue(key=pair["key"], value=value_of(pair)))
                scope.spans.append(proto)
    serialized: bytes = message.SerializeToString()
    return serialized


def value_of(pair: dict[str, Any]) -> AnyValue:
    (kind, value), *_ = pair["value"].items()
    if kind == "arrayValue":
        elements = [value_of({"value": element}) for element in value["values"]]
        return AnyValue(array_value=ArrayValue(values=elements))
    names = {"stringValue": "string_value", "intValue": "int_value", "boolValue": "bool_value"}
    name = names.get(kind, "double_value")
    return AnyValue(**{name: int(value) if kind == "intValue" else value})


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_protobuf_and_json_are_the_same(framework: str) -> None:
    path = public_data(f"otel-traces/any-agent-otlp-derived/{framework}.otlp.json")
    request = json.loads(path.read_text())
    from_json = list(otlp_json_spans(request))
    from_protobuf = protobuf_spans(as_protobuf(request))
    assert [(s.trace_id, s.span_id, s.parent_id) for s in from_json] == [
        (s.trace_id, s.span_id, s.parent_id) for s in from_protobuf
    ]
    assert all(len(s.trace_id) == 32 and len(s.span_id) == 16 for s in from_protobuf)
    assert records_of(from_json) == records_of(from_protobuf)


CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
CONVENTIONS: dict[str, dict[str, Any]] = {
    "current": {
        "gen_ai.operation.name": "chat",
        "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "Be brief."}]),
        "gen_ai.input.messages": json.dumps(
            [{"role": "user", "parts": [{"type": "text", "content": "Hi"}]}]
        ),
        "gen_ai.output.messages": json.dumps(
            [{"role": "assistant", "parts": [{"type": "text", "content": "Hello!"}]}]
        ),
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.conversation.id": "s1",
    },
    "openinference": {
        "openinference.span.kind": "LLM",
        "llm.model_name": "m",
        "llm.input_messages.0.message.role": "system",
        "llm.input_messages.0.message.content": "Be brief.",
        "llm.input_messages.1.message.role": "user",
        "llm.input_messages.1.message.contents.0.message_content.text": "Hi",
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": "Hello!",
        "llm.token_count.prompt": 7,
        "llm.invocation_parameters": '{"temperature": 0.5}',
        "session.id": "s1",
    },
    "openllmetry": {
        "gen_ai.system": "OpenAI",
        "gen_ai.request.model": "m",
        "gen_ai.prompt.0.role": "system",
        "gen_ai.prompt.0.content": "Be brief.",
        "gen_ai.prompt.1.role": "user",
        "gen_ai.prompt.1.content": '[{"type": "text", "text": "Hi"}]',
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.content": "Hello!",
        "gen_ai.usage.prompt_tokens": 7,
        "gen_ai.request.temperature": 0.5,
        "traceloop.association.properties.session_id": "s1",
    },
    "vercel": {
        "ai.operationId": "ai.generateText.doGenerate",
        "ai.model.id": "m",
        "ai.prompt.messages": json.dumps(CHAT),
        "ai.response.text": "Hello!",
        "ai.usage.promptTokens": 7,
        "gen_ai.request.temperature": 0.5,
        "ai.telemetry.metadata.sessionId": "s1",
    },
}


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_every_convention_says_the_same(convention: str) -> None:
    trace = trace_of(span(attributes=CONVENTIONS[convention]))
    assert trace.input == CHAT
    assert (trace.output, trace.session) == ("Hello!", "s1")
    (step,) = trace.steps
    assert (step.kind, step.model, step.sampling) == ("llm", "m", {"temperature": 0.5})
    assert step.tokens and step.tokens.prompt == 7


def test_messages_in_events_of_2024() -> None:
    events = [
        SpanEvent("gen_ai.system.message", START, {"content": "Be brief."}),
        SpanEvent("gen_ai.user.message", START, {"content": "Hi"}),
        SpanEvent("gen_ai.choice", START, {"message": '{"role": "assistant", "content": "Yo"}'}),
    ]
    trace = trace_of(span(attributes={"gen_ai.operation.name": "chat"}, events=events))
    assert (trace.input, trace.output) == (CHAT, "Yo")


def test_tool_calls_and_their_results_in_parts() -> None:
    call = {"type": "tool_call", "id": "c1", "name": "clock", "arguments": {"zone": "UTC"}}
    result = {"type": "tool_call_response", "id": "c1", "response": {"time": "08:00"}}
    messages = [
        {"role": "user", "parts": [{"type": "text", "content": "What time is it?"}]},
        {"role": "assistant", "parts": [call]},
        {"role": "tool", "parts": [result]},
    ]
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": json.dumps(messages),
        "gen_ai.output.messages": json.dumps(
            [{"role": "assistant", "parts": [{"type": "text", "content": "Eight."}]}]
        ),
    }
    trace = trace_of(span(attributes=attributes))
    _, asked, answered = trace.input
    assert asked["tool_calls"][0]["function"] == {"name": "clock", "arguments": '{"zone": "UTC"}'}
    assert answered == {"role": "tool", "content": '{"time": "08:00"}', "tool_call_id": "c1"}
    assert trace.output == "Eight."


def test_an_answer_that_is_json_stays_as_it_is() -> None:
    attributes = {**CONVENTIONS["vercel"], "ai.response.text": '{"content": "x", "intent": "y"}'}
    assert trace_of(span(attributes=attributes)).output == '{"content": "x", "intent": "y"}'


def test_a_nested_agent_is_a_trace_with_a_parent() -> None:
    agent = {"gen_ai.operation.name": "invoke_agent"}
    inner = {**CONVENTIONS["current"], "gen_ai.output.messages": '"inner"'}
    records = records_of(
        [
            span(1, name="outer", attributes=agent),
            span(2, 1, attributes=CONVENTIONS["current"]),
            span(3, 1, name="helper", attributes=agent),
            span(4, 3, attributes=inner),
        ]
    )
    outer, helper = records
    assert isinstance(outer, TraceRecord) and isinstance(helper, TraceRecord)
    assert (outer.id, outer.parent, len(outer.steps)) == (TRACE_ID, None, 1)
    assert (helper.id, helper.parent) == (f"{TRACE_ID}/{3:016x}", TRACE_ID)
    assert (outer.output, helper.output) == ("Hello!", "inner")


def test_a_trace_is_complete_when_its_root_and_every_parent_are_there() -> None:
    assert is_complete([span(1), span(2, 1)])
    assert not is_complete([span(2, 1)])
    assert not is_complete([span(1), span(3, 2)])


def test_spans_of_a_run_may_be_spread_over_lines(tmp_path: Path) -> None:
    """In any order, and with other traces between them."""
    path = public_data("otel-traces/any-agent-otlp-derived/tinyagent.otlp.json")
    request = json.loads(path.read_text())
    spans = request["resourceSpans"][0]["scopeSpans"][0]["spans"]
    lines = []
    for number, row in enumerate(reversed(spans)):
        other = {**spans[-1], "traceId": f"{number + 1:032x}", "spanId": f"{number + 1:016x}"}
        lines.append({"resourceSpans": [{"scopeSpans": [{"spans": [row, other]}]}]})
    file = tmp_path / "spans.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    items = read("otlp", file)
    assert len(items) == 1 + len(spans)  # the others are the span of a run without its calls
    traces = [item.records[0] for item in items if isinstance(item, Line)]
    assert traces == [only_trace(read("otlp", path))]


def test_a_complete_trace_does_not_wait_for_the_end_of_the_file(tmp_path: Path) -> None:
    attributes = [
        {"key": key, "value": {"stringValue": str(value)}}
        for key, value in CONVENTIONS["current"].items()
    ]
    file = tmp_path / "spans.jsonl"
    with file.open("w") as lines:
        for number in range(1, QUIET_ROWS + 2):
            row = {"traceId": f"{number:032x}", "spanId": f"{number:016x}", "name": "chat"}
            request = {"scopeSpans": [{"spans": [{**row, "attributes": attributes}]}]}
            lines.write(json.dumps({"resourceSpans": [request]}) + "\n")
    reading = SOURCES.get("otlp").read(file, lambda position: None)
    first = next(reading)
    assert isinstance(first, Line) and first.number == 1
    assert sum(1 for _ in reading) == QUIET_ROWS


@pytest.mark.parametrize(
    ("attributes", "kind", "value"),
    [
        ({"name": "user_feedback", "score.value": 1}, "thumb", True),
        ({"name": "User Feedback", "score.label": "thumbs-down"}, "thumb", False),
        ({"name": "rating", "score.value": 4}, "rating", 4),
        ({"name": "toxicity", "score.value": 0.25}, "label", "0.25"),
        ({"name": "relevance", "score.label": "relevant"}, "label", "relevant"),
    ],
)
def test_evaluation_results_are_feedback(
    attributes: dict[str, Any], kind: str, value: object
) -> None:
    named = {f"gen_ai.evaluation.{key}": part for key, part in attributes.items()}
    event = SpanEvent(EVENT, START, named)
    trace, feedback = records_of([span(attributes=CONVENTIONS["current"], events=[event])])
    assert isinstance(feedback, FeedbackRecord)
    assert (feedback.kind, feedback.value) == (kind, value)
    assert feedback.targets[0].id == trace.id == TRACE_ID
    assert (feedback.rater is None) == (kind != "label")  # nobody says who the person was


def test_evaluation_results_come_as_log_records() -> None:
    pairs = [
        {"key": "gen_ai.evaluation.name", "value": {"stringValue": "rating"}},
        {"key": "gen_ai.evaluation.score.value", "value": {"doubleValue": 5}},
        {"key": "user.id", "value": {"stringValue": "ann"}},
    ]
    record = {"traceId": TRACE_ID, "spanId": "0" * 15 + "1", "eventName": EVENT}
    request = {"resourceLogs": [{"scopeLogs": [{"logRecords": [{**record, "attributes": pairs}]}]}]}
    (log,) = otlp_json_logs(request)
    feedback = evaluation_record(log.event, log.trace_id)
    assert (feedback.kind, feedback.value) == ("rating", 5)
    assert feedback.rater and (feedback.rater.id, feedback.rater.kind) == ("ann", "person")
    with pytest.raises(Unreadable, match="belongs to no trace"):
        evaluation_record(log.event, None)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"traceId": "xyz", "spanId": "1" * 16}, "no id of 32 hex digits"),
        ({"traceId": TRACE_ID, "spanId": "W4Lv/3mAOBI="}, "no id of 16 hex digits"),
        ({"traceId": "0" * 32, "spanId": "1" * 16}, "no trace id and span id"),
        ({"context": {}, "attributes": {}}, "no trace id and span id"),
        (
            {"traceId": TRACE_ID, "spanId": "1" * 16, "startTimeUnixNano": "soon"},
            "no whole number",
        ),
        ({"traceId": TRACE_ID, "spanId": "1" * 16, "attributes": 7}, "is no list"),
    ],
)
def test_what_is_no_span_is_refused(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unreadable, match=reason):
        sdk_span(row)


def test_spans_that_are_each_others_parents() -> None:
    with pytest.raises(Unreadable, match="each other's parents"):
        records_of([span(1, 2), span(2, 1)])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)
NAMES = st.sampled_from(
    sorted({name for attributes in CONVENTIONS.values() for name in attributes})
)


@given(st.dictionaries(NAMES, JSON, max_size=6), st.lists(st.dictionaries(NAMES, JSON), max_size=2))
def test_hostile_attributes_are_refused_and_never_break_anything(
    attributes: dict[str, Any], events: list[dict[str, Any]]
) -> None:
    row = {"spanContext": {"traceId": TRACE_ID, "spanId": "1" * 16}, "attributes": attributes}
    row["events"] = [{"name": "gen_ai.choice", "attributes": event} for event in events]
    with suppress(Unreadable, ValidationError):
        records_of(spans_of_row(row))


@given(st.binary(max_size=200))
def test_hostile_protobuf_is_refused(request: bytes) -> None:
    with suppress(Unreadable):
        protobuf_spans(request)
