"""Requests that no honest client sends: valid bodies of every route, broken in one or several of
many ways. The same seed gives the same requests."""

from __future__ import annotations

import copy
import gzip
import json
import os
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

COUNT = int(os.environ.get("THUMBWHEEL_FUZZ", "320"))
"""Broken requests of a test; `make fuzz` sends 20,000."""
ROUNDS = max(1, COUNT // 320)
"""Of tests that ask every operation: requests of each."""
JSON = "application/json"
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
SPAN = {
    "traceId": "5b8efff798038103d269b633813fc60c",
    "spanId": "eee19b7ec3c1b174",
    "name": "chat",
    "startTimeUnixNano": "1767600000000000000",
    "attributes": [
        {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
        {"key": "gen_ai.input.messages", "value": {"stringValue": json.dumps(CHAT)}},
        {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "7"}},
        {"key": "gen_ai.response.finish_reasons", "value": {"arrayValue": {"values": []}}},
    ],
    "events": [{"name": "gen_ai.choice", "timeUnixNano": "1767600000000000001"}],
}
LOG = {
    "traceId": "5b8efff798038103d269b633813fc60c",
    "eventName": "gen_ai.evaluation.result",
    "attributes": [
        {"key": "gen_ai.evaluation.name", "value": {"stringValue": "thumbs"}},
        {"key": "gen_ai.evaluation.score.value", "value": {"doubleValue": 1.0}},
    ],
}
TRACE = {
    "id": "t1",
    "input": CHAT,
    "output": "Hello!",
    "session": "s1",
    "steps": [{"kind": "llm", "model": "m", "tokens": {"prompt": 3}, "sampling": {"top_p": 0.5}}],
    "occurred_at": "2026-01-05T08:00:00Z",
    "metadata": {"a": [1, {"b": None}]},
}
FEEDBACK = {"trace": "t1", "rating": 4, "rater": {"id": "ann", "kind": "person"}, "comment": "So."}
BODIES: Mapping[str, Any] = {
    "/a/desk/api/traces": TRACE,
    "/a/desk/api/feedback": FEEDBACK,
    "/a/desk/api/feedback-tokens": {"trace": "t1"},
    "/a/desk/feedback": {"inference_id": "t1", "metric_name": "thumbs", "value": True, "tags": {}},
    "/a/desk/api/public/scores": {"traceId": "t1", "name": "stars", "value": 4, "dataType": "N"},
    "/a/desk/api/public/ingestion": {
        "batch": [
            {
                "id": "e1",
                "type": "score-create",
                "timestamp": "2026-01-05T08:00:00Z",
                "body": {"traceId": "t1", "name": "stars", "value": 4},
            }
        ]
    },
    "/a/desk/v1/traces": {"resourceSpans": [{"scopeSpans": [{"spans": [SPAN]}]}]},
    "/a/desk/v1/logs": {"resourceLogs": [{"scopeLogs": [{"logRecords": [LOG]}]}]},
}
"""Path -> a body that is taken there."""
CALLS: Mapping[str, Any] = {
    "/a/support/v1/chat/completions": {"model": "m", "messages": CHAT, "temperature": 0.5},
    "/a/support/v1/completions": {"model": "m", "prompt": "Hi", "stream": True},
    "/a/support/v1/responses": {"model": "m", "input": CHAT, "instructions": "Be brief."},
    "/a/support/v1/embeddings": {"model": "m", "input": ["Hi"]},
    "/a/support/v1/messages": {"model": "m", "messages": CHAT[1:], "max_tokens": 9, "tools": []},
    "/a/support/api/chat": {"model": "m", "messages": CHAT, "options": {"top_k": 3}},
    "/a/support/api/generate": {"model": "m", "prompt": "Hi", "stream": False},
}
"""Path -> a call that the gateway passes on."""
VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    10**30,
    1.5e308,
    "",
    " ",
    "\x00",
    "a\x00b",
    "\ud800",
    "\u202e\x1b[31m",
    "../../etc/passwd",
    "' OR 1=1 --",
    "x" * 100_000,
    [],
    {},
    [[]],
    {"": ""},
    [None] * 1000,
    "2026-13-45T99:99:99Z",
    "9" * 400,
)
"""What takes the place of a value."""
NUMBERS = ("1e999", "-1e999", "NaN", "Infinity", "9" * 5000, "-0.0")
"""Numbers that JSON of ours never has."""
MARK = "number-to-be"


