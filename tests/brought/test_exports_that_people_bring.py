"""Exports of Open WebUI, Langfuse, MLflow, Phoenix, Argilla and LibreChat, and the names of those
that no source reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.brought.reading import (
    answers,
    brought,
    items,
    records,
    refusals,
    signals,
    traces,
    written,
)
from tests.command_line import Run
from thumbwheel.capture.received import langfuse_row, tensorzero_row
from thumbwheel.core.errors import InputError
from thumbwheel.importers.detect import Options, detect
from thumbwheel.importers.source import Line
from thumbwheel.importers.types import FeedbackRecord, TraceRecord, Unreadable

OPEN_WEBUI = "02-openwebui-reasoning-blocks"

# Open WebUI


def test_blocks_are_steps_and_the_answer_is_the_rest() -> None:
    first, second = traces(brought(f"{OPEN_WEBUI}/feedback.json"))
    assert first.output == "From nine to six."
    assert first.steps[0].output == "They want the hours.\nI know them."
    assert second.output == "Today until four."
    assert [message["content"] for message in second.input] == [
        "When are you open?",
        "From nine to six.",
        "And today?",
    ]
    assert [step.kind for step in second.steps] == ["reasoning", "llm", "tool", "llm"]
    assert (second.steps[2].name, second.steps[2].input) == ("hours", {"day": "today"})
    assert second.steps[2].output == "9-18"


@pytest.mark.parametrize(
    ("name", "answer"),
    [("owui-code.json", "One."), ("owui-edit.json", "Ten."), ("think.json", "From nine to six.")],
)
def test_nothing_of_the_blocks_is_learned(name: str, answer: str) -> None:
    assert answers(brought(f"{OPEN_WEBUI}/{name}")) == [answer]


def test_an_edit_is_a_correction_of_what_the_model_wrote() -> None:
    assert ("correction", "Nine to six.") in signals(brought(f"{OPEN_WEBUI}/owui-edit.json"))


def test_the_system_text_and_the_files_of_the_user_stand_in_the_prompt() -> None:
    (system,) = traces(brought(f"{OPEN_WEBUI}/owui-params.json"))
    assert system.input[0] == {"role": "system", "content": "Be brief."}
    (files,) = traces(brought(f"{OPEN_WEBUI}/owui-files.json"))
    assert files.input[0]["content"][1]["type"] == "image_url"


def test_text_in_output_items_is_the_answer_and_stands_in_the_history() -> None:
    first, second = traces(brought("34-openwebui-output-items/feedback.json"))
    assert first.output == "From nine to six."
    assert second.input[1] == {"role": "assistant", "content": "From nine to six."}
    assert answers(brought("34-openwebui-output-items/chats.json")) == ["From nine to six."]


def test_a_draw_is_a_draw(tmp_path: Path) -> None:
    (row,) = json.loads(brought(f"{OPEN_WEBUI}/think.json").read_text())
    row["data"] |= {"rating": 0, "sibling_model_ids": ["other"]}
    messages = row["snapshot"]["chat"]["chat"]["history"]["messages"]
    messages["a"]["childrenIds"].append("c")
    messages["c"] = {"id": "c", "parentId": "a", "role": "assistant", "content": "Nine."}
    messages["c"]["model"] = "other"
    assert signals(written(tmp_path / "draw.jsonl", row)) == [("preference", {"ranking": [[0, 1]]})]


# Langfuse


def test_scores_in_columns_are_feedback() -> None:
    for name in ("traces.json", "traces.csv"):
        assert signals(brought(f"04-langfuse-score-columns/{name}")) == [
            ("thumb", True),
            ("label", "0.1"),
            ("thumb", False),
            ("label", "0.9"),
            ("rating", 2),
        ]


def test_observations_are_put_together_by_their_trace() -> None:
    (trace,) = traces(brought("05-langfuse-blob-observations-v2/observations_v2.jsonl"))
    assert (trace.id, trace.subject, trace.session) == ("t1", "u1", "s1")
    assert (trace.input[0]["content"], trace.output) == ("Open on Sunday?", "No.")
    assert [step.kind for step in trace.steps] == ["task", "llm"]
    assert trace.steps[1].served_model == "llama3"
    assert signals(brought("05-langfuse-blob-observations-v2/scores.jsonl")) == [("thumb", True)]
    (listed,) = traces(brought("06-langfuse-score-types/lf-obs-ui.json"))
    assert listed.id == "t1"


def test_categories_that_are_thumbs_are_thumbs() -> None:
    assert signals(brought("06-langfuse-score-types/traces.jsonl")) == [
        ("thumb", True),
        ("thumb", False),
        ("thumb", True),
        ("thumb", False),
        ("thumb", False),
        ("comment", "wrong opening hours"),
        ("thumb", False),
    ]


def test_a_score_that_cannot_be_taken_costs_itself_and_is_said() -> None:
    (item,) = items(brought("06-langfuse-score-types/lf-bad-score.jsonl"))
    assert isinstance(item, Line)
    assert [type(record) for record in item.records] == [TraceRecord, FeedbackRecord]
    assert "--scale rating=WORST:BEST" in item.remarks[0]


def test_ratings_of_ten_are_not_read_as_ratings_of_five(tmp_path: Path) -> None:
    rows = []
    for number in (1, 4, 9):
        score = {"id": f"s{number}", "traceId": f"t{number}", "name": "rating", "value": number}
        rows.append(score | {"dataType": "NUMERIC"})
    path = written(tmp_path / "scores.jsonl", *rows)
    assert len(refusals(path)) == 3
    stated = Options.parsed(None, ["rating=1:10"])
    assert [value for _, value in signals(path, options=stated)] == [1, 4, 9]


def buttons(up: Any, down: Any, **fields: Any) -> list[dict[str, Any]]:
    """Two scores of one trace: thumbs up and thumbs down."""
    values = {"thumbs_up": up, "thumbs_down": down}
    return [
        {"id": name, "traceId": "t1", "name": name, "value": value, **fields}
        for name, value in values.items()
    ]


@pytest.mark.parametrize("data_type", ["NUMERIC", "BOOLEAN"])
@pytest.mark.parametrize(
    ("up", "down", "wanted"),
    [(0, 0, []), (1, 0, [("thumb", True)]), (0, 1, [("thumb", False)])],
)
def test_two_buttons_say_what_was_pressed(
    up: int, down: int, wanted: list[Any], data_type: str, tmp_path: Path
) -> None:
    scores = buttons(up, down, dataType=data_type, timestamp="2026-01-05T09:00:00Z")
    trace = {"id": "t1", "timestamp": "2026-01-05T09:00:00Z", "name": "chat", "sessionId": "s"}
    trace |= {"input": "Open?", "output": "Until six."}
    inside = written(tmp_path / "traces.jsonl", trace | {"scores": scores})
    assert signals(inside) == wanted
    apart = written(tmp_path / "scores.jsonl", *scores)
    assert signals(apart) == wanted


def test_buttons_of_two_people_are_two_opinions(tmp_path: Path) -> None:
    liked = buttons(1, 0, dataType="NUMERIC", authorUserId="ann")
    disliked = buttons(0, 1, dataType="NUMERIC", authorUserId="ben")
    path = written(tmp_path / "scores.jsonl", *liked, *disliked)
    assert signals(path) == [("thumb", True), ("thumb", False)]


def test_two_buttons_that_were_both_pressed_are_no_opinion(tmp_path: Path) -> None:
    path = written(tmp_path / "scores.jsonl", *buttons(1, 1, dataType="NUMERIC"))
    assert signals(path) in ([], [("thumb", False)])
    assert "nobody can say which counts" in refusals(path)[1]


def test_an_output_that_is_a_call_is_a_call() -> None:
    for trace in traces(brought("06-langfuse-score-types/lf-anthropic.jsonl")):
        assert trace.output is None


@pytest.mark.parametrize(
    ("score", "signal"),
    [
        ({"value": "thumbs_up", "dataType": "CATEGORICAL"}, ("thumb", True)),
        ({"value": "negative"}, ("thumb", False)),
        ({"value": "wrong hours", "dataType": "TEXT"}, ("comment", "wrong hours")),
        ({"value": 0, "dataType": "BOOLEAN"}, ("thumb", False)),
    ],
)
def test_scores_that_are_posted_mean_the_same(score: dict[str, Any], signal: Any) -> None:
    line = langfuse_row({"name": "user-feedback", "traceId": "t", **score})
    assert (line["kind"], line["value"]) == signal


def test_a_demonstration_in_blocks_is_its_text() -> None:
    row = json.loads(brought("49-tensorzero-demonstration/feedback.json").read_text())
    assert tensorzero_row(row)["value"] == "Better."
    call = [{"type": "tool_call", "name": "hours", "arguments": {}}]
    with pytest.raises(Unreadable, match="call of a tool"):
        tensorzero_row(row | {"value": call})
    with_object = tensorzero_row(row | {"value": {"open": True}})
    assert with_object["value"] == '{"open": true}'


# MLflow, Phoenix, Argilla, LibreChat


def test_traces_of_mlflow_in_files() -> None:
    for name in ("rows.jsonl", "traces.json"):
        path = brought(f"36-mlflow-files/{name}")
        assert detect(path).source == "mlflow"
        (trace,) = traces(path)
        assert (trace.id, trace.input[0]["content"]) == ("tr-1", "Open today?")
        assert trace.output == "Until six."
        assert signals(path) == [("thumb", True)]


def test_a_dataframe_of_phoenix(tmp_path: Path) -> None:
    row = {
        "name": "llm",
        "span_kind": "LLM",
        "parent_id": None,
        "start_time": "2026-01-05T09:00:00+00:00",
        "end_time": "2026-01-05T09:00:01+00:00",
        "status_code": "OK",
        "events": [],
        "context.span_id": "2" * 16,
        "context.trace_id": "1" * 32,
        "attributes.llm.model_name": "llama3",
        "attributes.llm.input_messages": [{"message.role": "user", "message.content": "Open?"}],
        "attributes.llm.output_messages": [
            {"message.role": "assistant", "message.content": "Until six."}
        ],
    }
    (trace,) = traces(written(tmp_path / "spans.jsonl", row))
    assert (trace.input[0]["content"], trace.output) == ("Open?", "Until six.")

    # evaluations in columns, as Phoenix adds them, and annotations as a list
    row |= {
        "eval.user_feedback.score": 0.0,
        "eval.user_feedback.label": "thumbs-down",
        "eval.user_feedback.explanation": "too short",
        "eval.Q&A Correctness.label": "correct",
        "eval.Q&A Correctness.score": 1.0,
        "eval.toxicity.score": None,
        "eval.toxicity.label": None,
    }
    path = written(tmp_path / "evaluated.jsonl", row)
    assert signals(path) == [("thumb", False), ("label", "correct")]
    person, judge = [record for record in records(path) if isinstance(record, FeedbackRecord)]
    assert person.comment == "too short" and person.rater is None
    assert judge.rater is not None and judge.rater.kind == "model"


def test_annotations_of_phoenix_have_their_people(tmp_path: Path) -> None:
    annotations = [
        {
            "id": "a1",
            "name": "rating",
            "annotator_kind": "HUMAN",
            "user_id": "ann",
            "result": {"score": 4, "label": None, "explanation": None},
            "updated_at": "2026-01-05T09:00:00+00:00",
        },
        {"id": "a2", "name": "helpful", "annotator_kind": "LLM", "result": {"label": "yes"}},
        {"id": "a3", "name": "empty", "annotator_kind": "CODE", "result": {}},
    ]
    span = {
        "name": "llm",
        "context": {"trace_id": "1" * 32, "span_id": "2" * 16},
        "parent_id": None,
        "start_time": "2026-01-05T09:00:00+00:00",
        "end_time": "2026-01-05T09:00:01+00:00",
        "attributes": {
            "openinference.span.kind": "LLM",
            "input.value": "Open?",
            "output.value": "Until six.",
        },
        "annotations": annotations,
    }
    path = written(tmp_path / "spans.jsonl", span)
    person, model = [record for record in records(path) if isinstance(record, FeedbackRecord)]
    assert (person.kind, person.value) == ("rating", 4)
    assert person.rater is not None and (person.rater.id, person.rater.kind) == ("ann", "person")
    assert model.rater is not None and model.rater.kind == "model"


@pytest.mark.parametrize(
    "responses",
    [
        {
            "rating": [{"value": 4, "user_id": "u1"}, {"value": 1, "user_id": "u2"}],
            "comment": [{"value": "late", "user_id": "u2", "status": "draft"}],
        },
        [
            {"values": {"rating": {"value": 4}}, "user_id": "u1", "status": "submitted"},
            {"values": {"rating": {"value": 1}}, "user_id": "u2", "status": "submitted"},
            {"values": {"rating": {"value": 5}}, "user_id": "u3", "status": "discarded"},
        ],
    ],
)
def test_responses_of_argilla_are_of_their_people(responses: Any, tmp_path: Path) -> None:
    fields = {"prompt": "Open?", "response": "Until six."}
    row = {"id": "r1", "fields": fields, "responses": responses, "suggestions": {}}
    path = written(tmp_path / "records.jsonl", row)
    assert detect(path).source == "argilla"
    (item,) = items(path)
    assert isinstance(item, Line)
    feedback = [record for record in item.records if isinstance(record, FeedbackRecord)]
    assert [(record.value, record.rater and record.rater.id) for record in feedback] == [
        (4, "u1"),
        (1, "u2"),
    ]
    assert len(item.records) == 3


@pytest.mark.parametrize("tree", [False, True])
def test_conversations_of_librechat(tree: bool, tmp_path: Path) -> None:
    asked = {"messageId": "m1", "sender": "User", "text": "Open?", "isCreatedByUser": True}
    answered = {
        "messageId": "m2",
        "parentMessageId": "m1",
        "sender": "GPT",
        "isCreatedByUser": False,
        "content": [
            {"type": "think", "think": "They ask."},
            {"type": "text", "text": "Until six."},
        ],
        "feedback": {"rating": "thumbsDown", "tag": {"key": "inaccurate"}, "text": "It is four."},
    }
    row: dict[str, Any] = {"conversationId": "c", "messages": [asked, answered]}
    if tree:
        row = {"conversationId": "c", "messagesTree": [asked | {"children": [answered]}]}
    path = written(tmp_path / "chat.json", row)
    assert detect(path).source == "librechat"
    (trace,) = traces(path)
    assert (trace.output, trace.steps[0].output) == ("Until six.", "They ask.")
    assert signals(path) == [("thumb", False)]


@pytest.mark.parametrize(
    ("row", "product"),
    [
        ({"title": "t", "mapping": {}, "current_node": "n"}, "ChatGPT"),
        ({"uuid": "u", "name": "n", "chat_messages": []}, "Claude"),
        ({"id": "f", "run_id": "r", "key": "user_score", "score": 1.0}, "LangSmith"),
        ({"evalId": "e", "results": {"results": []}, "config": {}}, "promptfoo"),
        ({"v": 1, "model_type": "task_run", "input": "i", "output": {}}, "Kiln"),
        ({"id": 1, "data": {"prompt": "p"}, "annotations": []}, "Label Studio"),
        ({"Rank": 1, "Model": "m", "Rating": 1000, "Won": 1, "Lost": 0}, "Open WebUI"),
        ({"context.span_id": "2" * 16, "label": "good", "score": 1}, "Phoenix"),
        ({"messageId": "m", "conversationId": "c", "isCreatedByUser": True}, "LibreChat"),
        (
            {"conversation_id": "c", "user_id": "u", "rating": "thumbsDown", "content": "{}"},
            "ChatGPT's message_feedback",
        ),
        ({"id": "m", "role": "apiMessage", "chatflowid": "f", "chatId": "c"}, "Flowise"),
        ({"event": "$ai_generation", "properties": {"$ai_trace_id": "t"}}, "PostHog"),
        ({"event_id": "e", "event_type": "model", "inputs": {}, "outputs": {}}, "HoneyHive"),
    ],
)
def test_what_no_source_reads_is_named_with_the_way(
    row: dict[str, Any], product: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        detect(written(tmp_path / "rows.jsonl", row))
    assert product in str(caught.value)
    assert "thumbwheel import" in str(caught.value)


def test_what_people_decided_in_prodigy_is_a_thumb(tmp_path: Path) -> None:
    task = {"prompt": "a?", "response": "x", "_input_hash": 1, "_task_hash": 2}
    decisions = ("accept", "reject", "ignore")
    rows = [task | {"prompt": f"{word}?", "answer": word} for word in decisions]
    path = written(tmp_path / "rows.jsonl", *rows)
    assert detect(path).source == "prodigy"
    assert signals(path) == [("thumb", True), ("thumb", False)]
    assert answers(path) == ["x"] * 3
    chat = {"messages": [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "x"}]}
    for training in (chat, {"prompt": "a?", "completion": "x"}):
        row = training | {"_task_hash": 2, "answer": "reject"}
        assert signals(written(tmp_path / "training.jsonl", row)) == [("thumb", False)]


def test_a_label_that_was_accepted_in_prodigy_is_what_counts(tmp_path: Path) -> None:
    task = {"prompt": "a?", "response": "x", "label": "BAD", "_task_hash": 2}
    accepted = written(tmp_path / "accepted.jsonl", task | {"answer": "accept"})
    assert signals(accepted) == [("thumb", False)]
    rejected = written(tmp_path / "rejected.jsonl", task | {"answer": "reject"})
    assert "rejects the label" in refusals(rejected)[1]
    chosen = task | {"options": [{"id": "a", "text": "x"}], "accept": ["a"], "answer": "accept"}
    assert "may be answers or labels" in refusals(written(tmp_path / "c.jsonl", chosen))[1]


def test_what_people_flagged_in_gradio_is_a_thumb(tmp_path: Path) -> None:
    flagged = tmp_path / "flagged.csv"
    flagged.write_text(
        "question,output,flag,username,timestamp\n"
        "a?,x,incorrect,ann,2026-01-05 09:00:00\nb?,y,,,2026-01-05 09:00:00\n"
    )
    assert detect(flagged).source == "gradio"
    assert signals(flagged) == [("thumb", False)]
    turns = [
        {"role": "user", "content": "a?"},
        {"role": "assistant", "content": "x"},
        {"role": "user", "content": "b?"},
    ]
    row = {"conversation": json.dumps(turns), "index": "1", "value": "x", "flag": "Dislike"}
    row |= {"username": "", "timestamp": "2026-01-05 09:00:00"}
    (trace,) = traces(written(tmp_path / "chat.jsonl", row))
    assert (trace.input, trace.output) == (turns[:1], "x")
    assert signals(tmp_path / "chat.jsonl") == [("thumb", False)]
    wrong = written(tmp_path / "wrong.jsonl", row | {"index": "2"})
    assert "not the assistant's" in refusals(wrong)[1]


@pytest.mark.parametrize(
    "row",
    [
        {"rating.responses": [2], "rating.responses.users": ["u1"], "rating.suggestion": 5},
        {"rating": [{"user_id": "u1", "value": 2, "status": "submitted"}], "rating-suggestion": 5},
        {"rating.responses": [2, 5], "rating.responses.status": ["submitted", "draft"]},
    ],
)
def test_responses_of_argilla_in_a_table_are_read(row: dict[str, Any], tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", {"prompt": "a?", "response": "x"} | row)
    assert detect(path).source == "argilla"
    assert signals(path) == [("rating", 2)]


def test_scores_of_a_trace_without_a_session_are_no_metadata(tmp_path: Path) -> None:
    row = {"id": "t", "timestamp": "2026-01-05T09:00:00Z", "input": "a?", "output": "x"}
    row |= {"scores": [{"name": "user-feedback", "value": 0, "dataType": "BOOLEAN"}]}  # type: ignore[dict-item]
    assert signals(written(tmp_path / "rows.jsonl", row)) == [("thumb", False)]


def test_marks_in_a_list_of_objects_are_asked_about(tmp_path: Path) -> None:
    row = {"question": "a?", "answer": "x", "ratings": [{"stars": 1}, {"stars": 5}]}
    with pytest.raises(InputError, match="--column thumb=ratings"):
        detect(written(tmp_path / "rows.jsonl", row))


# Tables


def test_json_is_read_as_the_same_table_in_csv_is(tmp_path: Path, command_line: Run) -> None:
    table = brought("12-json-table/rows.jsonl")
    csv = tmp_path / "rows.csv"
    csv.write_text(
        "prompt,response,rating,user_id\n"
        "Open today?,Until six.,5,u1\nOpen on Sunday?,Perhaps.,1,u2\n"
    )
    assert answers(table) == answers(csv)
    assert signals(table) == signals(csv) == signals(table, "csv")
    wrapped = tmp_path / "wrapped.json"
    rows = [json.loads(line) for line in table.read_text().splitlines()]
    wrapped.write_text(json.dumps({"data": rows, "total": 2}))
    assert signals(wrapped) == signals(table)


def test_columns_that_people_name_otherwise_are_guessed(tmp_path: Path) -> None:
    row = {"customer_message": "Open?", "bot_answer": "Until six.", "thumbs": "up"}
    assert signals(written(tmp_path / "rows.jsonl", row)) == [("thumb", True)]


def test_helpsteers_marks_go_from_0_to_4(tmp_path: Path) -> None:
    marks = dict.fromkeys(("correctness", "coherence", "complexity", "verbosity"), 2)
    rows = [
        {"prompt": "a?", "response": "x", "helpfulness": 4, **marks},
        {"prompt": "b?", "response": "y", "helpfulness": 0, **marks},
    ]
    assert signals(written(tmp_path / "rows.jsonl", *rows)) == [("score", 4), ("score", 0)]


def test_a_column_of_feedback_in_words_is_a_comment(tmp_path: Path) -> None:
    row = {"question": "a?", "answer": "x", "feedback": "The hours are wrong."}
    assert signals(written(tmp_path / "rows.jsonl", row)) == [("comment", "The hours are wrong.")]


def test_times_are_right_in_utc_or_refused() -> None:
    options = Options.parsed(None, None, timezone="Europe/Berlin")
    from thumbwheel.importers.types import naive_times

    with naive_times(options.zone):
        rows = items(brought("25-times/rows.csv"))
    times = {}
    for item in rows:
        if isinstance(item, Line):
            (trace, *_) = item.records
            assert isinstance(trace, TraceRecord)
            times[trace.input[0]["content"]] = str(trace.occurred_at)
    assert times == {
        "A?": "2026-01-05 08:00:00+00:00",
        "B?": "2026-01-05 07:00:00+00:00",
        "C?": "2026-01-05 08:00:00+00:00",
        "D?": "2026-01-05 08:00:00.123000+00:00",
        "E?": "2026-01-04 23:00:00+00:00",
        "F?": "2026-01-05 09:00:00+00:00",
        "G?": "2026-01-05 08:00:00+00:00",
        "J?": "2026-03-29 01:30:00+00:00",
        "K?": "2026-10-25 00:30:00+00:00",
    }
