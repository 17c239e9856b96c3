"""Neighbours of what people bring: other exports of the same products, the same column in another
spelling, the same mistake in another source."""

from __future__ import annotations

import csv
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.brought.reading import answers, records, refusals, signals, traces, written
from thumbwheel.core.errors import InputError
from thumbwheel.importers.detect import detect
from thumbwheel.importers.foreign import FOREIGN
from thumbwheel.importers.lines import ignore_position
from thumbwheel.importers.marks import read_mark
from thumbwheel.importers.source import LeftOut, Line, Refused
from thumbwheel.importers.sources import SOURCES
from thumbwheel.importers.types import CaseRecord, FeedbackRecord

ASKED = "Can I return shoes?"
GOOD, BAD = "Yes, within 30 days.", "No idea, go away."
QUESTION = {"role": "user", "content": ASKED}
UP, DOWN = ("thumb", True), ("thumb", False)


def reply(text: str, **beside: Any) -> dict[str, Any]:
    """An answer of the assistant."""
    return {"role": "assistant", "content": text, **beside}


def chat(text: str, **beside: Any) -> dict[str, Any]:
    """A row of one question and its answer."""
    return {"messages": [QUESTION, reply(text)], **beside}


def csv_file(path: Path, *rows: dict[str, Any]) -> Path:
    """A CSV file with these rows."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def pairs_of(path: Path) -> list[tuple[str, str]]:
    """(better, worse) answer of every pair of a file."""
    texts: dict[str, str] = {}
    pairs = []
    for record in records(path):
        if not isinstance(record, FeedbackRecord):
            texts[record.external_id] = record.output
        elif isinstance(record.value, dict):
            first, second = record.value["ranking"]
            names = [texts[target.id] for target in record.targets]
            pairs += [(names[better], names[worse]) for better in first for worse in second]
    return pairs


# better answers beside an answer

CORRECTIONS = [
    "edited_response",
    "correction",
    "corrected_output",
    "better_answer",
    "human_edit",
    "revisedResponse",
    "expected_response",
    "Suggested Answer",
    "fixed",
]


@pytest.mark.parametrize("key", CORRECTIONS)
@pytest.mark.parametrize(
    "row",
    [
        chat(BAD),
        {"conversations": [{"from": "human", "value": ASKED}, {"from": "gpt", "value": BAD}]},
        {"prompt": ASKED, "completion": BAD},
        {"instruction": ASKED, "input": "", "output": BAD},
        {"prompt": ASKED, "response": BAD},
    ],
    ids=["openai", "sharegpt", "trl", "alpaca", "table"],
)
def test_a_corrected_answer_is_no_good_answer(
    row: dict[str, Any], key: str, tmp_path: Path
) -> None:
    file = written(tmp_path / "rows.jsonl", {**row, key: GOOD}, {**row, key: None})
    assert signals(file) == [("correction", GOOD)]


def test_a_correction_stands_at_its_message_too(tmp_path: Path) -> None:
    first = reply(BAD, edited_content=GOOD)
    messages = [QUESTION, first, {"role": "user", "content": "And hats?"}, reply("Hats, too.")]
    assert signals(written(tmp_path / "rows.jsonl", {"messages": messages})) == [
        ("correction", GOOD)
    ]


@pytest.mark.parametrize("key", ["expected_output", "ideal", "reference_answer", "gold_response"])
def test_an_answer_that_differs_from_the_expected_one_is_not_learned_as_good(
    key: str, tmp_path: Path
) -> None:
    file = written(
        tmp_path / "rows.jsonl", chat(BAD, **{key: GOOD}), chat(GOOD, **{key: "30 days"})
    )
    assert signals(file) == [("label", True)]
    assert answers(file) == [BAD, GOOD]


def test_another_answer_in_a_table_is_asked_about(tmp_path: Path) -> None:
    file = csv_file(
        tmp_path / "rows.csv", {"prompt": ASKED, "response": BAD, "agent_reply_final": GOOD}
    )
    with pytest.raises(InputError, match="--column correction=agent_reply_final"):
        signals(file)


def test_a_worse_answer_beside_an_answer_is_a_pair(tmp_path: Path) -> None:
    row = {"prompt": ASKED, "response": GOOD, "rejected_response": BAD}
    assert pairs_of(csv_file(tmp_path / "rows.csv", row)) == [(GOOD, BAD)]


# chats that a table holds as a text


@pytest.mark.parametrize("spelled", [json.dumps, str], ids=["json", "python"])
@pytest.mark.parametrize("key", ["messages", "conversation", "turns"])
@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_a_chat_written_as_a_text_is_a_chat(
    ending: str, key: str, spelled: Any, tmp_path: Path
) -> None:
    rows = [
        {key: spelled([QUESTION, reply(BAD)]), "label": "0"},
        {key: spelled([QUESTION, reply(GOOD)]), "label": "1"},
    ]
    write = csv_file if ending == "csv" else written
    assert signals(write(tmp_path / f"rows.{ending}", *rows)) == [DOWN, UP]


def test_conversations_and_completions_in_csv(tmp_path: Path) -> None:
    turns = [{"from": "human", "value": ASKED}, {"from": "gpt", "value": BAD}]
    shared = csv_file(tmp_path / "a.csv", {"conversations": json.dumps(turns), "kto_tag": "False"})
    assert signals(shared) == [DOWN]
    row = {"prompt": str([QUESTION]), "completion": str([reply(BAD)]), "label": "False"}
    file = csv_file(tmp_path / "b.csv", row)
    assert (signals(file), answers(file)) == ([DOWN], [BAD])


def test_a_chat_that_cannot_be_opened_is_no_prompt(tmp_path: Path) -> None:
    """numpy writes lists without commas, which nobody can take apart."""
    text = str([QUESTION]) + "\n" + str([reply(BAD)])
    file = csv_file(tmp_path / "rows.csv", {"messages": text.replace("]\n[", "\n "), "label": "0"})
    with pytest.raises(InputError, match="label"):
        signals(file)


def test_a_chat_that_ends_in_its_answer_is_no_question(tmp_path: Path) -> None:
    file = csv_file(tmp_path / "rows.csv", {"question": json.dumps([QUESTION, reply(BAD)])})
    assert "ends in an answer" in refusals(file)[2]


# marks of single messages


@pytest.mark.parametrize(
    "marks",
    [
        [{"message_index": 1, "rating": "down"}, {"message_index": 3, "rating": "up"}],
        [{"messageId": "m2", "rating": "down"}],
        {"m2": "down", "m4": "up"},
        {"1": "down", "3": "up"},
    ],
    ids=["indexes", "ids in a list", "ids", "numbers"],
)
def test_marks_that_point_at_messages_are_not_those_of_the_last(marks: Any, tmp_path: Path) -> None:
    messages = [
        {"id": "m1", **QUESTION},
        {"id": "m2", **reply(BAD)},
        {"id": "m3", "role": "user", "content": "And hats?"},
        {"id": "m4", **reply("Hats, too.")},
    ]
    file = written(tmp_path / "rows.jsonl", {"messages": messages, "feedback": marks})
    assert "write each mark into its message" in refusals(file)[1]


def test_an_opinion_at_a_question_is_refused(tmp_path: Path) -> None:
    question = {"role": "user", "content": "And hats?", "feedback": "down"}
    messages = [QUESTION, reply(BAD), question, reply("Hats, too.")]
    file = written(tmp_path / "rows.jsonl", {"messages": messages})
    assert "answers no question" in refusals(file)[1]


def test_what_a_tool_says_of_itself_is_no_opinion(tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "c1", "content": "30", "success": True}
    messages = [QUESTION, reply("", tool_calls=[call]), result, reply(GOOD)]
    file = written(tmp_path / "rows.jsonl", {"messages": messages})
    assert signals(file) == [("label", True), ("label", True)]


# nobody is met by a traceback

HOSTILE: list[dict[str, Any]] = [
    {"messages": [QUESTION, reply(BAD), {"role": "feedback", "content": "down"}]},
    {"messages": [{"role": 5}], "output": "x"},
    {"input": "q", "output": [{"type": {"a": 1}}]},
    {"input": "q", "output": [{"type": []}]},
    {"id": "1", "timestamp": "x", "input": "q", "output": [{"type": []}], "scores": {"a": {}}},
    {"prompt": "q", "responses": ["a", "b"], "ranking": [1, {}]},
    {"prompt": "q", "responses": ["a", "b"], "chosen_index": "1"},
    {"messages": [{"role": "user", "parts": [{"type": "tool-x", "toolCallId": 1, "state": 2}]}]},
    {"messages": [{"role": "user", "content": "q", "attachments": [5, {}, {"url": 3}]}]},
    {"messages": [QUESTION, {"role": "assistant", "content": [{"type": "x", "text": {}}]}]},
    {"contents": [{"role": "user", "parts": [{"toolUse": {"name": 3}}]}]},
    {"messages": "[{'role': " * 200},
    {"chosen": [], "rejected": []},
    {"prompt": "q", "chosen": [[]], "rejected": [{}]},
]


@pytest.mark.parametrize("row", HOSTILE, ids=range(len(HOSTILE)))
def test_a_row_of_any_shape_is_read_or_refused(row: dict[str, Any], tmp_path: Path) -> None:
    file = written(tmp_path / "rows.jsonl", row, row)
    for name in SOURCES.names():
        source = SOURCES.get(name)
        assert source.claims(row) in (True, False), name
        with suppress(InputError):
            for item in source.read(file, ignore_position):
                assert isinstance(item, Line | Refused | LeftOut), name


# pairs


def test_a_pair_of_which_neither_is_preferred_is_refused(tmp_path: Path) -> None:
    pair = {"prompt": ASKED, "chosen": GOOD, "rejected": BAD}
    rows = [{**pair, key: "tie"} for key in ("preference", "winner", "label")]
    assert len(refusals(written(tmp_path / "rows.jsonl", *rows))) == 3


@pytest.mark.parametrize(
    "names",
    [("chosen", "rejected"), ("chosen_response", "rejected_response")],
    ids=["pair", "table"],
)
@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_a_pair_that_its_scores_contradict_is_refused(
    ending: str, names: tuple[str, str], tmp_path: Path
) -> None:
    """Numbers of CSV are texts."""
    row = {"prompt": ASKED, names[0]: GOOD, names[1]: BAD, "chosen_reward": 1, "rejected_reward": 2}
    write = csv_file if ending == "csv" else written
    (reason,) = refusals(write(tmp_path / f"rows.{ending}", row)).values()
    assert "is higher than that of chosen" in reason


def test_a_prompt_that_is_one_question_of_the_dialogue(tmp_path: Path) -> None:
    dialogue = [QUESTION, reply(GOOD), {"role": "user", "content": "And hats?"}]
    row = {
        "prompt": ASKED,
        "chosen": [*dialogue, reply("Hats, too.")],
        "rejected": [*dialogue, reply("No.")],
    }
    file = written(tmp_path / "rows.jsonl", row)
    assert pairs_of(file) == [("Hats, too.", "No.")]
    assert [message["content"] for message in traces(file)[0].input] == [ASKED, GOOD, "And hats?"]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": ASKED, "chosen": [GOOD], "rejected": [BAD]},
        {"input": ASKED, "preferred_output": GOOD, "non_preferred_output": BAD},
        {
            "input": [QUESTION],
            "preferred_output": [reply(GOOD)],
            "non_preferred_output": [reply(BAD)],
        },
        {"prompt": ASKED, "responses": [BAD, GOOD], "chosen_index": 1},
        {"prompt": ASKED, "responses": [BAD, GOOD], "ranking": [1, 0]},
        {"prompt": ASKED, "responses": [BAD, GOOD], "ranking": [2, 1]},
        {"prompt": ASKED, "response_a": BAD, "response_b": GOOD, "winner": GOOD},
        {
            "prompt": ASKED,
            "response_a": BAD,
            "response_b": GOOD,
            "model_a": "x",
            "model_b": "y",
            "winner": "y",
        },
        {
            "prompt": json.dumps([ASKED]),
            "response_a": json.dumps([GOOD]),
            "response_b": json.dumps([BAD]),
            "winner_model_a": 1,
            "winner_model_b": 0,
            "winner_tie": 0,
        },
        {
            "input": {"messages": [QUESTION]},
            "output": [{"type": "text", "text": GOOD}],
            "dispreferred_outputs": [[{"type": "text", "text": BAD}]],
        },
    ],
    ids=[
        "lists",
        "texts of openai",
        "chat of openai",
        "index",
        "order",
        "order from 1",
        "winning text",
        "winning model",
        "arena",
        "tensorzero",
    ],
)
def test_a_pair_in_further_forms(row: dict[str, Any], tmp_path: Path) -> None:
    file = written(tmp_path / "rows.jsonl", row)
    assert pairs_of(file) == [(GOOD, BAD)]
    assert [message["content"] for message in traces(file)[0].input] == [ASKED]


def test_several_rejected_answers_are_several_pairs(tmp_path: Path) -> None:
    row = {"prompt": ASKED, "chosen": [GOOD], "rejected": [BAD, "Never."]}
    assert pairs_of(written(tmp_path / "rows.jsonl", row)) == [(GOOD, BAD), (GOOD, "Never.")]


@pytest.mark.parametrize(
    "beside",
    [
        {"ranking": [1, 2, 0]},
        {"best": 1},
        {"chosen_index": 3},
        {"scores": [3, None, 1]},
    ],
    ids=["order or places", "number", "too high", "a score is missing"],
)
def test_an_order_that_can_be_read_in_two_ways_is_refused(
    beside: dict[str, Any], tmp_path: Path
) -> None:
    row = {"prompt": ASKED, "responses": [BAD, GOOD, "Perhaps."], **beside}
    assert list(refusals(written(tmp_path / "rows.jsonl", row))) == [1]


# tables


def test_the_question_of_a_form_is_asked_about(tmp_path: Path) -> None:
    name = "Did this solve it for you?"
    row = {"question": ASKED, "answer": GOOD, name: "Yes"}
    with pytest.raises(InputError, match="may be people's feedback"):
        signals(csv_file(tmp_path / "rows.csv", row))


@pytest.mark.parametrize(
    ("good", "bad"),
    [("👍 good", "👎 bad"), ("5 - Excellent", "1 - Very poor"), ("accurate", "inaccurate")],
    ids=["sign and word", "number and word", "accurate"],
)
@pytest.mark.parametrize("key", ["feedback", "rating"])
def test_choices_of_a_form_are_marks(good: str, bad: str, key: str, tmp_path: Path) -> None:
    rows = [
        {"prompt": ASKED, "response": GOOD, key: good},
        {"prompt": ASKED, "response": BAD, key: bad},
    ]
    assert signals(csv_file(tmp_path / "rows.csv", *rows)) == [UP, DOWN]


def test_a_sign_that_its_word_contradicts_is_no_mark() -> None:
    assert read_mark("👍 bad") is None
    assert read_mark("3 - Neutral") == read_mark(None)


def test_passages_are_the_context_of_a_question(tmp_path: Path) -> None:
    rows = [
        {
            "input": ASKED,
            "actual_output": GOOD,
            "expected_output": "30 days",
            "context": ["a", "b"],
        },
        {"prompt": ASKED, "chosen": GOOD, "rejected": BAD, "context": ["a", "b"]},
    ]
    for number, row in enumerate(rows):
        file = written(tmp_path / f"{number}.jsonl", row)
        record = next(part for part in records(file) if not isinstance(part, FeedbackRecord))
        assert record.input[-1]["content"] == f"{ASKED}\n\na\n\nb"


def test_an_edit_beside_an_original_answer(tmp_path: Path) -> None:
    row = {
        "context": [QUESTION],
        "original_response": BAD,
        "edited_response": GOOD,
        "feedback": ["It is rude, and it helps nobody at all."],
    }
    file = written(tmp_path / "rows.jsonl", row)
    assert (signals(file), answers(file)) == ([("correction", GOOD)], [BAD])


# messages


def test_calls_of_the_ai_sdk_stand_before_the_text(tmp_path: Path) -> None:
    call = {"type": "tool-hours", "toolCallId": "c1", "state": "output-available"}
    parts = [
        {"type": "step-start"},
        {**call, "input": {"day": 1}, "output": {"until": 6}},
        {"type": "step-start"},
        {"type": "text", "text": GOOD},
    ]
    message = {"role": "assistant", "parts": parts, "metadata": {"feedback": "negative"}}
    question = {"role": "user", "parts": [{"type": "text", "text": ASKED}]}
    file = written(tmp_path / "rows.jsonl", {"messages": [question, message]})
    (trace,) = traces(file)
    assert [part["role"] for part in trace.input] == ["user", "assistant", "tool"]
    assert json.loads(trace.input[2]["content"]) == {"until": 6}
    assert (trace.output, signals(file)) == (GOOD, [DOWN])


@pytest.mark.parametrize("name", ["toolInvocations", "parts"])
def test_older_calls_of_the_ai_sdk(name: str, tmp_path: Path) -> None:
    call = {"state": "result", "toolCallId": "c1", "toolName": "f", "args": {}, "result": 30}
    message = reply(GOOD, toolInvocations=[call])
    if name == "parts":
        parts = [
            {"type": "tool-invocation", "toolInvocation": call},
            {"type": "text", "text": GOOD},
        ]
        message = reply(GOOD, parts=parts)
    file = written(tmp_path / "rows.jsonl", {"messages": [QUESTION, message]})
    call_trace, trace = traces(file)
    assert call_trace.output is None
    assert (trace.output, trace.input[2]["content"]) == (GOOD, "30")


def test_a_message_whose_weight_is_0_is_not_learned_from_with_its_calls(tmp_path: Path) -> None:
    call = {"state": "result", "toolCallId": "c1", "toolName": "f", "args": {}, "result": 30}
    message = reply(GOOD, toolInvocations=[call], weight=0)
    assert signals(written(tmp_path / "rows.jsonl", {"messages": [QUESTION, message]})) == []


def test_blocks_of_bedrock_are_calls_results_and_thoughts(tmp_path: Path) -> None:
    thought = {"reasoningContent": {"reasoningText": {"text": "hm"}}}
    call = {"toolUse": {"toolUseId": "c1", "name": "f", "input": {}}}
    result = {"toolResult": {"toolUseId": "c1", "content": [{"text": "30"}]}}
    messages = [
        {"role": "user", "content": [{"text": ASKED}]},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
        {"role": "assistant", "content": [thought, {"text": GOOD}]},
    ]
    trace = traces(written(tmp_path / "rows.jsonl", {"messages": messages}))[-1]
    assert [part["role"] for part in trace.input] == ["user", "assistant", "tool"]
    assert (trace.output, trace.steps[0].output) == (GOOD, "hm")


def test_items_of_the_responses_api_are_a_history(tmp_path: Path) -> None:
    asked = [
        QUESTION,
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "30"},
    ]
    item = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": GOOD}],
    }
    row = {"input": asked, "output": [{"type": "reasoning", "summary": []}, item]}
    file = written(tmp_path / "rows.jsonl", {**row, "feedback": "bad"})
    (trace,) = traces(file)
    assert [part["role"] for part in trace.input] == ["user", "assistant", "tool"]
    assert (trace.output, signals(file)) == (GOOD, [DOWN])


@pytest.mark.parametrize("key", ["experimental_attachments", "attachments", "files"])
def test_files_beside_a_question_stay(key: str, tmp_path: Path) -> None:
    """A model of texts is not taught an answer that only the picture gives."""
    question = {**QUESTION, key: [{"name": "a.png", "contentType": "image/png", "url": "a.png"}]}
    (trace,) = traces(written(tmp_path / "rows.jsonl", {"messages": [question, reply(GOOD)]}))
    assert [part["type"] for part in trace.input[0]["content"]] == ["text", "image_url"]


# products


def test_a_score_of_an_observation_is_a_score(tmp_path: Path) -> None:
    observation = {
        "id": "o1",
        "traceId": "t1",
        "type": "GENERATION",
        "startTime": "2026-01-05T09:00:00Z",
        "input": [QUESTION],
        "output": reply(BAD),
        "scores": [{"name": "user-feedback", "value": 0, "dataType": "NUMERIC"}],
    }
    alone = written(tmp_path / "a.jsonl", observation)
    trace = {"id": "t1", "timestamp": "2026-01-05T09:00:00Z"}
    within = written(tmp_path / "b.jsonl", {"trace": trace, "observations": [observation]})
    assert signals(alone) == signals(within) == [DOWN]


def test_a_summary_of_scores_by_name(tmp_path: Path) -> None:
    summary = {
        "user-feedback": {"type": "NUMERIC", "values": [0], "average": 0},
        "rating": {"type": "CATEGORICAL", "values": ["4/5"], "valueCounts": []},
    }
    row = {"id": "t1", "timestamp": "2026-01-05T09:00:00Z", "userId": "u", "input": ASKED}
    file = written(tmp_path / "a.jsonl", {**row, "output": BAD, "scores": summary})
    assert signals(file) == [DOWN, ("rating", 4.0)]


@pytest.mark.parametrize(
    "name", ["customer_feedback", "end-user-feedback", "feedback-thumbs", "Human Thumbs"]
)
def test_names_of_peoples_opinions(name: str, tmp_path: Path) -> None:
    score = {"id": "x", "name": name, "dataType": "NUMERIC", "value": 0, "traceId": "t1"}
    assert signals(written(tmp_path / "a.jsonl", score)) == [DOWN]


def dify(answer: str, rating: str) -> dict[str, Any]:
    """A row of Dify's export of feedback."""
    return {
        "feedback_id": "f1",
        "conversation_id": "c1",
        "message_id": f"m-{rating}",
        "user_query": ASKED,
        "ai_response": answer,
        "feedback_rating": "👍" if rating == "like" else "👎",
        "feedback_rating_raw": rating,
        "feedback_comment": "",
        "feedback_source": "user",
        "feedback_date": "2026-01-05 09:00:00",
        "message_date": "2026-01-05 08:59:00",
        "from_account_name": "",
        "from_end_user_id": "u1",
        "has_comment": "No",
    }


