"""Calls that proxies and tracing tools exported, tuning files of other clouds, and data sets of
questions with their right answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.brought.reading import (
    answers,
    items,
    planned,
    records,
    refusals,
    refused,
    signals,
    traces,
    written,
)
from tests.command_line import Run
from thumbwheel.importers.detect import Options, detect
from thumbwheel.importers.source import LeftOut
from thumbwheel.importers.types import CaseRecord, FeedbackRecord

ASKED = {"role": "user", "content": "Open today?"}
SYSTEM = {"role": "system", "content": "Be kind."}
TIME = "2026-01-05T09:00:00Z"


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


# Logs of calls


def helicone(text: str, number: int, **feedback: Any) -> dict[str, Any]:
    return {
        "request_id": f"r{number}",
        "response_id": f"s{number}",
        "request_created_at": TIME,
        "request_body": {"model": "m", "messages": [SYSTEM, ASKED], "temperature": 0.2},
        "response_body": {"choices": [{"message": assistant(text), "finish_reason": "stop"}]},
        "response_status": 200,
        "response_model": "m-2",
        "request_user_id": "u1",
        "request_properties": {"Helicone-Session-Id": "c1"},
        "scores": {},
        **feedback,
    }


def langsmith(text: str, number: int, **more: Any) -> dict[str, Any]:
    return {
        "id": f"r{number}",
        "trace_id": f"r{number}",
        "name": "chat",
        "run_type": "chain",
        "is_root": True,
        "parent_run_id": None,
        "start_time": TIME,
        "status": "success",
        "error": None,
        "inputs": '{"question": "Open today?"}',
        "outputs": {"output": text},
        **more,
    }


def braintrust(text: Any, number: int, **more: Any) -> dict[str, Any]:
    return {
        "id": f"b{number}",
        "span_id": f"s{number}",
        "root_span_id": f"s{number}",
        "is_root": True,
        "created": TIME,
        "input": [ASKED],
        "output": text,
        "expected": None,
        "metadata": {"user_id": "u1", "model": "m"},
        "span_attributes": {"name": "chat", "type": "llm"},
        **more,
    }


def opik(text: str, number: int, **more: Any) -> dict[str, Any]:
    return {
        "id": f"o{number}",
        "name": "chat",
        "start_time": TIME,
        "thread_id": "c1",
        "input": {"messages": [ASKED]},
        "output": {"output": text},
        **more,
    }


def lunary(text: str, number: int, **more: Any) -> dict[str, Any]:
    return {
        "id": f"l{number}",
        "type": "llm",
        "createdAt": TIME,
        "input": [ASKED],
        "output": assistant(text),
        "user": {"externalId": "u1"},
        **more,
    }


def weave(text: str, number: int, *feedback: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": f"w{number}",
        "op_name": "weave:///team/desk/op/answer:v1",
        "trace_id": f"t{number}",
        "parent_id": None,
        "started_at": TIME,
        "inputs": {"question": "Open today?"},
        "output": text,
        "summary": {"weave": {"status": "success", "feedback": list(feedback)}},
    }


def reaction(emoji: str) -> dict[str, Any]:
    return {
        "feedback_type": "wandb.reaction.1",
        "creator": "ann",
        "payload": {"emoji": emoji, "alias": "?"},
    }


UP_AND_DOWN: dict[str, list[dict[str, Any]]] = {
    "helicone": [
        helicone("Until six.", 1, feedback_rating=True),
        helicone("No idea.", 2, feedback_rating=False),
        helicone("Maybe.", 3, feedback_rating=None),
    ],
    "helicone scores": [
        helicone("Until six.", 1, scores={"user-feedback": 1}),
        helicone("No idea.", 2, scores={"user-feedback": 0}),
        helicone("Maybe.", 3),
    ],
    "langsmith": [
        langsmith("Until six.", 1, feedback_stats={"user_feedback": {"n": 1, "avg": 1.0}}),
        langsmith("No idea.", 2, feedback_stats='{"user_feedback": {"n": 2, "avg": 0.0}}'),
        langsmith("Maybe.", 3, feedback_stats=None),
    ],
    "braintrust": [
        braintrust("Until six.", 1, scores={"user_feedback": 1}),
        braintrust([{"message": assistant("No idea."), "index": 0}], 2, scores={"thumbs": 0}),
        braintrust("Maybe.", 3, scores={"user_feedback": None}),
    ],
    "opik": [
        opik("Until six.", 1, feedback_scores=[{"name": "user_feedback", "value": 1.0}]),
        opik("No idea.", 2, feedback_scores=[{"name": "User feedback", "value": 0.0}]),
        opik("Maybe.", 3, feedback_scores=[]),
    ],
    "lunary": [
        lunary("Until six.", 1, feedback={"thumb": "up"}),
        lunary("No idea.", 2, feedback={"thumb": "down", "comment": None}),
        lunary("Maybe.", 3, feedback=None),
    ],
    "weave": [
        weave("Until six.", 1, reaction("👍")),
        weave("No idea.", 2, reaction("👎")),
        weave("Maybe.", 3),
    ],
}


@pytest.mark.parametrize("product", UP_AND_DOWN)
def test_a_logged_call_has_its_question_answer_and_thumb(
    product: str, tmp_path: Path, command_line: Run
) -> None:
    path = written(tmp_path / "log.jsonl", *UP_AND_DOWN[product])
    first, second, third = traces(path)
    assert [first.output, second.output, third.output] == ["Until six.", "No idea.", "Maybe."]
    assert first.input[-1] == ASKED
    assert first.id is not None and first.occurred_at is not None
    assert signals(path) == [("thumb", True), ("thumb", False)]
    assert planned(command_line, path) == {"thumb": (1, 1)}


def test_the_value_of_a_step_of_chainlit_is_a_thumb(tmp_path: Path) -> None:
    rows = [lunary("x", n, type="run", feedback={"value": n, "comment": None}) for n in (0, 1)]
    assert signals(written(tmp_path / "steps.jsonl", *rows)) == [("thumb", False), ("thumb", True)]


def test_what_a_log_knows_of_a_call_is_kept(tmp_path: Path) -> None:
    path = written(tmp_path / "log.jsonl", helicone("Until six.", 1, feedback_rating=True))
    (trace,) = traces(path)
    assert trace.input == [SYSTEM, ASKED]
    assert (trace.subject, trace.session, trace.steps[-1].served_model) == ("u1", "c1", "m-2")


def test_scores_of_judges_are_labels_and_means_of_several_people_are_left_out(
    tmp_path: Path,
) -> None:
    stats = {
        "user_feedback": {"n": 3, "avg": 0.33},
        "faithfulness": {"n": 1, "avg": 0.5},
        "note": {"n": 0, "avg": None},
    }
    path = written(tmp_path / "log.jsonl", langsmith("Until six.", 1, feedback_stats=stats))
    assert signals(path) == [("label", "0.5")]
    (item,) = items(path)
    assert "user_feedback" in "".join(item.remarks)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "stats",
    [
        {"n": 2, "avg": 3.0, "stdev": 2.0},
        {"n": 2, "avg": 3.0},
        {"n": 2, "avg": 0.0, "stdev": 1.0},
    ],
)
def test_a_whole_mean_of_different_voices_is_nobodys_opinion(
    stats: dict[str, Any], tmp_path: Path
) -> None:
    path = written(
        tmp_path / "log.jsonl", langsmith("Until six.", 1, feedback_stats={"rating": stats})
    )
    assert signals(path) == []
    agreed = {"n": 2, "avg": 3.0, "stdev": 0.0}
    path = written(
        tmp_path / "agreed.jsonl", langsmith("Until six.", 1, feedback_stats={"rating": agreed})
    )
    assert signals(path) == [("rating", 3)]


def test_an_opinion_in_another_place_of_a_log_is_read(tmp_path: Path) -> None:
    entry = {"key": "user_feedback", "score": 0, "comment": "rude"}
    run = written(tmp_path / "run.jsonl", langsmith("Until six.", 1, feedback=[entry]))
    assert signals(run) == [("thumb", False)]
    for key in ("properties", "request_properties"):
        call = helicone("Until six.", 1, **{key: {"feedback": "down", "tier": "free"}})
        assert signals(written(tmp_path / "call.jsonl", call)) == [("thumb", False)]


def test_a_person_can_say_which_score_is_an_opinion(tmp_path: Path) -> None:
    path = written(tmp_path / "log.jsonl", braintrust("Until six.", 1, scores={"Mood": 1}))
    assert signals(path) == [("label", "1")]
    assert signals(path, options=Options({"thumb": "Mood"})) == [("thumb", True)]


def test_numbers_of_a_log_are_read_by_all_of_their_name(tmp_path: Path) -> None:
    """1 of ratings that go up to 5 is the worst, not the best."""
    rows = [opik("x", n, feedback_scores=[{"name": "rating", "value": n}]) for n in (1, 5)]
    low, high = signals(written(tmp_path / "log.jsonl", *rows))
    assert (low, high) == (("rating", 1), ("rating", 5))


def test_comments_and_people_of_a_log_are_kept(tmp_path: Path) -> None:
    score = {"name": "user_feedback", "value": 0, "reason": "rude", "created_by": "ann"}
    note = {"feedback_type": "wandb.note.1", "creator": "ann", "payload": {"note": "rude"}}
    by_opik = written(tmp_path / "opik.jsonl", opik("x", 1, feedback_scores=[score]))
    by_weave = written(tmp_path / "weave.jsonl", weave("x", 1, reaction("👎"), note))
    by_lunary = written(
        tmp_path / "lunary.jsonl", lunary("x", 1, feedback={"thumb": "down", "comment": "rude"})
    )
    (feedback,) = (r for r in records(by_opik) if isinstance(r, FeedbackRecord))
    assert (feedback.comment, feedback.rater and feedback.rater.id) == ("rude", "ann")
    assert signals(by_weave) == [("thumb", False), ("comment", "rude")]
    (feedback,) = (r for r in records(by_lunary) if isinstance(r, FeedbackRecord))
    assert feedback.comment == "rude"


@pytest.mark.parametrize(
    "row",
    [
        langsmith("x", 1, is_root=False, parent_run_id="r0"),
        langsmith("x", 1, is_root=None, parent_run_id="r0"),
        braintrust("x", 1, root_span_id="s0", is_root=False),
        braintrust("x", 1, root_span_id="s0", is_root=None),
        {**weave("x", 1), "parent_id": "w0"},
    ],
)
def test_a_step_of_another_run_is_no_answer_to_a_person(
    row: dict[str, Any], tmp_path: Path
) -> None:
    (item,) = items(written(tmp_path / "log.jsonl", row))
    assert isinstance(item, LeftOut)


@pytest.mark.parametrize(
    "row",
    [
        helicone("x", 1, response_status=500),
        langsmith("x", 1, error="Timeout", status="error"),
        braintrust("x", 1, error="Timeout"),
    ],
)
def test_a_call_that_failed_is_refused(row: dict[str, Any], tmp_path: Path) -> None:
    assert "error" in refusals(written(tmp_path / "log.jsonl", row))[1]


def test_calls_of_litellm_and_bedrock_are_calls(tmp_path: Path) -> None:
    """The turns before the last question were answered earlier: nobody says that they are good."""
    turns = [ASKED, assistant("Until six."), {"role": "user", "content": "And tomorrow?"}]
    reply = {"choices": [{"message": assistant("Until two.")}]}
    litellm = {"id": "x", "call_type": "acompletion", "messages": turns, "response": reply}
    blocks = [{"role": turn["role"], "content": [{"text": turn["content"]}]} for turn in turns]
    answer = {"role": "assistant", "content": [{"text": "Until two."}]}
    bedrock = {
        "schemaType": "ModelInvocationLog",
        "timestamp": TIME,
        "requestId": "q1",
        "modelId": "nova",
        "input": {"inputBodyJson": {"messages": blocks, "system": [{"text": "Be kind."}]}},
        "output": {"outputBodyJson": {"output": {"message": answer}, "stopReason": "end_turn"}},
    }
    for name, row in (("litellm", litellm), ("bedrock", bedrock)):
        path = written(tmp_path / f"{name}.jsonl", row)
        (trace,) = traces(path)
        assert trace.output == "Until two." and trace.input[-1] == turns[-1]
        assert signals(path) == []
    assert trace.input[0] == SYSTEM


@pytest.mark.parametrize(
    "answer",
    [
        {"response": "Until two.", "rating": 1},
        {"response": assistant("Until two."), "rating": 1},
        {"completion": "Until two.", "rating": 1},
        {"output": "Until two.", "rating": 1},
    ],
)
def test_a_chat_with_its_answer_beside_it_is_that_answer(
    answer: dict[str, Any], tmp_path: Path
) -> None:
    """An earlier answer in the chat is not what was rated, and is not good because it is there."""
    turns = [ASKED, assistant("Until six."), {"role": "user", "content": "And tomorrow?"}]
    other = {"messages": [ASKED], "rating": 5} | {
        key: value for key, value in answer.items() if key != "rating"
    }
    path = written(tmp_path / "rows.jsonl", {"messages": turns, **answer}, other)
    assert answers(path) == ["Until two.", "Until two."]
    assert signals(path) == [("rating", 1), ("rating", 5)]


def test_the_answer_beside_a_result_of_a_tool_is_what_was_rated(tmp_path: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "hours", "arguments": "{}"}}
    turns = [
        ASKED,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "nine to six"},
    ]
    row = {"messages": turns, "response": "Until six.", "thumb": "up"}
    path = written(tmp_path / "rows.jsonl", row)
    assert answers(path) == ["Until six."] and signals(path) == [("thumb", True)]


# Tuning files of clouds


def pair_of(path: Path) -> tuple[list[dict[str, Any]], str | None, str | None, Any]:
    """The prompt, the better and the worse answer, and the ranking of a file with one pair."""
    better, worse, preference = records(path)
    return better.input, better.output, worse.output, preference.value["ranking"]


def test_a_preference_of_bedrock_is_a_pair(tmp_path: Path) -> None:
    candidates = [
        {"content": [{"text": "Go away."}], "preferenceLabel": "non-preferred"},
        {"content": [{"text": "Until six."}], "preferenceLabel": "preferred"},
    ]
    row = {
        "schemaVersion": "bedrock-conversation-2024",
        "system": [{"text": "Be kind."}],
        "messages": [
            {"role": "user", "content": [{"text": "Open today?"}]},
            {"role": "assistant", "candidates": candidates},
        ],
    }
    first, second, preference = records(written(tmp_path / "r.jsonl", row))
    assert first.input == second.input == [SYSTEM, ASKED]
    ranked = [first.output, second.output]
    assert [ranked[group[0]] for group in preference.value["ranking"]] == ["Until six.", "Go away."]


def test_a_preference_of_gemini_is_a_pair(tmp_path: Path) -> None:
    def turn(role: str, text: str) -> dict[str, Any]:
        return {"role": role, "parts": [{"text": text}]}

    row = {
        "system_instruction": {"parts": [{"text": "Be kind."}]},
        "contents": [turn("user", "Open today?")],
        "completions": [
            {"score": 1, "completion": turn("model", "Until six.")},
            {"score": 0, "completion": turn("model", "Go away.")},
        ],
    }
    path = written(tmp_path / "r.jsonl", row)
    assert pair_of(path) == ([SYSTEM, ASKED], "Until six.", "Go away.", [[0], [1]])


@pytest.mark.parametrize("names", [("input_text", "output_text"), ("text_input", "output")])
def test_texts_of_googles_tuning_are_questions_and_answers(
    names: tuple[str, str], tmp_path: Path
) -> None:
    row = dict(zip(names, ("Open today?", "Until six."), strict=True))
    (trace,) = traces(written(tmp_path / "r.jsonl", row))
    assert (trace.input, trace.output) == ([ASKED], "Until six.")


def test_the_context_of_an_older_chat_of_google_is_its_system_text(tmp_path: Path) -> None:
    turns = [{"author": "user", "content": "Open today?"}, {"author": "bot", "content": "Yes."}]
    (trace,) = traces(written(tmp_path / "r.jsonl", {"context": "Be kind.", "messages": turns}))
    assert trace.input == [SYSTEM, ASKED]


@pytest.mark.parametrize("verdict", ["left", {"type": "pairwise", "selected": "left"}, "answer1"])
def test_a_pair_that_people_compared_in_label_studio(verdict: Any, tmp_path: Path) -> None:
    row = {
        "id": 1,
        "prompt": "Open today?",
        "answer1": "Until six.",
        "answer2": "Go away.",
        "comparison": verdict,
        "annotator": 1,
        "lead_time": 2.5,
    }
    path = written(tmp_path / "r.jsonl", row)
    assert pair_of(path) == ([ASKED], "Until six.", "Go away.", [[0], [1]])


# Questions with their right answers


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [ASKED], "reference_answer": "Until six."},
        {"messages": [ASKED], "item": {"a": 1}, "expected_output": "Until six."},
        {
            "data_source": "desk",
            "prompt": [ASKED],
            "ability": "hours",
            "reward_model": {"style": "rule", "ground_truth": "Until six."},
            "extra_info": {"split": "train"},
        },
        {"prompt": [ASKED], "solution": "Until six."},
        {"prompt": "Open today?", "solution": "Until six."},
        {
            "id": "i1",
            "datasetId": "d",
            "input": {"question": "Open today?"},
            "expectedOutput": {"answer": "Until six."},
            "metadata": {},
            "status": "ACTIVE",
        },
        {"id": "i1", "datasetId": "d", "input": "Open today?", "expectedOutput": "Until six."},
        {
            "id": "e1",
            "dataset_id": "d",
            "inputs": {"question": "Open today?"},
            "outputs": {"answer": "Until six."},
            "metadata": {"dataset_split": ["base"]},
        },
        {"id": "b1", "input": "Open today?", "expected": "Until six.", "_xact_id": "1"},
        {"input": [ASKED], "ideal": "Until six."},
    ],
)
def test_a_question_with_its_right_answer_is_a_case(row: dict[str, Any], tmp_path: Path) -> None:
    """It is no answer of the model, so nothing of it is learned as one."""
    (case,) = records(written(tmp_path / "r.jsonl", row))
    assert isinstance(case, CaseRecord)
    assert (case.input, case.reference) == ([ASKED], "Until six.")


def test_an_expected_answer_beside_an_answer_judges_it(tmp_path: Path) -> None:
    row = braintrust("No idea.", 1, expected="Until six.", scores={"Factuality": 0})
    case, trace, label = records(written(tmp_path / "r.jsonl", row))
    assert (case.reference, trace.output) == ("Until six.", "No idea.")
    assert (label.kind, label.name) == ("label", "Factuality")


# What no source reads


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"custom_id": "q1", "response": {"status_code": 200, "body": {"choices": []}}}, "batch"),
        ({"custom_id": "q1", "result": {"type": "succeeded", "message": {}}}, "batch"),
        ({"segments": [{"label": True, "text": "Hi"}]}, "segments"),
        ({"id": "f", "run_id": "r", "key": "user_score", "score": 1.0, "value": None}, "LangSmith"),
    ],
)
def test_what_no_log_reader_takes_is_named_with_the_way(
    row: dict[str, Any], words: str, tmp_path: Path, command_line: Run
) -> None:
    error = refused(command_line, written(tmp_path / "r.jsonl", row))
    assert words in error and "thumbwheel import" in error


def test_the_log_of_a_gateway_of_ours_is_none_of_these(tmp_path: Path) -> None:
    row = {"type": "trace", "id": "t", "input": "Open today?", "output": "Until six."}
    assert detect(written(tmp_path / "r.jsonl", row)).source == "jsonl"


@pytest.mark.parametrize(
    "row",
    [
        langsmith("x", 1, feedback_stats={"user_feedback": 3, "b": {"n": "1", "avg": "x"}}),
        langsmith("x", 1, feedback_stats=["user_feedback"]),
        braintrust("x", 1, scores={"thumbs": {"a": 1}}, metadata="none"),
        opik("x", 1, feedback_scores=[3, {"name": None, "value": None}]),
        lunary("x", 1, feedback="up"),
        {**weave("x", 1), "summary": {"weave": {"feedback": [{"payload": 3}, 4]}}},
        {**helicone("x", 1), "request_properties": 3, "scores": [1]},
    ],
)
def test_scores_of_any_other_form_cost_no_answer(row: dict[str, Any], tmp_path: Path) -> None:
    path = written(tmp_path / "log.jsonl", row)
    assert answers(path) == ["x"] and signals(path) == []
