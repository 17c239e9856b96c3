"""A reader never turns a word round and never invents one: marks beside answers, scales of columns,
prompts of pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.brought.reading import answers, brought, items, refusals, signals, traces, written
from thumbwheel.importers.detect import Options
from thumbwheel.importers.marks import MarkColumn, read_mark, reading_of
from thumbwheel.importers.source import Line
from thumbwheel.importers.types import FeedbackRecord, Unreadable

ASKED = {"role": "user", "content": "Can I return shoes?"}
BAD = {"role": "assistant", "content": "Go away."}
CHAT = {"messages": [ASKED, BAD]}
SHAREGPT = {"conversations": [{"from": "human", "value": "a?"}, {"from": "gpt", "value": "bad"}]}
TRL = {"prompt": "a?", "completion": "bad"}
ALPACA = {"instruction": "a?", "input": "", "output": "bad"}
SHAPES = (CHAT, SHAREGPT, TRL, ALPACA)
NEGATIVE = (
    {"kto_tag": False},
    {"label": False},
    {"label": "undesirable"},
    {"label": 0},
    {"feedback": "down"},
    {"feedback": "thumbsDown"},
    {"thumbs_down": True},
    {"score": 0.0},
    {"rating": 0},
    {"reward": -1},
    {"thumb": False},
    {"thumb": "👎🏽"},
    {"rating": "1/5"},
    {"rating": "★☆☆☆☆"},
    {"metadata": {"rating": "bad"}},
    {"is_good": "no"},
)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mark", NEGATIVE)
def test_a_mark_against_an_answer_is_never_a_good_answer(
    shape: dict[str, Any], mark: dict[str, Any], tmp_path: Path
) -> None:
    path = written(tmp_path / "rows.jsonl", shape | mark)
    (signal,) = signals(path)
    assert signal in (("thumb", False), ("score", 0), ("rating", 1))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("key", ["kto_tag", "label", "rating", "feedback", "score"])
def test_null_is_nobody_said(shape: dict[str, Any], key: str, tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", shape | {key: None})
    assert signals(path) == []


@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_without_a_mark_says_nothing_in_a_file_with_marks(
    shape: dict[str, Any], tmp_path: Path
) -> None:
    path = written(tmp_path / "rows.jsonl", shape, shape | {"kto_tag": False})
    assert signals(path) == [("thumb", False)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mark", [{"label": "billing"}, {"upvotes": 3}, {"feedback": {"a": 1}}])
def test_a_mark_that_is_not_understood_refuses_its_row_and_names_the_key(
    shape: dict[str, Any], mark: dict[str, Any], tmp_path: Path
) -> None:
    path = written(tmp_path / "rows.jsonl", shape | mark)
    (reason,) = refusals(path).values()
    assert next(iter(mark)) in reason


def test_a_person_can_say_that_a_key_is_no_mark_and_that_another_one_is(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", CHAT | {"label": "billing"})
    assert signals(path, options=Options.parsed(["metadata=label"], None)) == [("label", True)]
    path = written(tmp_path / "own.jsonl", CHAT | {"okay": "no"})
    assert signals(path, options=Options.parsed(["thumb=okay"], None)) == [("thumb", False)]


def test_a_mark_on_a_message_is_about_that_message(tmp_path: Path) -> None:
    good = {"role": "assistant", "content": "Yes, within 14 days.", "feedback": "up"}
    row = {"messages": [ASKED, BAD | {"label": False}, ASKED, good]}
    assert signals(written(tmp_path / "rows.jsonl", row)) == [("thumb", False), ("thumb", True)]


def test_the_files_with_marks_that_people_brought() -> None:
    for name in ("alpaca.json", "messages.jsonl", "messages-label.jsonl", "sharegpt.json"):
        assert signals(brought(f"01-kto-tag/{name}")) == [("thumb", True), ("thumb", False)]
    assert signals(brought("01-kto-tag/trl-label-str.jsonl")) == [
        ("thumb", False),
        ("thumb", False),
    ]
    for name in ("score.jsonl", "trl-score.jsonl", "sharegpt-score.jsonl"):
        assert all(value in (False, 0, 0.1) for _, value in signals(brought(f"01-kto-tag/{name}")))


def test_a_lone_one_is_refused_until_its_scale_is_said() -> None:
    path = brought("01-kto-tag/score.jsonl")
    (reason,) = refusals(path).values()
    assert "--scale rating=1:5" in reason
    stated = Options.parsed(None, ["rating=1:5"])
    assert ("rating", 1) in signals(path, options=stated)


def test_a_rejected_answer_makes_a_pair(tmp_path: Path) -> None:
    assert (
        signals(brought("01-kto-tag/msgrejected.jsonl"))
        == [("preference", {"ranking": [[0], [1]]})] * 2
    )
    assert answers(brought("01-kto-tag/msgrejected.jsonl")) == ["good", "bad"] * 2
    turns = {"conversations": SHAREGPT["conversations"], "rejected": {"from": "gpt", "value": "w"}}
    assert answers(written(tmp_path / "rows.jsonl", turns)) == ["bad", "w"]


# Scales of columns


def column_of(*values: Any) -> MarkColumn:
    column = MarkColumn()
    for value in values:
        column.add(value)
    return column


@pytest.mark.parametrize(
    ("kind", "values", "meanings"),
    [
        ("rating", [1, 0, 1], [True, False, True]),
        ("rating", [1, -1], [True, False]),
        ("rating", [1, 0, -1], [True, None, False]),
        ("rating", ["GOOD", "BAD", "--"], [True, False, None]),
        ("rating", [1, 5], [(1, 1, 5), (5, 1, 5)]),
        ("rating", ["4,5", "1"], [(4.5, 1, 5), (1, 1, 5)]),
        ("rating", ["80 %", "7/10", "0/10"], [(80, 0, 100), (7, 1, 10), (0, 0, 10)]),
        ("score", [0, 1], [(0, 0, 1), (1, 0, 1)]),
        ("score", [-1, 1], [False, True]),
        ("thumb", [1, 0], [True, False]),
        ("thumb", [0.2, 0.9], [(0.2, 0, 1), (0.9, 0, 1)]),
        ("against", [True, False, None], [False, None, None]),
    ],
)
def test_the_values_of_a_column_say_what_they_mean(
    kind: str, values: list[Any], meanings: list[Any]
) -> None:
    reading = reading_of(kind, kind, column_of(*values))
    for value, expected in zip(values, meanings, strict=True):
        signal = reading.signal(value)
        if expected is None or isinstance(expected, bool):
            assert (signal and signal["value"]) is expected
            assert signal is None or signal["kind"] == "thumb"
            continue
        assert signal is not None
        scale = signal["scale"]
        assert (signal["value"], scale["min"], scale["max"]) == expected


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("rating", [1, 1]),
        ("rating", [0, 5]),
        ("rating", [1, 10]),
        ("rating", [0.2, 0.9]),
        ("score", [1, 5]),
        ("score", [-0.5, 0.5]),
        ("thumb", [1, 2, 3]),
    ],
)
def test_numbers_of_an_unknown_scale_are_refused_with_the_option(
    kind: str, values: list[Any]
) -> None:
    reading = reading_of(kind, kind, column_of(*values))
    for value in values:
        with pytest.raises(Unreadable, match=f"--scale {kind}="):
            reading.signal(value)


def test_one_stray_word_turns_nothing_round() -> None:
    for word in ("not bad", "no idea", "good?", "10/5", "6 stars", "1,000,000", "★" * 11):
        mark = read_mark(word)
        assert mark is None or mark.says_nothing


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("WAHR", "FALSCH"),
        ("VRAI", "FAUX"),
        ("sim", "não"),
        ("Si", "No"),
        ("да", "нет"),
        ("はい", "いいえ"),
        ("赞", "踩"),
        ("满意", "不满意"),
        ("J", "N"),
        ("T", "F"),
        ("good", "Not good"),
        ("gut", "nicht gut"),
        ("utile", "pas utile"),
        (":+1:", ":-1:"),
        ("❤️", "💔"),
    ],
)
def test_both_sides_of_an_opinion_are_read_in_every_spelling(good: str, bad: str) -> None:
    reading = reading_of("thumb", "thumb", column_of(good, bad))
    for value, expected in ((good, True), (bad, False)):
        signal = reading.signal(value)
        assert signal is not None
        assert signal["value"] is expected


def test_letters_among_other_letters_are_grades() -> None:
    reading = reading_of("thumb", "thumb", column_of("A", "B", "F"))
    for grade in ("A", "F"):
        with pytest.raises(Unreadable, match="WORST:BEST"):
            reading.signal(grade)


def test_words_that_nobody_knows_are_read_as_a_person_says(tmp_path: Path) -> None:
    rows = [CHAT | {"label": word} for word in ("dobře", "Ujde to", "hrozné")]
    path = written(tmp_path / "rows.jsonl", *rows)
    assert len(refusals(path)) == 3
    three = Options.parsed(None, ["label=hrozné:ujde to:dobře"])
    assert signals(path, options=three) == [("rating", 2), ("rating", 1), ("rating", 0)]
    two = Options.parsed(None, ["label=hrozné:dobře"])
    assert signals(path, options=two) == [("thumb", True), ("thumb", False)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "mark",
    [
        {"chosen": False},
        {"rejected": True},
        {"answer": "reject"},
        {"happy": False},
        {"is_negative": True},
        {"is_safe": False},
        {"tags": ["bad", "en"]},
        {"attributes": {"feedback": "down"}},
        {"metadata": {"user": {"feedback": "down"}}},
        {"extra_info": {"label": "bad"}},
        {"review": {"decision": "reject"}},
        {"feedback": {"type": "thumbs_down"}},
        {"Bewertung": "schlecht"},
        {"评价": "差评"},
        {"flagged": "incorrect"},
    ],
)
def test_a_mark_in_any_place_is_never_a_good_answer(
    shape: dict[str, Any], mark: dict[str, Any], tmp_path: Path
) -> None:
    path = written(tmp_path / "rows.jsonl", shape | mark)
    assert signals(path) in ([("thumb", False)], [("label", "bad")])


@pytest.mark.parametrize("key", ["hallucination_score", "toxicity", "error_rating", "rank"])
def test_a_number_of_what_is_wrong_is_no_praise(key: str, tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", CHAT | {key: 0.9})
    (reason,) = refusals(path).values()
    assert f"--column metadata={key}" in reason


@pytest.mark.parametrize(
    "rating",
    [{"score": 1, "max": 5}, {"value": 1, "scale": 5}, {"ratingValue": 1, "bestRating": 5}],
)
def test_an_object_tells_the_scale_of_its_number(rating: dict[str, Any], tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", CHAT | {"rating": rating})
    (item,) = items(path)
    assert isinstance(item, Line)
    signal = item.records[-1]
    assert isinstance(signal, FeedbackRecord)
    assert signal.scale is not None
    assert (signal.value, signal.scale.min, signal.scale.max) == (1, 1, 5)


def test_a_word_in_a_column_of_faults_counts_only_where_it_is_clear() -> None:
    reading = reading_of("against", "against", column_of("up", "down"))
    assert reading.signal("down") == {"kind": "thumb", "value": False}
    for word in ("up", "negative", "passed"):
        with pytest.raises(Unreadable, match="for the answer or against"):
            reading.signal(word)


@pytest.mark.parametrize("mark", [{"keep": False}, {"discard": True}, {"loss_weight": 0}])
def test_a_row_that_people_sorted_out_is_no_good_answer(
    mark: dict[str, Any], tmp_path: Path
) -> None:
    assert signals(written(tmp_path / "rows.jsonl", CHAT | mark)) == []


@pytest.mark.parametrize(
    ("praise", "blame"),
    [("thumbs_up", "thumbs_down"), ("upvoted", "downvoted"), ("like", "dislike")],
)
@pytest.mark.parametrize("unpressed", [0, False])
def test_two_buttons_that_nobody_pressed_say_nothing(
    praise: str, blame: str, unpressed: Any, tmp_path: Path
) -> None:
    table = {"question": "a?", "answer": "x"}
    for shape in (*SHAPES, table):
        rows = [
            shape | {praise: 1, blame: unpressed},
            shape | {praise: unpressed, blame: 1},
            shape | {praise: unpressed, blame: unpressed},
        ]
        path = written(tmp_path / "rows.jsonl", *rows)
        assert signals(path) == [("thumb", True), ("thumb", False)]
        inside = [table | {"feedback": {praise: unpressed, blame: press}} for press in (1, 0)]
        assert signals(written(tmp_path / "in.jsonl", *inside)) == [("thumb", False)]
        both = written(tmp_path / "both.jsonl", shape | {praise: 1, blame: 1})
        assert "both" in refusals(both)[1]


def test_a_mark_of_an_empty_answer_is_not_lost_in_silence(tmp_path: Path) -> None:
    rows = [
        {"question": "a?", "answer": "", "thumb": "down"},
        {"question": "b?", "answer": "", "thumb": None},
    ]
    path = written(tmp_path / "rows.jsonl", *rows)
    assert refusals(path) == {1: "its answer is empty, and somebody judged it"}


# Prompts of pairs


@pytest.mark.parametrize(
    ("name", "prompt"),
    [
        ("input.jsonl", ["Which fruit is red?"]),
        ("no-common.jsonl", ["Which fruit is red?"]),
        ("query.jsonl", ["Which fruit is red?"]),
        ("uf.jsonl", ["Red fruit?"]),
        ("pref-csv.csv", ["Red fruit?"]),
        ("orca.jsonl", ["You are brief.", "Which fruit is red?"]),
        ("sys-prompt.jsonl", ["Be brief.", "Red fruit?"]),
        ("system-question-csv.csv", ["Be brief.", "Red fruit?"]),
        ("tools-pref.jsonl", ["Open?"]),
    ],
)
def test_the_prompt_of_a_pair_is_what_was_asked(name: str, prompt: list[str]) -> None:
    for trace in traces(brought(f"10-alpaca-ranking/{name}")):
        assert [message["content"] for message in trace.input] == prompt


def test_a_pair_whose_prompt_has_another_name_is_refused(tmp_path: Path) -> None:
    pair = {"chosen": "I say a cherry.", "rejected": "I say a stone."}
    path = written(tmp_path / "rows.jsonl", pair | {"frage": "Which fruit is red?"})
    (reason,) = refusals(path).values()
    assert "--column prompt=frage" in reason
    options = Options.parsed(["prompt=frage"], None)
    assert signals(path, "csv", options) == [("preference", {"ranking": [[0], [1]]})]


def test_the_common_beginning_is_said_where_it_is_taken(tmp_path: Path) -> None:
    from tests.brought.reading import items
    from thumbwheel.importers.source import Line

    pair = {"chosen": "The sky is blue.", "rejected": "The sky is green.", "source": "x y z"}
    (item,) = items(written(tmp_path / "rows.jsonl", pair))
    assert isinstance(item, Line)
    assert "both answers begin" in item.remarks[0]


def test_the_context_of_a_question_stands_in_the_prompt_of_its_pair(tmp_path: Path) -> None:
    row = {"context": "Shop 7.", "question": "Open?", "chosen": "Until six.", "rejected": "No."}
    for trace in traces(written(tmp_path / "rows.jsonl", row)):
        assert trace.input == [{"role": "user", "content": "Open?\n\nShop 7."}]


def test_equal_and_empty_sides_are_refused() -> None:
    reasons = refusals(brought("20-equal-pair/rows.jsonl"))
    assert reasons.keys() == {1, 2, 4, 5}
    assert "nothing to prefer" in reasons[2]
    assert "prompt is empty" in reasons[4]
