"""One converter reads the messages of every dialect: calls of tools are calls, results are no words
of the user, pictures stay, thoughts are steps, every good turn is learned from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.brought.reading import answers, brought, refusals, signals, traces, written
from thumbwheel.core.errors import DataError
from thumbwheel.engine.messages import normalize
from thumbwheel.importers.messages import chat, tools_of, without_thoughts
from thumbwheel.importers.types import TraceRecord

HOURS = {"name": "hours", "arguments": '{"day": "today"}'}
DAY = {"day": "today"}


def roles(trace: TraceRecord) -> list[str]:
    return [message["role"] for message in trace.input]


def calls(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [call["function"] for call in message.get("tool_calls", [])]


# Several turns


def test_every_turn_of_weight_1_is_learned_from_and_no_other() -> None:
    path = brought("13-openai-weights/weights.jsonl")
    kept_traces = traces(path)
    good = [trace.output for trace in kept_traces if trace.output != "No idea."]
    assert good == ["Until six.", "Sorry: until six.", "Uno.", "Dos.", "Tres."]
    assert signals(path) == [("label", True)] * 5
    assert "Shut up." not in answers(path)


OFF: list[dict[str, Any]] = [
    {"weight": 0},
    {"loss": False},
    {"train": False},
    {"mask": True},
    {"masked": True},
    {"mask": "true"},
    {"loss_mask": [0, 0]},
    {"train": True, "weight": 0},
    {"train_detail": [{"begin_offset": 0, "end_offset": 4, "train": False}]},
]
"""How trainers say of a message that it is not learned from."""
ON: list[dict[str, Any]] = [
    {"mask": False},
    {"masked": 0},
    {"mask": None},
    {"loss_mask": [1, 1]},
    {"train_detail": [{"begin_offset": 0, "end_offset": 4, "train": True}]},
]
TURNED_OFF = {"role": "assistant", "content": "Eins."}
TWO_TURNS = [
    {"role": "user", "content": "One?"},
    TURNED_OFF,
    {"role": "user", "content": "Two?"},
    {"role": "assistant", "content": "Dos."},
]


def with_marked_turn(shape: str, mark: dict[str, Any]) -> dict[str, Any]:
    """A row of two answers, of which the first has the mark."""
    turns = [{**turn, **mark} if turn is TURNED_OFF else turn for turn in TWO_TURNS]
    if shape == "sharegpt":
        names = {"role": "from", "content": "value"}
        turns = [{names.get(key, key): value for key, value in turn.items()} for turn in turns]
        return {"conversations": turns}
    if shape == "gemini":
        return {"contents": [{**turn, "parts": [{"text": turn["content"]}]} for turn in turns]}
    return {shape: turns}


@pytest.mark.parametrize("shape", ["messages", "conversation", "sharegpt", "gemini"])
@pytest.mark.parametrize("off", OFF, ids=str)
def test_a_turn_that_is_switched_off_is_not_learned_from(
    shape: str, off: dict[str, Any], tmp_path: Path
) -> None:
    path = written(tmp_path / "rows.jsonl", with_marked_turn(shape, off))
    assert answers(path) == ["Dos."]
    assert signals(path) == [("label", True)]


@pytest.mark.parametrize("on", ON, ids=str)
def test_a_turn_that_is_not_masked_is_learned_from(on: dict[str, Any], tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", with_marked_turn("messages", on))
    assert answers(path) == ["Eins.", "Dos."]
    assert signals(path) == [("label", True)] * 2


@pytest.mark.parametrize("off", [*OFF, {"weight": "0"}], ids=str)
def test_a_completion_that_is_switched_off_is_not_learned_from(
    off: dict[str, Any], tmp_path: Path
) -> None:
    """The rows of TRL have one answer, which is kept and judged by nobody."""
    answer = {"role": "assistant", "content": "Eins.", **off}
    row = {"prompt": [{"role": "user", "content": "One?"}], "completion": [answer]}
    path = written(tmp_path / "rows.jsonl", row)
    assert answers(path) == ["Eins."] and signals(path) == []


@pytest.mark.parametrize("shape", ["messages", "sharegpt", "gemini"])
@pytest.mark.parametrize("off", [{"weight": 0}, {"train": False}, {"sample_weight": 0.0}], ids=str)
def test_a_row_that_is_switched_off_teaches_nothing(
    shape: str, off: dict[str, Any], tmp_path: Path
) -> None:
    path = written(tmp_path / "rows.jsonl", with_marked_turn(shape, {}) | off)
    assert signals(path) == []


def test_a_single_answer_of_a_row_that_is_switched_off_teaches_nothing(tmp_path: Path) -> None:
    alpaca = {"instruction": "One?", "input": "", "output": "Eins.", "weight": 0}
    trl = {"prompt": "Two?", "completion": "Zwei.", "train": False}
    for number, row in enumerate((alpaca, trl)):
        assert signals(written(tmp_path / f"{number}.jsonl", row)) == []


@pytest.mark.parametrize(
    ("mark", "key"),
    [
        ({"mask": 1}, "mask"),
        ({"mask": "all"}, "mask"),
        ({"loss_mask": [0, 1]}, "loss_mask"),
        (
            {
                "train_detail": [
                    {"begin_offset": 0, "end_offset": 1, "train": False},
                    {"begin_offset": 2, "end_offset": 4, "train": True},
                ]
            },
            "train_detail",
        ),
        ({"train": "sometimes"}, "train"),
    ],
)
def test_a_mask_that_can_be_read_in_two_ways_refuses_its_row(
    mark: dict[str, Any], key: str, tmp_path: Path
) -> None:
    """A part of a message cannot be learned alone; nobody says what a mask of 1 means."""
    reasons = refusals(written(tmp_path / "rows.jsonl", with_marked_turn("messages", mark)))
    assert key in reasons[1]


def test_the_role_that_nemo_masks_is_no_mark(tmp_path: Path) -> None:
    path = written(tmp_path / "r.jsonl", with_marked_turn("sharegpt", {}) | {"mask": "User"})
    assert signals(path) == [("label", True)] * 2


def test_every_turn_of_sharegpt_is_learned_from(tmp_path: Path) -> None:
    turns = [("human", "One?"), ("gpt", "Uno."), ("human", "Two?"), ("gpt", "Dos.")]
    row = {"id": "c", "conversations": [{"from": who, "value": text} for who, text in turns]}
    path = written(tmp_path / "rows.jsonl", row)
    assert answers(path) == ["Uno.", "Dos."]
    assert traces(path)[-1].id == "c"


# Tools


def test_a_row_that_ends_in_a_call_keeps_the_call() -> None:
    first, asking, second, third = traces(brought("14-openai-tool-call-target/tools.jsonl"))
    for trace in (first, third):
        assert trace.output is None
        assert calls(trace.steps[-1].output) == [HOURS]
        assert roles(trace) == ["user"]
    assert [call["arguments"] for call in calls(asking.steps[-1].output)] == [
        '{"day": "today"}',
        '{"day": "tomorrow"}',
    ]
    assert roles(second) == ["user", "assistant", "tool", "tool"]
    assert [call["arguments"] for call in calls(second.input[1])] == [
        '{"day": "today"}',
        '{"day": "tomorrow"}',
    ]
    assert first.metadata is not None
    assert first.metadata["tools"][0]["function"]["name"] == "hours"


def test_sharegpts_calls_are_calls_and_its_observations_results() -> None:
    (ends,) = traces(brought("16-sharegpt-tools/ends-in-call.json"))
    assert ends.output is None
    assert calls(ends.steps[-1].output) == [HOURS]
    asking, whole = traces(brought("16-sharegpt-tools/tools.json"))
    assert calls(asking.steps[-1].output) == [HOURS]
    assert roles(whole) == ["system", "user", "assistant", "tool"]
    assert calls(whole.input[2]) == [HOURS]
    assert whole.input[3]["content"] == "9-18"
    assert answers(brought("16-sharegpt-tools/roles.json")) == ["Uno."] * 5


def test_anthropics_blocks_are_calls_results_and_thoughts() -> None:
    asking, trace = traces(brought("17-anthropic-blocks/blocks.jsonl"))
    assert [step.kind for step in asking.steps] == ["reasoning", "llm"]
    assert roles(trace) == ["user", "assistant", "tool"]
    assert calls(trace.input[1]) == [HOURS]
    assert trace.input[1]["content"] == "Let me look."
    assert trace.input[2] == {"role": "tool", "content": "9-18", "tool_call_id": "tu_1"}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": HOURS}]},
        {"role": "assistant", "content": None, "function_call": HOURS},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c", "name": "hours", "input": DAY}],
        },
        {
            "role": "assistant",
            "content": [
                {
                    "type": "tool-call",
                    "toolCallId": "c",
                    "toolName": "hours",
                    "args": {"day": "today"},
                }
            ],
        },
        {"role": "model", "parts": [{"functionCall": {"name": "hours", "args": DAY}}]},
        {
            "role": "assistant",
            "content": [{"type": "tool_call", "name": "hours", "arguments": DAY}],
        },
        {"from": "function_call", "value": '{"name": "hours", "arguments": {"day": "today"}}'},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"name": "hours", "arguments": {"day": "today"}}],
        },
    ],
)
def test_a_call_of_every_dialect_is_the_same_call(message: dict[str, Any]) -> None:
    (converted,) = chat([message])
    assert calls(converted) == [HOURS]
    assert converted["content"] is None


@pytest.mark.parametrize(
    "message",
    [
        {"role": "tool", "tool_call_id": "c", "content": "9-18"},
        {"from": "observation", "value": "9-18"},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "c", "content": "9-18"}],
        },
        {
            "role": "tool",
            "content": [{"type": "tool-result", "toolCallId": "c", "result": "9-18"}],
        },
        {"role": "user", "parts": [{"functionResponse": {"name": "hours", "response": "9-18"}}]},
    ],
)
def test_a_result_of_every_dialect_is_a_message_of_the_tool(message: dict[str, Any]) -> None:
    (converted,) = chat([message])
    assert (converted["role"], converted["content"]) == ("tool", "9-18")


def test_tools_of_every_dialect_are_functions() -> None:
    schema = {"type": "object", "properties": {"day": {"type": "string"}}}
    expected = [{"type": "function", "function": {"name": "hours", "parameters": schema}}]
    bare = {"name": "hours", "parameters": schema}
    assert tools_of([bare]) == expected
    assert tools_of([{"name": "hours", "input_schema": schema}]) == expected
    assert tools_of([{"type": "function", "function": bare | {"description": None}}]) == expected


def test_keys_that_arrow_filled_with_null_are_not_shown_to_a_model() -> None:
    _, trace = traces(brought("24-parquet-types/tools.parquet"))
    assert calls(trace.input[1]) == [HOURS]
    assert trace.metadata is not None
    parameters = trace.metadata["tools"][0]["function"]["parameters"]
    assert parameters["properties"].keys() == {"day"}


# Thoughts


def test_thoughts_are_steps_in_every_spelling() -> None:
    for trace in traces(brought("31-think-tags/think.jsonl")):
        assert trace.output in ("4", "6")
        assert [step.kind for step in trace.steps] == ["reasoning", "llm"]
        assert all("think" not in str(message["content"]) for message in trace.input)


@pytest.mark.parametrize(
    ("text", "thought", "answer"),
    [
        ("<think>a</think>\n\nb", "a", "b"),
        ("a\n</think>\nb", "a", "b"),
        ("<think>a", "a", ""),
        ("<think></think>b", "", "b"),
        ("b with <think> in it", "", "b with <think> in it"),
    ],
)
def test_a_thought_ends_where_its_mark_ends(text: str, thought: str, answer: str) -> None:
    assert without_thoughts(text) == (thought, answer)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "2+2?", "completion": "<think>Two and two.</think>4"},
        {"instruction": "2+2?", "output": "<think>Two and two.</think>4"},
        {"question": "2+2?", "answer": "<think>Two and two.</think>4"},
        {"id": "t", "timestamp": "2026-01-05T09:00:00Z", "tags": [], "input": "2+2?"}
        | {"output": {"role": "assistant", "content": "4", "reasoning_content": "Two and two."}},
    ],
)
def test_thoughts_are_steps_in_every_source(row: dict[str, Any], tmp_path: Path) -> None:
    (trace,) = traces(written(tmp_path / "rows.jsonl", row))
    assert trace.output == "4"
    assert [step.output for step in trace.steps if step.kind == "reasoning"] == ["Two and two."]


# Pictures


PICTURE = {"type": "image_url", "image_url": {"url": "https://example.com/key.png"}}


def test_pictures_stay_and_no_text_model_is_trained_without_them() -> None:
    for name in ("images.jsonl", "sharegpt-images.json"):
        for trace in traces(brought(f"18-image-parts/{name}")):
            parts = trace.input[-1]["content"]
            assert any(part["type"] == "image_url" for part in parts)
            with pytest.raises(DataError, match="Only text can be trained"):
                normalize(trace.input)
    picture, *_ = traces(brought("18-image-parts/sharegpt-images.json"))
    assert picture.input[0]["content"][0]["image_url"] == {"url": "a.png"}


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [{"role": "user", "content": ["What?", PICTURE]}], "completion": "A key."},
        {"instruction": "<image>What?", "output": "A key.", "images": ["a.png"]},
        {"question": [{"role": "user", "content": [PICTURE]}], "answer": "A key."},
        {
            "messages": [
                {"role": "user", "content": "<image>What?"},
                {"role": "assistant", "content": "A key."},
            ],
            "images": [{"path": "a.png"}],
        },
        {
            "name": "chat",
            "context": {"trace_id": "1" * 32, "span_id": "2" * 16},
            "attributes": {
                "openinference.span.kind": "LLM",
                "llm.input_messages.0.message.role": "user",
                "llm.input_messages.0.message.contents.0.message_content.type": "image",
                "llm.input_messages.0.message.contents.0.message_content.image.image.url": "a.png",
                "llm.output_messages.0.message.role": "assistant",
                "llm.output_messages.0.message.content": "A key.",
            },
        },
    ],
)
def test_pictures_stay_in_every_source(row: dict[str, Any], tmp_path: Path) -> None:
    (trace,) = traces(written(tmp_path / "rows.jsonl", row))
    assert trace.output == "A key."
    assert isinstance(trace.input[-1]["content"], list)


def test_anythingllms_pictures_stay() -> None:
    text, picture = traces(brought("11-anythingllm/chats.jsonl"))
    assert text.input[0] == {"role": "system", "content": "Be brief."}
    assert picture.input[-1]["content"][1]["type"] == "image_url"


# Alpaca


def test_an_instruction_is_asked_with_its_input_system_and_history() -> None:
    _, translation = traces(brought("09-alpaca/alpaca.json"))
    assert translation.input[0]["content"] == "Translate into German.\n\nthe house"
    assert translation.output == "das Haus"
    (later,) = traces(brought("09-alpaca/alpaca-system-history.json"))
    assert [message["content"] for message in later.input] == [
        "You are a shop.",
        "When are you open?",
        "From nine to six.",
        "And today?",
    ]