@pytest.mark.parametrize("ending", ["csv", "json"])
def test_feedback_of_dify(ending: str, tmp_path: Path) -> None:
    rows = [dify(GOOD, "like"), dify(BAD, "dislike"), dify("x" * 500 + "...", "like")]
    file = tmp_path / f"feedback.{ending}"
    if ending == "csv":
        csv_file(file, *rows)
    else:
        file.write_text(json.dumps({"export_info": {"app_id": "a"}, "feedback_data": rows}))
    assert signals(file) == [UP, DOWN]
    (reason,) = refusals(file).values()
    assert "was cut after 500 characters" in reason


def test_messages_of_difys_api(tmp_path: Path) -> None:
    def message(answer: str, rating: str | None) -> dict[str, Any]:
        feedback = {"rating": rating} if rating else None
        return {"id": answer, "query": ASKED, "answer": answer, "feedback": feedback}

    data = [message(GOOD, "like"), message(BAD, "dislike"), message("Perhaps.", None)]
    file = tmp_path / "messages.json"
    file.write_text(json.dumps({"limit": 20, "has_more": False, "data": data}))
    assert signals(file) == [UP, DOWN]


def test_conversations_of_flowise(tmp_path: Path) -> None:
    messages = [
        {"role": "userMessage", "content": ASKED},
        {"role": "apiMessage", "content": BAD, "feedback": "THUMBS_DOWN"},
    ]
    assert signals(written(tmp_path / "a.jsonl", {"id": "c1", "messages": messages})) == [DOWN]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"version": 4, "history": [], "folders": [], "prompts": []}, "Chatbot UI"),
        ({"internal": [["a", "b"]], "visible": [["a", "b"]]}, "text-generation-webui"),
        ({"user_name": "You", "character_name": "Bot"}, "SillyTavern"),
        ({"messages": [{"versions": [], "currentlySelected": 0}]}, "LM Studio"),
        ({"type": "message", "user": "U1", "text": "a", "ts": "1.0"}, "Slack"),
        ({"object": "chat.completion", "id": "c", "choices": []}, "stored completions"),
        ({"columns": ["a"], "data": [["b"]]}, "column by column"),
        ({"id": "i", "datasetRunId": "r", "datasetItemId": "d"}, "Langfuse"),
        ({"id": "s", "countTraces": 1, "userIds": []}, "sessions"),
    ],
    ids=lambda value: value if isinstance(value, str) else "row",
)
def test_further_products_are_named_with_the_way(
    row: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=words) as raised:
        detect(written(tmp_path / "rows.jsonl", row))
    assert raised.value.fix in {step for _, _, step in FOREIGN}


def test_excels_own_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "ratings.xlsx"
    file.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(InputError, match="Save as, CSV UTF-8"):
        detect(file)


def test_the_reason_of_the_first_line_is_said(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes('{"prompt": "Größe?"}\n'.encode("cp1252"))
    with pytest.raises(InputError, match="UTF-8"):
        detect(file)


def test_cases_stay_cases(tmp_path: Path) -> None:
    row = {"user_input": ASKED, "response": GOOD, "reference": "30 days"}
    kinds = [type(record) for record in records(written(tmp_path / "rows.jsonl", row))]
    assert kinds[0] is CaseRecord
