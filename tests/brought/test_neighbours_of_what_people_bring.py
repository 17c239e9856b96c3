"""Neighbours of what people brought: other products' variants, other names, other spellings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.brought.reading import answers, brought, items, refusals, signals, traces, written
from thumbwheel.core.errors import InputError
from thumbwheel.importers.detect import Options, detect
from thumbwheel.importers.source import Line

ASKED = {"role": "user", "content": "a?"}
FIRST_BETTER = [("preference", {"ranking": [[0], [1]]})]
SECOND_BETTER = [("preference", {"ranking": [[1], [0]]})]
PAIR = {"chosen": "I say a cherry.", "rejected": "I say a stone."}


def chat(answer: Any, **beside: Any) -> dict[str, Any]:
    """A row of one question and its answer."""
    return {"messages": [ASKED, {"role": "assistant", "content": answer}], **beside}


# Marks under any name


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ({"is_preferred": True}, {"is_preferred": False}),
        ({"success": True}, {"success": False}),
        ({"resolved": "yes"}, {"resolved": "no"}),
        ({"status": "accepted"}, {"status": "rejected"}),
        ({"result": "success"}, {"result": "failure"}),
        ({"reaction": "like"}, {"reaction": "dislike"}),
        ({"tags": ["good"]}, {"tags": ["bad"]}),
        ({"labels": [True]}, {"labels": [False]}),
        ({"rewards": [1.0]}, {"rewards": [-1.0]}),
        ({"value": 1}, {"value": -1}),
        ({"rating": "Good response"}, {"rating": "Bad response"}),
        ({"satisfaction": "satisfied"}, {"satisfaction": "unsatisfied"}),
        ({"feedback": {"rating": "thumbsUp"}}, {"feedback": {"rating": "thumbsDown"}}),
        ({"annotations": [{"label": "good"}]}, {"annotations": [{"label": "bad"}]}),
        ({"annotation": {"rating": 1}}, {"annotation": {"rating": -1}}),
        ({"metadata": {"kto_tag": True}}, {"metadata": {"kto_tag": False}}),
        ({"metadata": {"status": "accepted"}}, {"metadata": {"status": "rejected"}}),
    ],
)
def test_an_opinion_under_any_name_is_read(
    good: dict[str, Any], bad: dict[str, Any], tmp_path: Path
) -> None:
    rows = [chat("g") | good, chat("b") | bad]
    assert signals(written(tmp_path / "r.jsonl", *rows)) == [("thumb", True), ("thumb", False)]


def test_numbers_under_any_name_of_a_rating_are_read(tmp_path: Path) -> None:
    rows = [chat("g", response_rating=5), chat("b", response_rating=1)]
    assert signals(written(tmp_path / "r.jsonl", *rows)) == [("rating", 5), ("rating", 1)]


@pytest.mark.parametrize(
    ("mark", "key"),
    [
        ({"quality": "low"}, "quality"),
        ({"not_toxic": True}, "not_toxic"),
        ({"ratings": [5, 1]}, "ratings"),
        ({"outcome": "refund issued"}, "outcome"),
        ({"judge_score": 7}, "judge_score"),
    ],
)
def test_an_opinion_that_nobody_understands_refuses_its_row(
    mark: dict[str, Any], key: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "r.jsonl", chat("b") | mark)
    (reason,) = refusals(path).values()
    assert f"--column metadata={key}" in reason
    assert signals(path, options=Options.parsed([f"metadata={key}"], None)) == [("label", True)]


def test_several_keys_can_be_left_out(tmp_path: Path) -> None:
    path = written(tmp_path / "r.jsonl", chat("g", outcome="refund", verdict="late"))
    options = Options.parsed(["metadata=outcome", "metadata=verdict"], None)
    assert signals(path, options=options) == [("label", True)]


@pytest.mark.parametrize(
    "beside",
    [
        {"parallel_tool_calls": False},
        {"source": "forum", "category": "closed"},
        {"input_quality": "poor"},
        {"reward_model": {"style": "rule", "ground_truth": "4"}},
        {"metadata": {"label": "billing"}},
        {"feedback_id": "f1"},
    ],
)
def test_what_is_no_opinion_is_none(beside: dict[str, Any], tmp_path: Path) -> None:
    assert signals(written(tmp_path / "r.jsonl", chat("g") | beside)) == [("label", True)]


def test_openais_citations_are_no_opinion(tmp_path: Path) -> None:
    citation = {"type": "url_citation", "url_citation": {"url": "https://a.example"}}
    row = {"messages": [ASKED, {"role": "assistant", "content": "g", "annotations": [citation]}]}
    assert signals(written(tmp_path / "r.jsonl", row)) == [("label", True)]


@pytest.mark.parametrize(
    ("key", "off", "learned"),
    [
        ("weight", "0", ["y"]),
        ("training", False, ["y"]),
        ("loss_mask", 0, ["y"]),
        ("weight", None, ["x", "y"]),
        ("weight", 0.5, ["x", "y"]),
    ],
)
def test_a_weight_in_any_spelling(key: str, off: Any, learned: list[str], tmp_path: Path) -> None:
    turns = [ASKED, {"role": "assistant", "content": "x", key: off}]
    turns += [ASKED, {"role": "assistant", "content": "y"}]
    assert answers(written(tmp_path / "r.jsonl", {"messages": turns})) == learned


def test_a_weight_below_0_is_refused(tmp_path: Path) -> None:
    row = {"messages": [ASKED, {"role": "assistant", "content": "x", "weight": -1}]}
    assert "less than 0" in refusals(written(tmp_path / "r.jsonl", row))[1]


# Chats under any key


@pytest.mark.parametrize(
    "row",
    [
        {"conversation": [ASKED, {"role": "assistant", "content": "x"}]},
        {"chat": [ASKED, {"role": "assistant", "content": "x"}]},
        {"dialogue": [{"speaker": "user", "text": "a?"}, {"speaker": "bot", "text": "x"}]},
        {"conversations": [{"user": "a?", "assistant": "x"}]},
        {"conversation": [{"human": "a?", "assistant": "x"}]},
        {"id": "z", "items": [{"from": "human", "value": "a?"}, {"from": "gpt", "value": "x"}]},
        {"messages": [{"type": "human", "content": "a?"}, {"type": "ai", "content": "x"}]},
        {
            "contents": [
                {"role": "user", "parts": [{"text": "a?"}]},
                {"role": "model", "parts": [{"text": "x"}]},
            ]
        },
        {"conversations": [{"messages": [ASKED, {"role": "assistant", "content": "x"}]}]},
    ],
)
def test_a_chat_under_another_key_is_a_chat(row: dict[str, Any], tmp_path: Path) -> None:
    (trace,) = traces(written(tmp_path / "r.jsonl", row))
    assert (trace.input, trace.output) == ([ASKED], "x")


def test_geminis_system_text_counts(tmp_path: Path) -> None:
    turns = [
        {"role": "user", "parts": [{"text": "a?"}]},
        {"role": "model", "parts": [{"text": "x"}]},
    ]
    row = {"contents": turns, "systemInstruction": {"parts": [{"text": "Be brief."}]}}
    (trace,) = traces(written(tmp_path / "r.jsonl", row))
    assert [message["content"] for message in trace.input] == ["Be brief.", "a?"]


@pytest.mark.parametrize(
    "text",
    [
        "<thinking>hm</thinking>Nine.",
        "<reasoning>\nhm\n</reasoning>\n\nNine.",
        "◁think▷hm◁/think▷Nine.",
        "[THINK]hm[/THINK]Nine.",
        "<|begin_of_thought|>hm<|end_of_thought|><|begin_of_solution|>Nine.<|end_of_solution|>",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Nine.",
    ],
)
def test_thoughts_in_any_marks_are_thoughts(text: str, tmp_path: Path) -> None:
    (trace,) = traces(written(tmp_path / "r.jsonl", chat(text)))
    assert (trace.output, trace.steps[0].output) == ("Nine.", "hm")


def test_calls_that_a_model_wrote_into_its_text_are_calls(tmp_path: Path) -> None:
    call = '<tool_call>\n{"name": "hours", "arguments": {"day": "today"}}\n</tool_call>'
    turns = [("human", "a?"), ("gpt", f"Let me see. {call}")]
    turns += [("tool", "<tool_response>9-18</tool_response>"), ("gpt", "Nine.")]
    row = {"conversations": [{"from": who, "value": text} for who, text in turns]}
    trace = traces(written(tmp_path / "r.jsonl", row))[-1]
    _, asking, result = trace.input
    assert asking["tool_calls"][0]["function"]["name"] == "hours"
    assert (asking["content"], result["content"]) == ("Let me see.", "9-18")


def test_a_call_that_is_no_json_stays_text(tmp_path: Path) -> None:
    text = "<tool_call>hours(today)</tool_call>"
    assert answers(written(tmp_path / "r.jsonl", chat(text))) == [text]


def test_pictures_beside_a_message_and_in_their_places(tmp_path: Path) -> None:
    ollama = {"messages": [{**ASKED, "images": ["a.png"]}, {"role": "assistant", "content": "x"}]}
    parts = [{"type": "image"}, {"type": "text", "text": "a?"}]
    answer = {"role": "assistant", "content": "x"}
    placed = {"messages": [{"role": "user", "content": parts}, answer], "images": ["a.png"]}
    for trace in traces(written(tmp_path / "r.jsonl", ollama, placed)):
        kinds = sorted(part["type"] for part in trace.input[0]["content"])
        assert kinds == ["image_url", "text"]


# Langfuse


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ({"args": [[ASKED]], "kwargs": {}}, [{"role": "assistant", "content": "x"}]),
        ({"kwargs": {"messages": [ASKED]}}, {"messages": [ASKED, {"type": "ai", "content": "x"}]}),
        ({"messages": [{"type": "human", "content": "a?"}]}, {"type": "ai", "content": "x"}),
        ([[{"type": "human", "data": {"content": "a?"}}]], {"generations": [[{"text": "x"}]]}),
        ({"input": "a?"}, {"result": "x"}),
        (
            {"lc": 1, "messages": [{"lc": 1, "id": ["HumanMessage"], "kwargs": {"content": "a?"}}]},
            {"lc": 1, "id": ["AIMessage"], "kwargs": {"content": "x"}},
        ),
        (
            {"input": [ASKED]},
            {"output": [{"type": "message", "content": [{"type": "output_text", "text": "x"}]}]},
        ),
    ],
)
def test_inputs_and_outputs_of_every_framework(asked: Any, answered: Any, tmp_path: Path) -> None:
    row = {"id": "t", "timestamp": "2026-01-05T09:00:00Z", "userId": "u"}
    path = written(tmp_path / "r.jsonl", row | {"input": asked, "output": answered})
    (trace,) = traces(path)
    assert (trace.input, trace.output) == ([ASKED], "x")


@pytest.mark.parametrize(
    "scores",
    [
        {"user-feedback": 0},
        {"user-feedback": "thumbs_down"},
        {"user-feedback": {"value": 0, "dataType": "NUMERIC"}},
        [{"name": "user-feedback", "value": "False", "dataType": "BOOLEAN"}],
        [{"name": "Thumbs", "value": 1, "stringValue": "down", "dataType": "CATEGORICAL"}],
    ],
)
def test_scores_of_a_trace_in_any_form(scores: Any, tmp_path: Path) -> None:
    row = {"id": "t", "timestamp": "2026-01-05T09:00:00Z", "userId": "u"}
    row |= {"input": "a?", "output": "x", "scores": scores}
    assert signals(written(tmp_path / "r.jsonl", row)) == [("thumb", False)]


def test_scores_of_which_only_the_ids_are_there_are_said(tmp_path: Path) -> None:
    row = {"id": "t", "timestamp": "2026-01-05T09:00:00Z", "userId": "u", "scores": ["s1"]}
    (item,) = items(written(tmp_path / "r.jsonl", row | {"input": "a?", "output": "x"}))
    assert isinstance(item, Line)
    assert "export the scores as well" in item.remarks[0]


# Tables


@pytest.mark.parametrize(
    ("row", "signal"),
    [
        ({"User Query": "a?", "AI Answer": "x", "thumb": "down"}, ("thumb", False)),
        ({"user": "a?", "assistant": "x", "thumb": "down"}, ("thumb", False)),
        ({"q": "a?", "a": "x", "vote": -1}, ("thumb", False)),
        ({"prompt": "a?", "response": {"content": "x"}, "rating": "bad"}, ("thumb", False)),
        ({"prompt": "a?", "response": "x", "feedback": {"rating": "1/5"}}, ("rating", 1)),
        ({"prompt": "a?", "response": "x", "feedback": {"value": "bad"}}, ("thumb", False)),
        (
            {
                "request": {"messages": [ASKED]},
                "response": {"choices": [{"message": {"role": "assistant", "content": "x"}}]},
                "metadata": {"thumb": "down"},
            },
            ("thumb", False),
        ),
    ],
)
def test_tables_of_many_shapes(
    row: dict[str, Any], signal: tuple[str, Any], tmp_path: Path
) -> None:
    path = written(tmp_path / "r.jsonl", row)
    (trace,) = traces(path)
    assert (trace.input, trace.output) == ([ASKED], "x")
    assert signals(path) == [signal]


def test_the_viewer_of_hugging_face_and_wrappers_with_more_beside(tmp_path: Path) -> None:
    row = {"prompt": "a?", "response": "x", "thumb": "down"}
    viewed = {"rows": [{"row_idx": 0, "row": row, "truncated_cells": []}], "features": []}
    for whole in (viewed, {"data": [row], "schema": {"version": 1}}, {"feedback": [row]}):
        assert signals(written(tmp_path / "r.json", whole)) == [("thumb", False)]


def test_earlier_turns_and_contexts_are_shown_to_the_model(tmp_path: Path) -> None:
    row = {"query": "a?", "response": "x", "history": [["q", "r"]]}
    (trace,) = traces(written(tmp_path / "r.jsonl", row))
    assert [message["content"] for message in trace.input] == ["q", "r", "a?"]
    row = {"instruction": "a?", "context": "c", "response": "x"}
    (trace,) = traces(written(tmp_path / "r.jsonl", row))
    assert trace.input == [{"role": "user", "content": "a?\n\nc"}]


@pytest.mark.parametrize(
    ("row", "fix"),
    [
        ({"input": "a?", "output": "x", "label": 0}, "--column thumb=label"),
        ({"frage": "a?", "question": "a?", "answer": "x", "Urteil": "schlecht"}, "thumb=Urteil"),
        ({"prompt": "a?", "winning text": "a cherry", "losing text": "a stone"}, "chosen="),
        ({"prompt": "a?", "thumb": "down"}, "response="),
    ],
)
def test_a_table_in_which_something_would_be_lost_is_refused_with_the_option(
    row: dict[str, Any], fix: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        detect(written(tmp_path / "r.jsonl", row))
    assert fix in str(caught.value)


def test_a_person_can_say_that_a_column_says_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / "r.jsonl", {"input": "a?", "output": "x", "label": 0})
    assert signals(path, "table", Options.parsed(["metadata=label"], None)) == []
    assert traces(path, "table", Options.parsed(["metadata=label"], None))[0].output == "x"


@pytest.mark.parametrize(
    "table",
    [
        {"prompt": ["a?", "b?"], "response": ["x", "y"]},
        {"prompt": {"0": "a?"}, "response": {"0": "x"}},
        {"columns": ["prompt"], "index": [0], "data": [["a?"]]},
    ],
)
def test_tables_written_column_by_column_are_named(table: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="orient="):
        detect(written(tmp_path / "r.json", table))


# Pairs


@pytest.mark.parametrize(
    ("beside", "why"),
    [
        ({"user": "Red?"}, "--column prompt=user"),
        ({"context": "Red?"}, "--column prompt=context"),
        ({"prompt": "Red?", "score_chosen": 2, "score_rejected": 9}, "higher than that of chosen"),
        ({"prompt": "Red?", "chosen-rating": 1, "rejected-rating": 4}, "higher than"),
        ({"prompt": "Red?", "label": False}, "which answer is better"),
        ({"prompt": "Red?", "is_tie": True}, "neither answer"),
        ({"system": "A.", "prompt": [{"role": "system", "content": "B."}, ASKED]}, "two system"),
    ],
)
def test_a_pair_that_can_be_read_in_two_ways_is_refused(
    beside: dict[str, Any], why: str, tmp_path: Path
) -> None:
    (reason,) = refusals(written(tmp_path / "r.jsonl", PAIR | beside)).values()
    assert why in reason


def test_the_first_rank_of_a_pair_is_the_best(tmp_path: Path) -> None:
    pair = {"prompt": "a?", **PAIR}
    right = pair | {"rank_chosen": 1, "rank_rejected": 2}
    assert signals(written(tmp_path / "right.jsonl", right)) == FIRST_BETTER
    for beside in ({"rank_chosen": 2, "rank_rejected": 1}, {"margin": -2}, {"winner": "rejected"}):
        wrong = written(tmp_path / "wrong.jsonl", pair | beside)
        assert "which answer is better" in refusals(wrong)[1]


@pytest.mark.parametrize(
    ("row", "hint"),
    [
        ({"prompt": "a?", "pos": "x", "neg": "y"}, "chosen="),
        ({"prompt": "a?", "win": "x", "lose": "y"}, "chosen="),
        ({"prompt": "a?", "preferred": "x", "other": "y"}, "rejected="),
    ],
)
def test_half_a_pair_is_asked_about(row: dict[str, Any], hint: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"--column {hint}"):
        detect(written(tmp_path / "r.jsonl", row))


def test_equal_scores_of_a_pair_are_said(tmp_path: Path) -> None:
    row = PAIR | {"prompt": "Red?", "chosen_score": 5, "rejected_score": 5}
    (item,) = items(written(tmp_path / "r.jsonl", row))
    assert isinstance(item, Line)
    assert "same score" in item.remarks[0]


@pytest.mark.parametrize(
    "row",
    [
        {"chosen": "Human: Red?\nAssistant: cherry", "rejected": "Human: Red?\nAssistant: stone"},
        {"prompt": "Red?", "chosen": "Red? cherry", "rejected": "Red? stone"},
        {"prompt": "\n\nHuman: Red?\n\nAssistant:", "chosen": "cherry", "rejected": "stone"},
        {"prompt": "Red?", "accepted": "cherry", "rejected": "stone"},
        {
            "messages": [
                {"role": "user", "content": "Red?"},
                {"role": "assistant", "content": "cherry"},
            ],
            "rejected": "stone",
        },
    ],
)
def test_a_pair_in_any_form(row: dict[str, Any], tmp_path: Path) -> None:
    for trace, answer in zip(
        traces(written(tmp_path / "r.jsonl", row)), ("cherry", "stone"), strict=True
    ):
        assert trace.input == [{"role": "user", "content": "Red?"}]
        assert trace.output == answer


ULTRAFEEDBACK = {
    "instruction": "Red?",
    "models": ["m", "n"],
    "completions": [
        {
            "model": "m",
            "response": "stone",
            "overall_score": 10.0,
            "fine-grained_score": 1.25,
            "annotations": {"helpfulness": {"Rating": "1", "Rationale": "r"}},
        },
        {"model": "n", "response": "cherry", "overall_score": 8.0, "fine-grained_score": 4.5},
    ],
    "source": "evol",
    "correct_answers": ["None"],
}


@pytest.mark.parametrize(
    "row",
    [
        ULTRAFEEDBACK,
        {"input": "Red?", "generations": ["stone", "cherry"], "rating": [1.0, 5.0]},
        {"prompt": "Red?", "responses": ["stone", "cherry"], "scores": ["1", "5"]},
        {"prompt": "Red?", "responses": ["stone", "cherry"], "ranks": [2, 1]},
        {
            "prompt": "\n\nHuman: Red?\n\nAssistant: ",
            "answers": [
                {"answer": "stone", "model": "m", "rank": 2.0},
                {"answer": "cherry", "model": "n", "rank": 1.0},
            ],
            "num_responses": 2,
        },
        {"prompt": "Red?", "response_a": "stone", "response_b": "cherry", "winner": "b"},
        {"prompt": "Red?", "response_a": "stone", "response_b": "cherry", "winner_model_b": 1},
        {
            "prompt": "Red?",
            "response_0": "stone",
            "response_1": "cherry",
            "better_response_id": 1,
            "safer_response_id": 0,
        },
        {"instruction": "Red?", "input": "", "output_1": "stone", "output_2": "cherry"}
        | {"preference": 2},
        {"history": "Red?", "human_ref_A": "stone", "human_ref_B": "cherry", "labels": 0},
        {"prompt": "Red?", "response_1": "stone", "response_2": "cherry"}
        | {"preference_strength": 2},
        {
            "context": [{"role": "user", "content": "Red?"}],
            "response1": "stone",
            "response2": "cherry",
            "overall_preference": 1,
        },
        {
            "question": {"full_text": "Red?"},
            "answer_0": "stone",
            "answer_1": "cherry",
            "score_0": -1.0,
            "score_1": 1.0,
        },
        {
            "model_a": "m",
            "model_b": "n",
            "winner": "model_b",
            "conversation_a": [
                {"role": "user", "content": "Red?"},
                {"role": "assistant", "content": "stone"},
            ],
            "conversation_b": [
                {"role": "user", "content": "Red?"},
                {"role": "assistant", "content": "cherry"},
            ],
        },
    ],
)
def test_several_answers_are_compared_as_their_authors_mean_it(
    row: dict[str, Any], tmp_path: Path
) -> None:
    path = written(tmp_path / "r.jsonl", row)
    assert detect(path).source == "ranked"
    assert answers(path) == ["stone", "cherry"]
    assert all(trace.input == [{"role": "user", "content": "Red?"}] for trace in traces(path))
    assert signals(path) == SECOND_BETTER


def test_ties_are_ties_and_equal_texts_are_one_answer(tmp_path: Path) -> None:
    two = {"prompt": "Red?", "response_a": "cherry", "response_b": "plum"}
    for verdict in ({"winner": "tie"}, {"overall_preference": 0}):
        path = written(tmp_path / "r.jsonl", two | verdict)
        assert signals(path) == [("preference", {"ranking": [[0, 1]]})]
    three = {"prompt": "Red?", "responses": ["stone", "cherry", "stone"], "scores": [1, 5, 2]}
    assert signals(written(tmp_path / "r.jsonl", three)) == FIRST_BETTER
    assert answers(written(tmp_path / "r.jsonl", three)) == ["cherry", "stone"]


@pytest.mark.parametrize("verdict", [{"label": 1}, {"preference": "first"}, {"winner": 2}])
def test_a_verdict_that_names_no_side_is_refused(verdict: dict[str, Any], tmp_path: Path) -> None:
    row = {"prompt": "Red?", "response_a": "cherry", "response_b": "stone", **verdict}
    (reason,) = refusals(written(tmp_path / "r.jsonl", row)).values()
    assert next(iter(verdict)) in reason


def test_alpacas_inputs_that_are_none_or_no_text(tmp_path: Path) -> None:
    row = {"instruction": "a?", "input": "<noinput>", "output": "x"}
    assert traces(written(tmp_path / "r.jsonl", row))[0].input == [ASKED]
    row["input"] = {"a": 1}  # type: ignore[assignment]
    assert "input is no text" in refusals(written(tmp_path / "r.jsonl", row))[1]


def test_an_answer_that_ended_in_an_error_is_not_learned_from(tmp_path: Path) -> None:
    (row,) = json.loads(brought("02-openwebui-reasoning-blocks/think.json").read_text())
    row["snapshot"]["chat"]["chat"]["history"]["messages"]["b"]["error"] = {"content": "broken"}
    assert "error" in refusals(written(tmp_path / "r.jsonl", row))[1]


def test_blocks_inside_of_thoughts_are_thoughts(tmp_path: Path) -> None:
    (row,) = json.loads(brought("02-openwebui-reasoning-blocks/think.json").read_text())
    message = row["snapshot"]["chat"]["chat"]["history"]["messages"]["b"]
    message["content"] = (
        '<details type="reasoning" done="true">\n<summary>T</summary>\n'
        "> I <details>quote</details> it.\n</details>\nNine."
    )
    (trace,) = traces(written(tmp_path / "r.jsonl", row))
    assert trace.output == "Nine."


def test_a_pair_has_a_prompt_and_may_prefer_silence(tmp_path: Path) -> None:
    """Public pairs prefer an empty answer now and then; the plan counts such an answer apart."""
    blank = {"prompt": "  ", "chosen": "y", "rejected": "x"}
    assert "prompt is empty" in refusals(written(tmp_path / "blank.jsonl", blank))[1]
    silent = {"prompt": "a?", "chosen": "", "rejected": "x"}
    assert refusals(written(tmp_path / "silent.jsonl", silent)) == {}


@pytest.mark.parametrize(
    ("table", "signal"),
    [
        ("question,answer,Thumbs Up?\na?,x,no\n", ("thumb", False)),
        ('question,answer,stars\na?,x,"[{""rating"":2}]"\n', ("rating", 2)),
        ('question,answer,thumb\na?,x,"{""choices"": [""Bad""]}"\n', ("thumb", False)),
        ("question,answer,rating\na?,x,Very dissatisfied\n", ("thumb", False)),
    ],
)
def test_marks_of_tables_in_many_spellings(
    table: str, signal: tuple[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "table.csv"
    path.write_text(table)
    assert signals(path) == [signal]


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("accepted", ("1", "0")),
        ("not_helpful", ("yes", "no")),
        ("upvotes", ("4", "0")),
        ("thumbs_up_count", ("4", "0")),
        ("value", ("1", "-1")),
        ("hallucination_score", ("0.9", "0.1")),
        ("user_mood", ("👍", "👎")),
        ("direction", ("up", "down")),
    ],
)
def test_a_column_that_may_be_an_opinion_is_asked_about(
    column: str, values: tuple[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "table.csv"
    rows = "".join(f"a{value}?,x,{value},I read it twice\n" for value in values)
    path.write_text(f"question,answer,{column},remark\n{rows}")
    with pytest.raises(InputError, match=f"--column thumb={column}"):
        detect(path)


def test_marks_under_the_name_of_a_note_are_no_comments(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("question,answer,Note\na?,x,5\nb?,y,1\n")
    with pytest.raises(InputError, match="--column thumb=Note"):
        detect(path)


def test_words_of_feedback_that_nobody_knows_are_no_comments(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("question,answer,feedback\na?,x,top\nb?,y,flop\n")
    with pytest.raises(InputError, match="--scale feedback=WORST:BEST"):
        detect(path)
    stated = Options.parsed(None, ["feedback=flop:top"])
    assert signals(path, options=stated) == [("thumb", True), ("thumb", False)]
    comments = Options.parsed(["comment=feedback"], None)
    assert signals(path, options=comments) == [("comment", "top"), ("comment", "flop")]


def test_two_short_answers_are_not_lost(tmp_path: Path) -> None:
    row = {"prompt": "Parking?", "answer1": "No.", "answer2": "Yes.", "pw": "left"}
    with pytest.raises(InputError, match="chosen="):
        detect(written(tmp_path / "r.jsonl", row))


def test_a_table_by_another_name_says_which(tmp_path: Path) -> None:
    path = tmp_path / "table.txt"
    path.write_text("question\tanswer\trating\na?\tx\t5\n")
    with pytest.raises(InputError, match=r"\.csv or \.tsv"):
        detect(path)


def test_a_time_with_the_word_utc_is_read(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("question,answer,created_at\na?,x,2026-01-05 09:00:00.5 UTC\n")
    assert str(traces(path)[0].occurred_at) == "2026-01-05 09:00:00.500000+00:00"


def test_what_openrouter_calls_reasoning_is_a_thought(tmp_path: Path) -> None:
    answer = {"role": "assistant", "content": "4"}
    answer["reasoning_details"] = [{"type": "reasoning.text", "text": "Two."}]  # type: ignore[assignment]
    (trace,) = traces(written(tmp_path / "r.jsonl", {"messages": [ASKED, answer]}))
    assert (trace.output, trace.steps[0].output) == ("4", "Two.")


def test_requests_and_responses_of_mlflow_without_spans(tmp_path: Path) -> None:
    row = {"trace_id": "tr-1", "request_time": 1767600000000, "assessments": [], "spans": []}
    row |= {"request": {"q": "a?"}, "response": {"answer": "x"}}
    (trace,) = traces(written(tmp_path / "r.jsonl", row))
    assert (trace.input, trace.output) == ([ASKED], "x")
