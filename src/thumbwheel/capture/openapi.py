"""What the HTTP side of capture takes and answers, as OpenAPI says it, with examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REASONS = {
    400: "The body cannot be read.",
    403: "The feedback token does not allow it.",
    413: "The body is too large.",
    415: "The content type or the packing is another one.",
    422: "No row can be stored.",
    429: "Too much waits for the disk; nothing was stored.",
    507: "The disk refuses it; nothing was stored.",
}
NAME = {"type": "string", "minLength": 1, "maxLength": 512}
MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool", "function"]},
        "content": {"type": "string"},
    },
}
TRACE = {
    "type": "object",
    "required": ["input"],
    "properties": {
        "agent": {**NAME, "description": "Where neither the path nor a header names it."},
        "id": NAME,
        "session": NAME,
        "subject": {**NAME, "description": "Whose data it is; an erasure finds it."},
        "input": {"oneOf": [{"type": "string"}, {"type": "array", "items": MESSAGE}]},
        "output": {"type": ["string", "null"]},
        "model": NAME,
        "status": {"type": "string", "minLength": 1, "maxLength": 32},
        "occurred_at": {"type": "string", "format": "date-time"},
        "metadata": {"type": "object"},
        "steps": {"type": "array", "items": {"type": "object"}},
    },
    "example": {"id": "t1", "input": "Opening hours?", "output": "Nine to five.", "session": "s1"},
}
FEEDBACK = {
    "type": "object",
    "properties": {
        "agent": NAME,
        "id": NAME,
        "trace": NAME,
        "session": NAME,
        "step": {"type": "array", "description": "[trace id, position]"},
        "rater": {"oneOf": [NAME, {"type": "object"}]},
        "thumb": {"type": "boolean"},
        "rating": {"type": "number", "minimum": 1, "maximum": 5},
        "score": {"type": "number", "minimum": 0, "maximum": 1},
        "correction": {"type": "string", "minLength": 1},
        "label": {"type": ["string", "boolean"]},
        "outcome": {"type": ["number", "boolean"]},
        "name": {"type": "string", "minLength": 1, "maxLength": 256},
        "comment": {"type": "string"},
        "supersedes": NAME,
        "retracts": NAME,
        "occurred_at": {"type": "string", "format": "date-time"},
        "metadata": {"type": "object"},
    },
    "example": {"trace": "t1", "thumb": False, "rater": "customer-17", "comment": "Wrong."},
}
TOKEN_REQUEST = {
    "type": "object",
    "required": ["trace"],
    "properties": {"agent": NAME, "trace": NAME},
    "example": {"trace": "t1"},
}
TENSORZERO = {
    "type": "object",
    "required": ["metric_name", "value"],
    "properties": {
        "metric_name": {"type": "string", "minLength": 1},
        "inference_id": NAME,
        "episode_id": NAME,
        "value": {},
        "tags": {"type": "object"},
        "dryrun": {"type": "boolean"},
    },
    "example": {"inference_id": "t1", "metric_name": "thumbs", "value": True},
}
LANGFUSE = {
    "type": "object",
    "required": ["name", "value"],
    "properties": {
        "id": NAME,
        "traceId": NAME,
        "sessionId": NAME,
        "name": {"type": "string", "minLength": 1},
        "value": {},
        "dataType": {"enum": ["NUMERIC", "CATEGORICAL", "BOOLEAN", "CORRECTION"]},
        "comment": {"type": "string"},
    },
    "example": {"traceId": "t1", "name": "user-feedback", "value": 1, "dataType": "NUMERIC"},
}
LANGFUSE_BATCH = {
    "type": "object",
    "required": ["batch"],
    "properties": {
        "batch": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["id", "type", "timestamp", "body"],
                "properties": {
                    "id": NAME,
                    "type": {"enum": ["score-create"]},
                    "timestamp": {"type": "string", "format": "date-time"},
                    "body": LANGFUSE,
                },
            },
        }
    },
    "example": {
        "batch": [
            {
                "id": "e1",
                "type": "score-create",
                "timestamp": "2026-01-05T08:30:00Z",
                "body": LANGFUSE["example"],
            }
        ]
    },
}
OF_EVENTS = {
    "type": "object",
    "required": ["successes", "errors"],
    "properties": {
        "successes": {"type": "array", "items": {"type": "object"}},
        "errors": {"type": "array", "items": {"type": "object"}},
    },
}
IDS = {
    "type": "object",
    "required": ["ids"],
    "properties": {
        "ids": {"type": "array", "items": {"type": ["string", "null"]}},
        "refused": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["index", "reason"],
                "properties": {"index": {"type": "integer"}, "reason": {"type": "string"}},
            },
        },
    },
}
FEEDBACK_ID = {
    "type": "object",
    "required": ["feedback_id"],
    "properties": {"feedback_id": {"type": "string"}},
}
ID = {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}}
TOKEN = {
    "type": "object",
    "required": ["token", "trace"],
    "properties": {"token": {"type": "string"}, "trace": {"type": "string"}},
}
OTLP_ANSWER = {"type": "object", "properties": {"partialSuccess": {"type": "object"}}}


def rows(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request body of one such row, a list of them, or JSON lines."""
    either = {"oneOf": [dict(schema), {"type": "array", "items": dict(schema)}]}
    return {
        "required": True,
        "content": {
            "application/json": {"schema": either, "example": schema["example"]},
            "application/x-ndjson": {"schema": {"type": "string"}},
        },
    }


def row(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request body of one such row."""
    return {
        "required": True,
        "content": {"application/json": {"schema": dict(schema), "example": schema["example"]}},
    }


def otlp(message: str) -> dict[str, Any]:
    """Return a request body of OTLP/HTTP."""
    binary = {"schema": {"type": "string", "format": "binary"}}
    json_body = {"schema": {"type": "object", "description": f"{message} as OTLP/JSON"}}
    content = {"application/x-protobuf": binary, "application/json": json_body}
    return {"required": True, "content": content}


def operation(
    summary: str, body: Mapping[str, Any], status: int, answer: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the operation that accepts `body` and answers with `status`."""
    content: dict[str, Any] = {"application/json": {"schema": dict(answer)}}
    if "application/x-protobuf" in body["content"]:
        content["application/x-protobuf"] = {"schema": {"type": "string", "format": "binary"}}
    responses: dict[str, Any] = {str(status): {"description": "Stored.", "content": content}}
    for code, reason in REASONS.items():  # what a problem looks like, the server says for all
        responses[str(code)] = {"description": reason}
    return {"summary": summary, "requestBody": dict(body), "responses": responses}