@dataclass(frozen=True)
class HostileRequest:
    """A request."""

    path: str
    headers: dict[str, str]
    content: bytes


def hostile_requests(seed: int, count: int, bodies: Mapping[str, Any]) -> Iterator[HostileRequest]:
    """So many requests to the paths of `bodies`."""
    chance = random.Random(seed)
    paths = sorted(bodies)
    for _ in range(count):
        path = chance.choice(paths)
        content = _content(chance, copy.deepcopy(bodies[path]))
        headers = {"content-type": JSON}
        if path.endswith(("/v1/traces", "/v1/logs")) and chance.random() < 0.3:
            headers["content-type"] = "application/x-protobuf"
            content = _protobuf(chance, path)
        if chance.random() < 0.1:
            headers["content-type"] = chance.choice(["", "text/html", "application/json;charset=x"])
        if chance.random() < 0.1:
            headers["idempotency-key"] = chance.choice(["k", "k" * 500, "..", "\xff"])
        if chance.random() < 0.1:
            headers["authorization"] = chance.choice(["Bearer f1.1.2", "Bearer", "Basic eDp5"])
        if chance.random() < 0.15:
            content = gzip.compress(content, 1)
            headers["content-encoding"] = "gzip"
            if chance.random() < 0.5:
                content = _damaged(chance, content)
        yield HostileRequest(_odd_path(chance, path), headers, content)


def _content(chance: random.Random, body: Any) -> bytes:
    for _ in range(chance.randint(1, 3)):
        body = _changed(chance, body)
    if chance.random() < 0.1:
        body = [body] * chance.randint(0, 5)
    text = json.dumps(body)
    while MARK in text:
        text = text.replace(f'"{MARK}"', chance.choice(NUMBERS), 1)
    content = text.encode()
    if chance.random() < 0.15:
        content = _damaged(chance, content)
    if chance.random() < 0.02:
        content = b"[" * 100_000
    return content


def _changed(chance: random.Random, value: Any) -> Any:
    """The value with one place in it replaced, removed, repeated or renamed."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        key = chance.choice(sorted(value))
        action = chance.random()
        if action < 0.1:
            del value[key]
        elif action < 0.2:
            value[chance.choice(["type", "agent", "id", "\x00", "spam"])] = value[key]
        else:
            value[key] = _changed(chance, value[key])
        return value
    if isinstance(value, list) and value and chance.random() < 0.85:
        index = chance.randrange(len(value))
        if chance.random() < 0.2:
            return value * 3
        value[index] = _changed(chance, value[index])
        return value
    return MARK if chance.random() < 0.15 else copy.deepcopy(chance.choice(VALUES))


def _damaged(chance: random.Random, content: bytes) -> bytes:
    """The bytes cut off, or some of them changed."""
    if not content or chance.random() < 0.3:
        return content[: chance.randint(0, len(content))]
    damaged = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
    return bytes(damaged)


def _protobuf(chance: random.Random, path: str) -> bytes:
    """A request in protobuf with odd ids, values and times."""
    odd = bytes(chance.randrange(256) for _ in range(chance.choice([0, 8, 16, 16, 20])))
    if path.endswith("/v1/logs"):
        logs = ExportLogsServiceRequest()
        record = logs.resource_logs.add().scope_logs.add().log_records.add(trace_id=odd)
        record.event_name = "gen_ai.evaluation.result"
        record.time_unix_nano = chance.choice([0, 1, 2**63])
        attribute = record.attributes.add(key="gen_ai.evaluation.score.value")
        attribute.value.double_value = chance.choice([1.0, float("nan"), float("inf")])
        content: bytes = logs.SerializeToString()
    else:
        traces = ExportTraceServiceRequest()
        span = traces.resource_spans.add().scope_spans.add().spans.add(trace_id=odd)
        span.span_id = odd[:8]
        span.start_time_unix_nano = chance.choice([0, 1, 2**63])
        attribute = span.attributes.add(key="gen_ai.input.messages")
        attribute.value.string_value = chance.choice(["", "a\x00b", "[" * 5000, json.dumps(CHAT)])
        content = traces.SerializeToString()
    return _damaged(chance, content) if chance.random() < 0.4 else content


def _odd_path(chance: random.Random, path: str) -> str:
    if chance.random() < 0.1:
        agent = chance.choice(["%00", "..%2f..", "x" * 300, "%ff", "a b", "Ünï"])
        return path.replace("/desk/", f"/{agent}/")
    return path
