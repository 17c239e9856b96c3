"""The embedded server answers with JSON, tool calls, several answers and vectors."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models.tiny_models import CHATML_WITH_TOOLS, tiny_base, tiny_tokenizer
from thumbwheel.core.errors import DataError, InputError
from thumbwheel.deploy.embedded import (
    CompletionRequest,
    EmbeddedServer,
    EmbeddingRequest,
    LoadRequest,
)
from thumbwheel.deploy.targets.embedded import SPEC

QUESTION = {"role": "user", "content": "Hello"}
TURN = {"enum": ["left", "right"]}
SCHEMA = {
    "type": "object",
    "properties": {"turn": {"$ref": "#/$defs/turn"}},
    "required": ["turn"],
    "additionalProperties": False,
    "$defs": {"turn": TURN},
}
TOOL = {"type": "function", "function": {"name": "move", "parameters": SCHEMA}}
OTHER = {"type": "function", "function": {"name": "look"}}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA}}


def server_over(base: Path, folder: Path) -> EmbeddedServer:
    (folder / SPEC).write_text(json.dumps({"base": str(base), "dtype": "float32", "device": "cpu"}))
    server = EmbeddedServer(folder)
    server.load(LoadRequest(lora_name="base"))
    return server


@pytest.fixture(scope="module")
def embedded_server(tmp_path_factory: pytest.TempPathFactory) -> EmbeddedServer:
    tokenizer = tiny_tokenizer(CHATML_WITH_TOOLS)
    folder = tmp_path_factory.mktemp("base")
    base = tiny_base(folder / "base", tokenizer=tokenizer, max_position_embeddings=1024)
    return server_over(base, tmp_path_factory.mktemp("place"))


def request(**fields: Any) -> CompletionRequest:
    body = {"model": "base", "messages": [QUESTION], "max_tokens": 120, "seed": 1, **fields}
    return CompletionRequest.model_validate(body)


def ask(server: EmbeddedServer, **fields: Any) -> dict[str, Any]:
    return server.begin(request(**fields), chat=True).whole()


def streamed(server: EmbeddedServer, **fields: Any) -> list[dict[str, Any]]:
    """The choices of the chunks of a stream."""
    events = list(server.begin(request(**fields), chat=True).events())
    assert events.pop() == "data: [DONE]\n\n"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    return [choice for chunk in chunks for choice in chunk["choices"]]


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_a_schema_is_followed_by_a_model_that_knows_nothing(
    embedded_server: EmbeddedServer, temperature: float
) -> None:
    (choice,) = ask(embedded_server, response_format=JSON_SCHEMA, temperature=temperature)[
        "choices"
    ]
    assert json.loads(choice["message"]["content"])["turn"] in TURN["enum"]
    assert choice["finish_reason"] == "stop"
    text = "".join(
        choice["delta"].get("content", "")
        for choice in streamed(
            embedded_server, response_format=JSON_SCHEMA, temperature=temperature
        )
    )
    assert text == choice["message"]["content"]


def test_a_json_object_is_an_object(embedded_server: EmbeddedServer) -> None:
    (choice,) = ask(embedded_server, response_format={"type": "json_object"})["choices"]
    text = choice["message"]["content"]
    assert text.startswith("{")
    if choice["finish_reason"] == "stop":
        assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize(
    "tool_choice", ["required", {"type": "function", "function": {"name": "move"}}]
)
def test_a_call_that_is_asked_for_comes_whole_and_streamed(
    embedded_server: EmbeddedServer, tool_choice: Any
) -> None:
    (choice,) = ask(embedded_server, tools=[TOOL], tool_choice=tool_choice)["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert choice["message"]["content"] is None and choice["finish_reason"] == "tool_calls"
    assert call["function"]["name"] == "move" and call["id"] and call["type"] == "function"
    assert json.loads(call["function"]["arguments"])["turn"] in TURN["enum"]
    chunks = streamed(embedded_server, tools=[TOOL], tool_choice=tool_choice)
    deltas = [chunk["delta"] for chunk in chunks if "tool_calls" in chunk["delta"]]
    assert [delta["tool_calls"][0]["function"] for delta in deltas] == [call["function"]]
    assert chunks[-1]["finish_reason"] == "tool_calls"
    assert "".join(chunk["delta"].get("content") or "" for chunk in chunks) == ""


@pytest.mark.parametrize(
    "tool_choice", ["required", {"type": "function", "function": {"name": "move"}}]
)
def test_no_call_is_forced_where_the_template_shows_no_tools(
    tool_choice: Any, tiny_model: Path, tmp_path: Path
) -> None:
    server = server_over(tiny_model, tmp_path)
    with pytest.raises(InputError, match="shows the model no tools") as refused:
        ask(server, tools=[TOOL], tool_choice=tool_choice)
    assert "Leave tool_choice out" in refused.value.fix
    assert ask(server, tools=[TOOL], max_tokens=3)["choices"]


def test_an_answer_of_a_schema_may_be_a_call_where_tools_are_offered(
    embedded_server: EmbeddedServer,
) -> None:
    kinds = set()
    for seed in range(12):
        answer = ask(
            embedded_server, response_format=JSON_SCHEMA, tools=[TOOL], seed=seed, temperature=9.0
        )
        (choice,) = answer["choices"]
        kinds.add(choice["finish_reason"])
        if choice["finish_reason"] == "stop":
            assert json.loads(choice["message"]["content"])["turn"] in TURN["enum"]
    assert kinds == {"stop", "tool_calls"}


def test_several_answers_differ_and_the_first_is_that_of_one(
    embedded_server: EmbeddedServer,
) -> None:
    fields: dict[str, Any] = {"max_tokens": 8, "temperature": 1.5}
    several = ask(embedded_server, n=3, **fields)
    texts = [choice["message"]["content"] for choice in several["choices"]]
    assert [choice["index"] for choice in several["choices"]] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert texts[0] == ask(embedded_server, **fields)["choices"][0]["message"]["content"]
    assert several["usage"]["completion_tokens"] <= 24
    choices = streamed(embedded_server, n=3, **fields)
    for index, text in enumerate(texts):
        parts = [choice for choice in choices if choice["index"] == index]
        assert "".join(choice["delta"].get("content") or "" for choice in parts) == text
        assert parts[-1]["finish_reason"]


def test_the_stop_text_is_named(embedded_server: EmbeddedServer) -> None:
    text = ask(embedded_server, temperature=0)["choices"][0]["message"]["content"]
    stop = text[3:6]
    (choice,) = ask(embedded_server, temperature=0, stop=["never here", stop])["choices"]
    assert choice["stop_reason"] == stop and choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == text[: text.index(stop)]


def test_log_probabilities_count_every_token_of_a_constrained_answer(
    embedded_server: EmbeddedServer,
) -> None:
    answer = ask(embedded_server, response_format=JSON_SCHEMA, logprobs=True, top_logprobs=2)
    content = answer["choices"][0]["logprobs"]["content"]
    assert len(content) == answer["usage"]["completion_tokens"]
    entries = [
        entry
        for choice in streamed(embedded_server, tools=[TOOL], tool_choice="required", logprobs=True)
        if choice["logprobs"]
        for entry in choice["logprobs"]["content"]
    ]
    (choice,) = ask(embedded_server, tools=[TOOL], tool_choice="required", logprobs=True)["choices"]
    assert entries == choice["logprobs"]["content"]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"response_format": {"type": "grammar"}}, "json_schema"),
        ({"response_format": {"type": "json_schema"}}, "json_schema"),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"schema": {"type": "nonsense"}},
                }
            },
            "schema",
        ),
        ({"tool_choice": "required"}, "no tool"),
        ({"tools": [TOOL], "tool_choice": {"function": {"name": "fly"}}}, "no such tool"),
        ({"tools": [TOOL], "tool_choice": {"function": {"name": ["move"]}}}, "no such tool"),
        ({"tools": [{"type": "web_search"}]}, "not a function"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"repeat_penalty": 1.1}, "repeat_penalty"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "text only",
        ),
    ],
)
def test_what_it_cannot_do_is_refused(
    embedded_server: EmbeddedServer, fields: dict[str, Any], why: str
) -> None:
    with pytest.raises(InputError, match=why):
        ask(embedded_server, **fields)


def test_fields_that_change_nothing_are_taken(embedded_server: EmbeddedServer) -> None:
    fields = {
        "frequency_penalty": 0.0,
        "presence_penalty": None,
        "repeat_penalty": 1.0,
        "logit_bias": {},
        "response_format": {"type": "text"},
        "tools": [TOOL, OTHER],
        "tool_choice": "none",
        "user": "customer-17",
    }
    assert ask(embedded_server, max_tokens=2, **fields)["choices"]


def test_hostile_schemas_end(embedded_server: EmbeddedServer) -> None:
    deep: Any = {}
    for _ in range(3000):
        deep = {"type": "array", "items": deep}
    schemas: list[Any] = [
        deep,
        {"pattern": "(a+)+$" * 50, "type": "string"},
        {"type": "string", "pattern": "(" * 100},
        {"$ref": "#/nowhere"},
        {"$ref": "http://127.0.0.1:1/x"},
        {"enum": []},
        {"type": "object", "x-guidance": {"whitespace_pattern": "(x|y)*"}},
        {"minLength": 10**9, "type": "string"},
    ]
    for schema in schemas:
        format = {"type": "json_schema", "json_schema": {"schema": schema}}
        try:
            answer = ask(embedded_server, response_format=format, max_tokens=3)
        except InputError:
            continue
        assert answer["choices"][0]["finish_reason"] in ("stop", "length")


def test_embeddings_are_of_length_one_and_tell_texts_apart(embedded_server: EmbeddedServer) -> None:
    def embed(input: Any, **more: Any) -> list[Any]:
        fields = {"model": "base", "input": input, **more}
        result = embedded_server.embed(EmbeddingRequest.model_validate(fields))
        return [row["embedding"] for row in result["data"]]

    first, second = embed(["The quick brown fox", "17 * 23"])
    assert np.linalg.norm(first) == pytest.approx(1) and first != second
    assert embed("The quick brown fox") == [first]
    ids = list(embedded_server.generator.tokenizer("17 * 23")["input_ids"])
    assert embed(ids) == embed([ids]) == [second]
    (packed,) = embed("17 * 23", encoding_format="base64")
    assert np.frombuffer(base64.b64decode(packed), "<f4") == pytest.approx(second)
    for wrong in ("", [], "word " * 10_000, [10**6]):
        with pytest.raises((DataError, InputError)):
            embed(wrong)
    with pytest.raises(InputError, match="dimensions"):
        embed("Hi", dimensions=8)
