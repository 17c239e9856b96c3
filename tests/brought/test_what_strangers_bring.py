"""Files of people who never saw this program: headers in their language, objects in objects, dates
as their spreadsheet writes them, answers of which nobody says what they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.brought.reading import answers, items, records, refusals, signals, traces, written
from thumbwheel.core.errors import InputError
from thumbwheel.importers.detect import Options, detect
from thumbwheel.importers.source import Line
from thumbwheel.importers.types import FeedbackRecord, TraceRecord

ASKED = "Can I return shoes?"
GOOD, BAD = "Yes, within 30 days.", "No idea, go away."
QUESTION = {"role": "user", "content": ASKED}
UP, DOWN = ("thumb", True), ("thumb", False)


def chat(answer: str, /, **beside: Any) -> dict[str, Any]:
    """A row of one question and its answer."""
    return {"messages": [QUESTION, {"role": "assistant", "content": answer}], **beside}


def csv_text(path: Path, *lines: str) -> Path:
    """A CSV file of these lines."""
    path.write_text("\n".join(lines) + "\n")
    return path


def remarks(path: Path) -> list[str]:
    """The remarks on the rows of a file."""
    return [remark for item in items(path) if isinstance(item, Line) for remark in item.remarks]


def error_of(path: Path) -> InputError:
    """The error of a file that is not read."""
    with pytest.raises(InputError) as raised:
        detect(path)
    return raised.value


# another answer beside an answer

SHAPES = [
    chat(BAD),
    {"conversations": [{"from": "human", "value": ASKED}, {"from": "gpt", "value": BAD}]},
    {"prompt": ASKED, "completion": BAD},
    {"instruction": ASKED, "input": "", "output": BAD},
]
SHAPE_NAMES = ["openai", "sharegpt", "trl", "alpaca"]


@pytest.mark.parametrize("row", SHAPES, ids=SHAPE_NAMES)
@pytest.mark.parametrize(
    "key",
    [
        "target",
        "reference",
        "ground_truth",
        "gold",
        "golden_answer",
        "humanReference",
        "correct_answer",
        "right_answer",
        "target_response",
    ],
)
def test_an_answer_beside_the_right_one_is_no_good_one(
    key: str, row: dict[str, Any], tmp_path: Path
) -> None:
    file = written(tmp_path / "rows.jsonl", {**row, key: GOOD})
    assert (signals(file), answers(file)) == ([], [BAD])
    assert remarks(file) == [
        f"the answer differs from {key} beside it and is not learned as good; if {key} says "
        f"nothing of the answer: --column metadata={key}"
    ]
    equal = written(tmp_path / "equal.jsonl", {**row, key: BAD})
    assert signals(equal) == [("label", True)]
    options = Options.parsed([f"metadata={key}"], None)
    assert signals(file, options=options) == [("label", True)]


@pytest.mark.parametrize("row", SHAPES, ids=SHAPE_NAMES)
@pytest.mark.parametrize(
    "key",
    [
        "human_answer",
        "human_response",
        "final_answer",
        "agent_reply",
        "response_v2",
        "gpt4_answer",
        "preferred_answer",
        "accepted_response",
    ],
)
def test_another_answer_is_asked_about(key: str, row: dict[str, Any], tmp_path: Path) -> None:
    file = written(tmp_path / "rows.jsonl", {**row, key: GOOD}, {**row, key: BAD})
    assert f"--column correction={key}" in refusals(file)[1]
    assert signals(file) == [("label", True)]
    corrected = Options.parsed([f"correction={key}"], None)
    assert signals(file, options=corrected) == [("correction", GOOD)]
    expected = Options.parsed([f"reference={key}"], None)
    assert signals(file, options=expected) == [("label", True)]
    nothing = Options.parsed([f"metadata={key}"], None)
    assert signals(file, options=nothing) == [("label", True)] * 2


@pytest.mark.parametrize(
    "beside",
    [
        {"response_format": "a sentence of a few words"},
        {"previous_answer": "This came earlier in the chat."},
        {"user_reply": "Thank you, that is all."},
        {"answer": "30 days"},
        {"text": "<s>user: Can I return shoes? assistant: Yes</s>"},
        {"answer_id": "0190-aaaa-bbbb-cccc-dddd"},
        {"response_time": 1.5},
    ],
    ids=lambda beside: next(iter(beside)),
)
def test_further_texts_are_no_other_answer(beside: dict[str, Any], tmp_path: Path) -> None:
    file = written(tmp_path / "rows.jsonl", chat(GOOD, **beside))
    assert signals(file) == [("label", True)]


def test_an_answer_that_is_judged_is_judged_whatever_stands_beside_it(tmp_path: Path) -> None:
    file = written(tmp_path / "rows.jsonl", chat(BAD, rating="bad", human_answer=GOOD))
    assert signals(file) == [DOWN]


# marks in the plural, and short


@pytest.mark.parametrize(
    "reactions",
    [
        [{"name": "thumbsdown", "count": 1}],
        [{"emoji": "👎", "users": ["u1"]}],
        ["👎"],
        {"emoji": "👎"},
    ],
    ids=["name", "emoji", "list", "object"],
)
@pytest.mark.parametrize("key", ["reactions", "reaction", "feedbacks"])
def test_reactions_are_marks(key: str, reactions: Any, tmp_path: Path) -> None:
    row = chat(BAD)
    row["messages"][1][key] = reactions
    assert signals(written(tmp_path / "rows.jsonl", row)) == [DOWN]
    assert signals(written(tmp_path / "row.jsonl", chat(BAD, **{key: reactions}))) == [DOWN]


def test_short_names_of_feedback_are_marks(tmp_path: Path) -> None:
    file = written(tmp_path / "rows.jsonl", chat(BAD, fb=0), chat(GOOD, fb=1))
    assert signals(file) == [DOWN, UP]


@pytest.mark.parametrize("nothing", [[], {}])
def test_an_empty_list_of_marks_is_nobodys_word(nothing: Any, tmp_path: Path) -> None:
    row = chat(BAD, feedback=nothing)
    row["messages"][1]["feedback"] = "THUMBS_DOWN"
    assert signals(written(tmp_path / "rows.jsonl", row)) == [DOWN]


# tables in other languages


@pytest.mark.parametrize(
    "header",
    [
        "Frage;Antwort;Bewertung",
        "pregunta;respuesta;valoración",
        "question;réponse;évaluation",
        "domanda;risposta;valutazione",
        "pergunta;resposta;avaliação",
        "vraag;antwoord;beoordeling",
        "pytanie;odpowiedź;ocena",
        "вопрос;ответ;оценка",
        "问题;回答;评分",
        "質問;回答;評価",
        "질문;답변;평점",
    ],
    ids=["de", "es", "fr", "it", "pt", "nl", "pl", "ru", "zh", "ja", "ko"],
)
def test_headers_of_other_languages(header: str, tmp_path: Path) -> None:
    file = csv_text(tmp_path / "rows.csv", header, f"{ASKED};{GOOD};5", f"{ASKED};{BAD};1")
    assert signals(file) == [("rating", 5.0), ("rating", 1.0)]
    assert answers(file) == [GOOD, BAD]


@pytest.mark.parametrize(
    ("column", "values", "expected"),
    [
        ("Sterne", ("5", "1"), [("rating", 5.0), ("rating", 1.0)]),
        ("Bewertung", ("gut", "schlecht"), [UP, DOWN]),
        ("评分", ("5", "1"), [("rating", 5.0), ("rating", 1.0)]),
    ],
)
def test_ratings_of_other_languages(
    column: str, values: tuple[str, str], expected: list[Any], tmp_path: Path
) -> None:
    rows = [f"{ASKED};{GOOD};{value}" for value in values]
    file = csv_text(tmp_path / "rows.csv", f"question;answer;{column}", *rows)
    assert signals(file) == expected


@pytest.mark.parametrize("column", ["Note", "note"])
def test_a_column_of_numbers_is_no_comment(column: str, tmp_path: Path) -> None:
    """A German Note of 1 is the best, a French one of 20; nobody guesses."""
    rows = f"{ASKED};{GOOD};1", f"{ASKED};{BAD};6"
    file = csv_text(tmp_path / "rows.csv", f"Frage;Antwort;{column}", *rows)
    assert f"--column thumb={column}" in str(error_of(file))
    stated = Options.parsed([f"rating={column}"], ["rating=6:1"])
    assert signals(file, options=stated) == [("rating", 6.0), ("rating", 1.0)]


@pytest.mark.parametrize("column", ["hilfreich", "utile", "有用", "satisfeito"])
def test_a_yes_or_no_of_other_languages_is_asked_about(column: str, tmp_path: Path) -> None:
    rows = f"{ASKED};{GOOD};yes", f"{ASKED};{BAD};no"
    file = csv_text(tmp_path / "rows.csv", f"question;answer;{column}", *rows)
    assert f"thumb={column}" in str(error_of(file))


def test_columns_that_may_be_feedback_and_are_not_read_are_said(tmp_path: Path) -> None:
    rows = f"{ASKED};{GOOD};5;1;yes", f"{ASKED};{BAD};1;5;no"
    header = "question;answer;user_rating;expert_rating;sent_ok"
    mapping = detect(csv_text(tmp_path / "rows.csv", header, *rows)).mapping
    assert [line for line in mapping if line.startswith("not read")] == [
        "not read: expert_rating, which may be feedback, too (to read it: --column "
        "thumb=expert_rating)",
        "not read: sent_ok, which may be feedback, too (to read it: --column thumb=sent_ok)",
    ]


def test_the_button_for_an_answer_is_not_lost_beside_the_one_against_it(tmp_path: Path) -> None:
    rows = f"{ASKED};{GOOD};1;", f"{ASKED};{BAD};;1"
    file = csv_text(tmp_path / "rows.csv", "question;answer;good;bad", *rows)
    assert signals(file) == [UP, DOWN]


def test_options_are_written_as_a_shell_takes_them(tmp_path: Path) -> None:
    rows = f"{ASKED};{GOOD};Yes", f"{ASKED};{BAD};No"
    file = csv_text(tmp_path / "rows.csv", "question;answer;Was this helpful?", *rows)
    assert "--column 'thumb=Was this helpful?'" in str(error_of(file))


# dates


@pytest.mark.parametrize(
    ("written_date", "time"),
    [
        ("31.12.2025", "2025-12-31 00:00:00+00:00"),
        ("1.2.2026 9:05", "2026-02-01 09:05:00+00:00"),
        ("31.12.2025, 23:59:01", "2025-12-31 23:59:01+00:00"),
        ("2026/1/2 08:00", "2026-01-02 08:00:00+00:00"),
        ("Jan 5, 2026, 9:00 AM", "2026-01-05 09:00:00+00:00"),
        ("5 January 2026", "2026-01-05 00:00:00+00:00"),
        ("05-Jan-2026 21:00", "2026-01-05 21:00:00+00:00"),
        ("12/31/2025 9:00 PM", "2025-12-31 21:00:00+00:00"),
        ("31/12/2025", "2025-12-31 00:00:00+00:00"),
    ],
)
def test_dates_as_spreadsheets_write_them(written_date: str, time: str, tmp_path: Path) -> None:
    row = {"question": ASKED, "answer": GOOD, "thumb": "up", "date": written_date}
    (trace,) = traces(written(tmp_path / "rows.jsonl", row))
    assert str(trace.occurred_at) == time


def test_a_column_of_dates_says_where_its_day_stands(tmp_path: Path) -> None:
    def row(date: str) -> dict[str, Any]:
        return {"question": ASKED, "answer": date, "thumb": "up", "date": date}

    american = written(tmp_path / "us.jsonl", row("1/2/2026"), row("12/31/2025"))
    assert [str(trace.occurred_at)[:10] for trace in traces(american)] == [
        "2026-01-02",
        "2025-12-31",
    ]
    european = written(tmp_path / "eu.jsonl", row("1/2/2026"), row("31/12/2025"))
    assert str(traces(european)[0].occurred_at)[:10] == "2026-02-01"
    both = written(tmp_path / "both.jsonl", row("1/2/2026"), row("31/12/2025"), row("12/31/2025"))
    assert "may have the day or the month first" in refusals(both)[1]


@pytest.mark.parametrize("date", ["1/2/2026", "45987.5", 45988])
def test_a_date_that_cannot_be_read_names_the_way(date: Any, tmp_path: Path) -> None:
    row = {"question": ASKED, "answer": GOOD, "thumb": "up", "date": date}
    file = written(tmp_path / "rows.jsonl", row)
    assert "--column metadata=date" in refusals(file)[1]
    assert signals(file, options=Options.parsed(["metadata=date"], None)) == [UP]


# requests, replies and objects in a table


@pytest.mark.parametrize(
    "reply",
    [
        {"choices": [{"message": {"role": "assistant", "content": BAD}}]},
        {"candidates": [{"content": {"role": "model", "parts": [{"text": BAD}]}}]},
        {"message": {"role": "assistant", "content": BAD}},
        {"role": "assistant", "content": [{"type": "text", "text": BAD}]},
    ],
    ids=["openai", "gemini", "ollama", "anthropic"],
)
@pytest.mark.parametrize("as_text", [True, False], ids=["text", "object"])
def test_requests_and_replies_in_a_table(as_text: bool, reply: Any, tmp_path: Path) -> None:
    request: Any = {"model": "m", "messages": [QUESTION]}
    if as_text:
        request, reply = json.dumps(request), json.dumps(reply)
    row = {"REQUEST": request, "RESPONSE": reply, "FEEDBACKS": [{"value": -1, "weight": 1}]}
    file = written(tmp_path / "rows.jsonl", row)
    (trace,) = traces(file)
    assert (trace.input, trace.output) == ([QUESTION], BAD)
    assert signals(file) == [DOWN]


def test_the_only_argument_of_an_evaluated_function_is_the_question(tmp_path: Path) -> None:
    row = {"inputs": {"question": ASKED}, "outputs": BAD, "thumbs/value": "no"}
    as_text = {**row, "inputs": json.dumps(row["inputs"])}
    for name, values in (("object", row), ("text", as_text)):
        (trace,) = traces(written(tmp_path / f"{name}.jsonl", values))
        assert trace.input == [QUESTION]
    assert signals(tmp_path / "text.jsonl") == [DOWN]


@pytest.mark.parametrize(
    "structured",
    [
        {"answer": "30 days"},
        {"question": "How long?", "choices": ["30 days", "a year"]},
        {"candidates": ["a", "b"]},
        {"text": "30 days", "sources": ["handbook"]},
        {"message": "30 days"},
    ],
    ids=lambda structured: next(iter(structured)),
)
def test_structured_answers_stay_whole(structured: dict[str, Any], tmp_path: Path) -> None:
    text = json.dumps(structured)
    file = written(tmp_path / "rows.jsonl", {"question": ASKED, "response": text, "thumb": "up"})
    assert answers(file) == [text]


def test_a_reply_without_its_request_is_no_question(tmp_path: Path) -> None:
    row = {"model": "m", "message": {"role": "assistant", "content": BAD}, "done": True}
    assert "ends in an answer" in refusals(written(tmp_path / "rows.jsonl", row))[1]


def test_objects_that_were_flattened_to_columns(tmp_path: Path) -> None:
    header = "inputs.question,outputs.answer,feedback.score,usage.input"
    rows = f'"{ASKED}","{BAD}",0,17', f'"{ASKED}","{GOOD}",1,17'
    file = csv_text(tmp_path / "rows.csv", header, *rows)
    assert answers(file) == [BAD, GOOD]
    assert signals(file) == [("score", 0.0), ("score", 1.0)]


def test_a_score_of_a_fault_is_not_one_of_the_answer(tmp_path: Path) -> None:
    rows = f"{ASKED};{BAD};1", f"{ASKED};{GOOD};0"
    header = "question;answer;eval.hallucination.score"
    assert "eval.hallucination.score" in str(error_of(csv_text(tmp_path / "a.csv", header, *rows)))


def test_a_value_inside_of_objects_can_be_named(tmp_path: Path) -> None:
    row = {
        "datasource_item": {"input": ASKED, "ground_truth": GOOD},
        "sample": {"input": [QUESTION], "output": [{"role": "assistant", "content": BAD}]},
        "results": [{"name": "check", "passed": False}],
    }
    file = written(tmp_path / "rows.jsonl", row)
    error = str(error_of(file))
    proposed = (
        "--column prompt=datasource_item.input --column response=sample.output "
        "--column rating=results.0.passed"
    )
    assert proposed in error
    named = [option for option in proposed.split() if option != "--column"]
    options = Options.parsed(named, None)
    assert signals(file, options=options) == [DOWN]
    (trace,) = traces(file, options=options)
    assert (trace.input, trace.output) == ([QUESTION], BAD)


@pytest.mark.parametrize(
    "row",
    [
        {"id": "x", "input_question": ASKED, "output_answer": GOOD, "created": "2026-01-05"},
        {"id": "x", "Ticket ID": 1, "input_question": ASKED, "output_answer": GOOD},
    ],
    ids=["time", "id"],
)
def test_no_id_or_time_is_proposed(row: dict[str, Any], tmp_path: Path) -> None:
    error = str(error_of(written(tmp_path / "rows.jsonl", row)))
    assert "--column prompt=input_question --column response=output_answer" in error
    assert "rating=" not in error


# pairs and rankings


def pairs_of(path: Path) -> list[tuple[str, str]]:
    """(better, worse) answer of every pair of a file."""
    texts: dict[Any, str] = {}
    pairs = []
    for record in records(path):
        if isinstance(record, TraceRecord):
            texts[record.as_target().id] = str(record.output)
        elif isinstance(record, FeedbackRecord) and record.kind == "preference":
            first, second = record.value["ranking"]
            names = [texts[target.id] for target in record.targets]
            pairs += [(names[better], names[worse]) for better in first for worse in second]
    return pairs


def answer(content: str) -> dict[str, Any]:
    """A message of the assistant."""
    return {"role": "assistant", "content": content}


@pytest.mark.parametrize("key", ["context_messages", "prompt_messages", "context", "conversation"])
def test_a_pair_goes_on_with_the_chat_beside_it(key: str, tmp_path: Path) -> None:
    row = {key: [QUESTION], "chosen": answer(GOOD), "rejected": answer(BAD)}
    file = written(tmp_path / "rows.jsonl", row)
    assert pairs_of(file) == [(GOOD, BAD)]
    assert traces(file)[0].input == [QUESTION]


@pytest.mark.parametrize("ending", ["conversations", "messages"])
def test_whole_chats_of_both_answers(ending: str, tmp_path: Path) -> None:
    row = {f"chosen_{ending}": [QUESTION, answer(GOOD)]}
    row[f"rejected_{ending}"] = [QUESTION, answer(BAD)]
    file = written(tmp_path / "rows.jsonl", row)
    assert pairs_of(file) == [(GOOD, BAD)]
    assert traces(file)[0].input == [QUESTION]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": ASKED, "chosen": GOOD, "rejected": [BAD, "No."]},
        chat(GOOD, rejected_response=[BAD, "No."]),
        {
            "conversations": [{"from": "human", "value": ASKED}, {"from": "gpt", "value": GOOD}],
            "rejected": [BAD, "No."],
        },
    ],
    ids=["preference", "openai", "sharegpt"],
)
def test_several_rejected_answers_are_several_pairs(row: dict[str, Any], tmp_path: Path) -> None:
    file = written(tmp_path / "rows.jsonl", row)
    assert pairs_of(file) == [(GOOD, BAD), (GOOD, "No.")]


def test_candidates_of_vertex_are_compared(tmp_path: Path) -> None:
    row = {"input_text": ASKED, "prompt": ASKED, "candidate_0": BAD, "candidate_1": GOOD}
    assert pairs_of(written(tmp_path / "rows.jsonl", {**row, "choice": 1})) == [(GOOD, BAD)]


# Argilla


def argilla(fields: dict[str, Any], question: str, value: Any) -> dict[str, Any]:
    """A record with one submitted response."""
    response = {"value": value, "user_id": "u1", "status": "submitted"}
    return {"id": "r1", "fields": fields, "responses": {question: [response]}, "suggestions": {}}


@pytest.mark.parametrize(
    ("first", "second", "value"),
    [
        ("response1", "response2", "response1"),
        ("response_a", "response_b", ["response_a"]),
        ("response-1", "response-2", {"rank": 1, "value": "response-1"}),
        (
            "response-1",
            "response-2",
            [{"rank": 2, "value": "response-2"}, {"rank": 1, "value": "response-1"}],
        ),
    ],
    ids=["label", "labels", "rank", "ranking"],
)
def test_argillas_comparisons_are_pairs(
    first: str, second: str, value: Any, tmp_path: Path
) -> None:
    fields = {"instruction": ASKED, first: GOOD, second: BAD}
    file = written(tmp_path / "rows.jsonl", argilla(fields, "preference", value))
    assert pairs_of(file) == [(GOOD, BAD)]


def test_a_comparison_of_argilla_that_prefers_neither_is_refused(tmp_path: Path) -> None:
    places = [{"rank": 1, "value": "response-1"}, {"rank": 1, "value": "response-2"}]
    fields = {"instruction": ASKED, "response-1": GOOD, "response-2": BAD}
    file = written(tmp_path / "rows.jsonl", argilla(fields, "preference", places))
    assert "prefers neither" in refusals(file)[1]


def test_a_chat_of_argilla_is_its_question_and_answer(tmp_path: Path) -> None:
    fields = {"chat": [QUESTION, answer(BAD)]}
    file = written(tmp_path / "rows.jsonl", argilla(fields, "thumb", "bad"))
    assert (signals(file), answers(file)) == ([DOWN], [BAD])


@pytest.mark.parametrize("name", ["quality", "helpfulness", "answer_correctness"])
def test_a_quality_of_one_may_be_the_worst(name: str, tmp_path: Path) -> None:
    fields = {"prompt": ASKED, "response": BAD}
    file = written(tmp_path / "argilla.jsonl", argilla(fields, name, 1))
    rows = written(tmp_path / "rows.jsonl", chat(BAD, **{name: 1}))
    for path in (file, rows):
        if "answer" in name and path is file:
            continue  # asked about: it is no usual name in a table
        assert "1, which is the worst of 1 to 5" in refusals(path)[1]
    both = written(tmp_path / "both.jsonl", chat(BAD, **{name: 0}), chat(GOOD, **{name: 1}))
    assert signals(both) == [("score", 0), ("score", 1)]


# products


def test_scores_of_langfuse_by_name_and_values(tmp_path: Path) -> None:
    row = {"id": "t1", "timestamp": "2026-01-05T09:00:00Z", "userId": "u", "input": ASKED}
    file = written(tmp_path / "a.jsonl", {**row, "output": BAD, "scores": {"user_feedback": [0]}})
    assert signals(file) == [DOWN]


def test_chats_of_the_first_open_webui(tmp_path: Path) -> None:
    messages = [
        {"id": "m1", "role": "user", "content": ASKED},
        {"id": "m2", "role": "assistant", "content": BAD, "rating": -1},
        {"id": "m3", "role": "user", "content": "And hats?"},
        {"id": "m4", "role": "assistant", "content": GOOD, "rating": 1},
    ]
    file = tmp_path / "chats.json"
    chats = [{"id": "c", "title": "t", "chat": {"models": ["m"], "messages": messages}}]
    file.write_text(json.dumps(chats))
    assert signals(file) == [DOWN, UP]
    assert answers(file) == [BAD, GOOD]
    assert len(traces(file)[1].input) == 3


def test_stored_completions_with_their_questions_are_read(tmp_path: Path) -> None:
    row = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "metadata": {"rating": "down"},
        "input": [QUESTION],
        "choices": [{"index": 0, "message": answer(BAD)}],
    }
    file = written(tmp_path / "rows.jsonl", row)
    assert (signals(file), answers(file)) == ([DOWN], [BAD])


def test_test_cases_of_deepeval_are_rows(tmp_path: Path) -> None:
    case = {"name": "t", "input": ASKED, "actualOutput": BAD, "expectedOutput": GOOD}
    file = tmp_path / "run.json"
    file.write_text(json.dumps({"testCases": [{**case, "success": False}]}))
    assert "--column thumb=success" in str(error_of(file))
    assert signals(file, options=Options.parsed(["thumb=success"], None)) == [DOWN]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"guild": {}, "channel": {}, "messages": [], "messageCount": 0}, "Discord"),
        ({"sender_id": "u", "events": [{"event": "user", "text": ASKED}]}, "Rasa"),
        ({"id": 1, "description": ASKED, "satisfaction_rating": {"score": "bad"}}, "Zendesk"),
        ({"id": "1", "target_id": "2", "metric_name": "thumb", "value": False}, "TensorZero"),
        ({"custom_id": "r1", "method": "POST", "url": "/v1", "body": {}}, "requests of a batch"),
        ({"span_id": "s", "name": "t", "annotator_kind": "HUMAN", "result": {}}, "Phoenix"),
    ],
    ids=["discord", "rasa", "zendesk", "tensorzero", "batch", "phoenix"],
)
def test_products_are_named_with_the_way(row: dict[str, Any], words: str, tmp_path: Path) -> None:
    error = error_of(written(tmp_path / "rows.jsonl", row))
    assert words in str(error)
    assert "thumbwheel import" in error.fix


def test_a_title_above_the_header_is_said(tmp_path: Path) -> None:
    rows = "question,answer,thumb", f'"{ASKED}","{BAD}",down'
    file = csv_text(tmp_path / "rows.csv", "Report of ratings,,", *rows)
    assert "delete what stands above it" in str(error_of(file))


def test_several_objects_of_feedback_are_asked_about(tmp_path: Path) -> None:
    feedback = [{"type": "rating", "value": "bad"}, {"type": "correction", "value": GOOD}]
    row = {"id": "d1", "messages": [QUESTION], "output": BAD, "feedback": feedback}
    rated = {**row, "feedback": feedback[:1]}
    assert "a column of its own" in str(error_of(written(tmp_path / "two.jsonl", row)))
    assert signals(written(tmp_path / "rated.jsonl", rated)) == [DOWN]


# chats in short forms


@pytest.mark.parametrize(
    "messages",
    [
        [["user", ASKED], ["assistant", BAD]],
        [("human", ASKED), ("ai", BAD)],
        [{"user": ASKED}, {"assistant": BAD}],
        [{"Human": ASKED}, {"Bot": BAD}],
    ],
    ids=["lists", "langchain", "objects", "other names"],
)
@pytest.mark.parametrize("key", ["messages", "conversation"])
def test_messages_of_a_role_and_a_text(key: str, messages: Any, tmp_path: Path) -> None:
    file = written(tmp_path / "rows.jsonl", {key: messages, "feedback": "down"})
    (trace,) = traces(file)
    assert (trace.input, trace.output, signals(file)) == ([QUESTION], BAD, [DOWN])


def test_pairs_of_questions_and_answers_stay_pairs(tmp_path: Path) -> None:
    file = written(tmp_path / "rows.jsonl", {"messages": [[ASKED, GOOD], ["And hats?", "Yes."]]})
    assert answers(file) == [GOOD, "Yes."]


@pytest.mark.parametrize(
    "row",
    [
        {"messages": {"user": ASKED, "assistant": GOOD}},
        {"prompt": {"title": "a", "text": "b"}, "response": GOOD, "thumb": "up"},
    ],
    ids=["messages", "prompt"],
)
def test_an_unknown_object_is_no_prompt(row: dict[str, Any], tmp_path: Path) -> None:
    file = written(tmp_path / "rows.jsonl", row)
    assert "--column prompt=COLUMN." in refusals(file)[1]


@pytest.mark.parametrize("row", SHAPES, ids=SHAPE_NAMES)
def test_white_space_is_no_good_answer(row: dict[str, Any], tmp_path: Path) -> None:
    text = json.dumps(row).replace(json.dumps(BAD), '" \\n"')
    (reason,) = refusals(written(tmp_path / "rows.jsonl", json.loads(text))).values()
    assert "empty" in reason or "no text" in reason


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"c1": chat(GOOD), "c2": chat(BAD, feedback="down")}, "jq -c"),
        ({"role": "user", "content": ASKED, "session": "s1"}, "single messages"),
    ],
    ids=["by name", "single"],
)
def test_chats_in_pieces_are_named_with_the_way(
    row: dict[str, Any], words: str, tmp_path: Path
) -> None:
    assert words in str(error_of(written(tmp_path / "rows.jsonl", row)))


# pictures and thoughts beside an answer


@pytest.mark.parametrize("key", ["image", "image_url", "image_path", "img", "screenshot"])
@pytest.mark.parametrize(
    "row",
    [
        {"prompt": ASKED, "response": GOOD, "thumb": "up"},
        {"prompt": ASKED, "completion": GOOD},
        {"instruction": ASKED, "input": "", "output": GOOD},
        chat(GOOD),
        {"prompt": ASKED, "chosen": GOOD, "rejected": BAD},
    ],
    ids=["table", "trl", "alpaca", "openai", "preference"],
)
def test_a_picture_beside_a_question_stays(row: dict[str, Any], key: str, tmp_path: Path) -> None:
    """A model of texts is not taught an answer that only the picture gives."""
    trace = traces(written(tmp_path / "rows.jsonl", {**row, key: "https://x/a.png"}))[0]
    assert [part["type"] for part in trace.input[0]["content"]] == ["image_url", "text"]


@pytest.mark.parametrize("key", ["reasoning_content", "thinking", "Complex_CoT"])
@pytest.mark.parametrize(
    "row",
    [
        {"question": ASKED, "response": GOOD, "thumb": "up"},
        {"prompt": ASKED, "completion": GOOD},
        {"instruction": ASKED, "input": "", "output": GOOD},
    ],
    ids=["table", "trl", "alpaca"],
)
def test_thoughts_beside_an_answer_are_a_step(
    row: dict[str, Any], key: str, tmp_path: Path
) -> None:
    (trace,) = traces(written(tmp_path / "rows.jsonl", {**row, key: "Look it up."}))
    thought = trace.steps[0]
    assert (thought.kind, thought.output) == ("reasoning", "Look it up.")
    assert trace.output == GOOD


# what a file says of its answers in other words


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("type", "chosen", "rejected"),
        ("response_type", "accepted", "rejected"),
        ("split", "good", "bad"),
        ("source", "preferred", "rejected"),
    ],
)
@pytest.mark.parametrize("row", SHAPES, ids=SHAPE_NAMES)
def test_a_key_that_sorts_answers_is_a_mark(
    row: dict[str, Any], key: str, good: str, bad: str, tmp_path: Path
) -> None:
    file = written(tmp_path / "rows.jsonl", {**row, key: good}, {**row, key: bad})
    assert signals(file) == [UP, DOWN]
    other = written(tmp_path / "other.jsonl", {**row, key: good}, {**row, key: "train"})
    assert signals(other) == [("label", True)] * 2


def test_advantages_are_no_praise(tmp_path: Path) -> None:
    file = written(tmp_path / "rows.jsonl", chat(GOOD, advantage=1.2), chat(BAD, advantage=-0.8))
    assert "--scale advantage=" in refusals(file)[2]


def test_an_escalated_answer_is_no_good_one(tmp_path: Path) -> None:
    file = written(tmp_path / "rows.jsonl", chat(GOOD, escalated=False), chat(BAD, escalated=True))
    assert signals(file) == [DOWN]


@pytest.mark.parametrize(
    "failure",
    [
        {"error": True},
        {"error": "timeout of the upstream"},
        {"error": {"code": 500}},
        {"status": "error"},
        {"state": "cancelled"},
    ],
    ids=lambda failure: str(next(iter(failure.items()))),
)
@pytest.mark.parametrize("row", SHAPES, ids=SHAPE_NAMES)
def test_an_answer_that_failed_is_not_learned(
    row: dict[str, Any], failure: dict[str, Any], tmp_path: Path
) -> None:
    file = written(tmp_path / "rows.jsonl", {**row, **failure})
    assert signals(file) == []
    assert "says that the answer failed" in remarks(file)[0]
    (key,) = failure
    options = Options.parsed([f"metadata={key}"], None)
    assert signals(file, options=options) == [("label", True)]
    within = chat(BAD)
    within["messages"][1] |= failure
    assert signals(written(tmp_path / "message.jsonl", within)) == []


@pytest.mark.parametrize("fine", [{"error": None}, {"error": False}, {"status": "success"}])
def test_an_answer_that_did_not_fail_is_learned(fine: dict[str, Any], tmp_path: Path) -> None:
    file = written(tmp_path / "rows.jsonl", chat(GOOD, **fine))
    assert signals(file) in ([("label", True)], [UP])


# databases and logs


def test_values_with_their_types_are_values(tmp_path: Path) -> None:
    time = {"$date": "2026-01-05T09:00:00Z"}
    row = {"_id": {"$oid": "65"}, "question": ASKED, "answer": GOOD, "createdAt": time}
    older = {**row, "answer": BAD, "createdAt": {"$date": {"$numberLong": "1767603600000"}}}
    newer = {**row, "createdAt": {"_seconds": 1767603600, "_nanoseconds": 0}}
    file = written(
        tmp_path / "rows.jsonl",
        {**row, "rating": {"$numberInt": "5"}},
        {**older, "rating": {"$numberDouble": "1.0"}},
        {**newer, "rating": 5},
    )
    assert signals(file) == [("rating", 5), ("rating", 1.0), ("rating", 5)]
    assert {str(trace.occurred_at) for trace in traces(file)} == {"2026-01-05 09:00:00+00:00"}


def test_instructions_beside_an_input_are_the_system_text(tmp_path: Path) -> None:
    item = {"type": "message", "role": "assistant"}
    output = [{**item, "content": [{"type": "output_text", "text": BAD}]}]
    row = {"instructions": "Be kind.", "input": ASKED, "output": output, "rating": "bad"}
    (trace,) = traces(written(tmp_path / "rows.jsonl", row))
    assert [message["content"] for message in trace.input] == ["Be kind.", ASKED]


@pytest.mark.parametrize(
    "beside",
    [
        {"ratings": {"answer_good": {"value": "no"}}},
        {"text_assessments": [{"ratings": {"answer_correct": {"value": "negative"}}}]},
    ],
    ids=["ratings", "assessments"],
)
def test_assessments_of_databricks_are_asked_about(beside: dict[str, Any], tmp_path: Path) -> None:
    row = {"request": {"messages": [QUESTION]}, "response": BAD, **beside}
    file = written(tmp_path / "rows.jsonl", row)
    (key,) = beside
    assert f"thumb={key}" in str(error_of(file))
    assert signals(file, options=Options.parsed([f"thumb={key}"], None)) == [DOWN]


def test_an_answer_with_its_sources_is_its_text(tmp_path: Path) -> None:
    stored = json.dumps({"text": BAD, "sources": [], "type": "chat", "attachments": []})
    row = {"prompt": ASKED, "response": stored, "thumb": "down"}
    assert answers(written(tmp_path / "rows.jsonl", row)) == [BAD]


def test_a_chat_in_an_object_is_proposed_whole(tmp_path: Path) -> None:
    row = {"ts": "2026-01-05", "body": {"messages": [QUESTION]}, "reply": BAD, "vote": -1}
    error = str(error_of(written(tmp_path / "rows.jsonl", row)))
    assert "--column prompt=body.messages --column response=reply --column rating=vote" in error


def test_threads_of_assistants_are_named_with_the_way(tmp_path: Path) -> None:
    message = {"object": "thread.message", "role": "assistant", "content": []}
    file = tmp_path / "thread.json"
    file.write_text(json.dumps({"object": "list", "data": [message]}))
    assert "oldest first" in error_of(file).fix


def test_comments_of_one_word_stay_beside_a_rating(tmp_path: Path) -> None:
    rows = [
        {"query": ASKED, "response": text, "rating": rating, "comment": comment}
        for text, rating, comment in ((GOOD, 5, "good"), (BAD, 1, "bad"))
    ]
    good, bad = [
        record
        for record in records(written(tmp_path / "rows.jsonl", *rows))
        if isinstance(record, FeedbackRecord)
    ]
    assert (good.value, good.comment, bad.value, bad.comment) == (5, "good", 1, "bad")


def test_words_that_nobody_knows_under_the_name_of_a_mark_are_said(tmp_path: Path) -> None:
    rows = f"{ASKED};{GOOD};billing", f"{ASKED};{BAD};shipping"
    mapping = detect(csv_text(tmp_path / "rows.csv", "question;answer;label", *rows)).mapping
    assert mapping[-1].startswith("not read: label")


def test_a_thumb_in_german(tmp_path: Path) -> None:
    rows = f"{ASKED};{GOOD};hoch", f"{ASKED};{BAD};runter"
    file = csv_text(tmp_path / "rows.csv", "frage;antwort;daumen", *rows)
    assert signals(file, options=Options.parsed(["thumb=daumen"], None)) == [UP, DOWN]
    assert "thumb=daumen" in str(error_of(file))


def test_an_answer_whose_state_is_failed_is_not_learned(tmp_path: Path) -> None:
    file = written(tmp_path / "a.jsonl", chat(GOOD, status="completed"), chat(BAD, status="failed"))
    assert signals(file) == [("label", True)]
