"""A call becomes a line that an import takes, whatever was asked and answered."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recorded_replies import (
    ANTHROPIC,
    LLAMA_CHAT,
    OPENAI_CHAT,
    REPLIES,
    STREAM,
    TOOL_CHAT,
    Recorded,
)
from tests.scrambled_json import json_values, scrambled
from thumbwheel.gateway.protocols import PROTOCOLS
from thumbwheel.gateway.record import Timing, trace_line
from thumbwheel.gateway.reply_draft import CLIENT_LEFT
from thumbwheel.gateway.routing import Choice, Price, Upstream
from thumbwheel.importers.lines import LONGEST
from thumbwheel.importers.recordable import MAX_CHARACTERS, MAX_VALUES
from thumbwheel.importers.rowfile import row_of
from thumbwheel.importers.source import Line
from thumbwheel.importers.sources.jsonl import SOURCE
from thumbwheel.importers.types import TraceRecord

UPSTREAM = Upstream("v3", "dep_1", "remote", "http://x/v1", "m", price=Price(2.0, 8.0))
CHOICE = Choice("v3", "dep_1", UPSTREAM, "b", {"a": 0.5, "b": 0.5}, "experiment")
TIMING = Timing(datetime(2026, 1, 5, 8, 30, tzinfo=UTC), 0.25, 1.5)
BODIES: dict[str, dict[str, Any]] = {
    "openai_chat": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
    "openai_completions": {"prompt": ["Hi", [1, 2]]},
    "openai_responses": {
        "instructions": "S",
        "input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}],
        "tools": [{"type": "function", "name": "f"}],
    },
    "openai_embeddings": {"input": ["Hi"]},
    "anthropic_messages": {
        "system": "S",
        "messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}],
        "tools": [{"name": "f", "input_schema": {}}],
        "metadata": {"user_id": "u"},
    },
    "ollama_chat": {
        "messages": [{"role": "user", "content": "Hi", "images": ["x"]}],
        "options": {},
    },
    "ollama_generate": {"prompt": "Hi", "system": "S", "options": {"stop": ["a"]}},
}


def line_of(
    recorded: Recorded, body: Any, headers: dict[str, str], cause: str | None = None
) -> Any:
    stream = recorded.content_type == STREAM
    protocol = PROTOCOLS[recorded.protocol]
    call = protocol.request(
        {"model": "filer", "stream": stream, **recorded.request, **body}, headers
    )
    reader = call.reply_reader(recorded.status, {"content-type": recorded.content_type})
    reader.feed(recorded.body if cause is None else recorded.body[: len(recorded.body) // 2])
    reply = reader.finish(cause)
    return trace_line(call, reply, CHOICE, TIMING, agent="filer", trace_id="t1")


def imported(line: dict[str, Any]) -> TraceRecord:
    """The record that the reader of the inbox makes of the line."""
    raw = json.dumps(line, ensure_ascii=False, allow_nan=False).encode()
    assert len(raw) <= LONGEST
    row = row_of(raw)
    assert row.pop("agent") == "filer"
    item = SOURCE.item(1, row, "")
    assert isinstance(item, Line), item
    (record,) = item.records
    assert isinstance(record, TraceRecord)
    return record


def test_a_line_says_what_was_asked_and_who_answered_and_what_it_cost() -> None:
    headers = {"x-thumbwheel-session": "s1", "x-thumbwheel-metadata": '{"page": 3}'}
    record = imported(line_of(OPENAI_CHAT, BODIES["openai_chat"] | {"temperature": 0.5}, headers))
    (step,) = record.steps
    assert (record.id, record.session, record.status) == ("t1", "s1", "ok")
    assert record.input == [{"role": "user", "content": "Hi"}]
    assert record.output == OPENAI_CHAT.expected["text"]
    assert record.metadata == {
        "page": 3,
        "gateway": {"protocol": "openai_chat", "reply_id": "chatcmpl-1"},
    }
    assert (step.model, step.served_model, step.model_version) == ("filer", "gpt-x-2026", "v3")
    assert (step.deployment, step.sampling, step.finish_reason) == (
        "dep_1",
        {"temperature": 0.5},
        "stop",
    )
    assert step.tokens is not None
    assert (step.tokens.prompt, step.tokens.cached, step.tokens.reasoning) == (12, 4, 1)
    assert step.cost == pytest.approx((12 * 2 + 3 * 8) / 1e6)
    assert step.routing is not None
    assert (step.routing.arm, step.routing.probabilities) == ("b", {"a": 0.5, "b": 0.5})
    assert step.started_at is not None
    assert step.first_token_at is not None
    assert step.ended_at is not None
    assert (step.first_token_at - step.started_at).total_seconds() == 0.25
    assert (step.ended_at - step.started_at).total_seconds() == 1.5
    assert step.complete is True


def test_token_ids_and_log_probabilities_are_those_of_the_server() -> None:
    (step,) = imported(line_of(LLAMA_CHAT, BODIES["openai_chat"], {})).steps
    assert (step.token_ids, step.token_logprobs) == ([17, 4], [-0.25, -1.5])


def test_an_answer_of_tool_calls_is_no_output() -> None:
    record = imported(line_of(TOOL_CHAT, BODIES["openai_chat"], {}))
    (step,) = record.steps
    assert record.output is None
    assert [call["function"]["name"] for call in step.output["tool_calls"]] == ["move", "copy"]


def test_reasoning_is_a_step_before_the_answer() -> None:
    steps = imported(line_of(ANTHROPIC, BODIES["anthropic_messages"], {})).steps
    assert [step.kind for step in steps] == ["reasoning", "llm"]
    assert steps[0].output == "Let me see… "


def test_the_client_left() -> None:
    record = imported(line_of(OPENAI_CHAT, BODIES["openai_chat"], {}, CLIENT_LEFT))
    (step,) = record.steps
    assert (record.status, step.status, step.complete) == ("cancelled", "cancelled", False)
    assert step.error == CLIENT_LEFT
    assert record.output is not None
    assert record.output.startswith("Grüße")


def test_the_upstream_failed() -> None:
    record = imported(line_of(OPENAI_CHAT, BODIES["openai_chat"], {}, "the upstream was reset"))
    (step,) = record.steps
    assert (record.status, step.error) == ("error", "the upstream was reset")


def test_a_request_that_is_too_long_is_cut_and_says_so() -> None:
    many = [{"role": "user", "content": "\x01"}] * MAX_VALUES
    long = [{"role": "user", "content": "\x01" * (MAX_CHARACTERS + 1)}]
    for messages in (many, long):
        record = imported(line_of(OPENAI_CHAT, {"messages": messages}, {}))
        assert record.metadata is not None
        assert record.metadata["gateway"]["truncated"] == ["input"]
        assert record.steps[0].complete is False


JSON = json_values("\ud83d", "\x00", "tool_result", "function_call", "user", "x" * 600)


@pytest.mark.parametrize("recorded", REPLIES, ids=lambda recorded: recorded.name)
@given(st.lists(JSON, min_size=1, max_size=6), st.integers(), st.text(max_size=8))
@settings(max_examples=25, deadline=None)
def test_every_call_becomes_a_line_that_is_taken(
    recorded: Recorded, junk: list[Any], seed: int, header: str
) -> None:
    chance = random.Random(seed)
    deep: Any = "deep"
    for _ in range(190):
        deep = [deep]
    body = {
        key: scrambled(value, chance, [*junk, deep], 0.2)
        for key, value in BODIES[recorded.protocol].items()
    }
    body |= {"metadata": chance.choice(junk), "temperature": chance.choice(junk), "user": header}
    names = ("session", "subject", "parent", "metadata", "feedback-id", "agent")
    imported(line_of(recorded, body, {f"x-thumbwheel-{name}": header for name in names}))
