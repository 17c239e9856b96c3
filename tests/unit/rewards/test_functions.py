"""What each checker calls right, wrong, ill-formed and not its business."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.public_data import public_data
from thumbwheel.core.errors import ConfigError
from thumbwheel.rewards.function import Case, JudgementStatus
from thumbwheel.rewards.functions import FUNCTIONS


def score(name, text, reference=None, **config):
    return FUNCTIONS.get(name).create(config).score([Case(text, reference)])[0]


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("9 + 9 = 18\n#### 18", "She has 18.\n#### 18"),
        ("so\nA: 90,000", "90000"),
        ("The answer: 7\n**Final answer:** 12.", "12"),
        (r"hence \boxed{\frac{1}{2}}", "0.5"),
        (r"\boxed{3} or rather \boxed{4}", "4"),
        ("It costs $1,250.00", 1250),
        ("#### 5 apples", "5"),
        ("#### -3", "−3"),
        ("#### 1/3", "2/6"),
        ("first 3, then 4", "4"),
        ("50%", "50"),
        ("  Paris. ", "paris"),
        ("A: the  Blue whale", "The blue whale"),
        ("The answer is −7.", "-7"),
        ("The area is 12 m²", "12"),
        ("9.8 m/s²", "9.8"),
        ("答えは１２．５です", "12.5"),
        ("合計は１，２３４円", "1234"),
        ("A: 12,34,567", "1234567"),
        ("A: 35, as asked", "35"),
        ("265252859812191058636308480000000", "265252859812191058636308480000000"),
    ],
)
def test_exact_answer_right(answer, reference):
    assert score("exact_answer", answer, reference).value == 1


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("#### 17", "18"),
        ("18 apples\n#### 17", "18"),
        ("none", "18"),
        ("", "18"),
        ("London", "Paris"),
        ("1/0", "1"),
        ("#### 5 of 7", "5"),
        ("180000", "18"),
        ("Paris or London", "Paris"),
        ("The answer is −7.", "7"),
        ("3,5", "35"),
        ("A: 1,2,3", "123"),
        ("A: 12,3", "1,2,3"),
        ("A: 265252859812191058636308480000001", "265252859812191058636308480000000"),
    ],
)
def test_exact_answer_wrong(answer, reference):
    result = score("exact_answer", answer, reference)
    assert (result.value, result.status) == (0, JudgementStatus.OK)


def test_exact_answer_form_is_judged_where_it_was_asked():
    assert score("exact_answer", "it is 18", "#### 18").well_formed is False
    assert score("exact_answer", "#### 18", "#### 18").well_formed is True
    assert score("exact_answer", "it is 18", "18").well_formed is None
    strict = score("exact_answer", "it is 18", "18", require_mark=True)
    assert (strict.value, strict.well_formed) == (0, False)


def test_exact_answer_tolerance_and_case():
    assert score("exact_answer", "3.14", "3.1416").value == 0
    assert score("exact_answer", "3.14", "3.1416", tolerance=0.01).value == 1
    assert score("exact_answer", "paris", "Paris", case_sensitive=True).value == 0


def test_exact_answer_without_a_reference_has_no_value():
    assert score("exact_answer", "x").status is JudgementStatus.NOT_APPLICABLE
    assert score("exact_answer", "x", {"a": 1}).status is JudgementStatus.NOT_APPLICABLE


@given(st.integers(-(10**9), 10**9))
def test_exact_answer_reads_every_way_to_write_a_whole_number(value):
    for text in (f"{value}", f"{value:,}", f"{value}.0", f"#### {value:,}", rf"\boxed{{{value}}}"):
        assert score("exact_answer", text, str(value)).value == 1
    assert score("exact_answer", str(value + 1), str(value)).value == 0


def test_exact_answer_agrees_with_the_published_grades():
    compared = agreed = 0
    for line in public_data("math/gsm8k-model-solutions-graded.jsonl").read_text().splitlines():
        row = json.loads(line)
        for graded in (value for value in row.values() if isinstance(value, dict)):
            compared += 1
            agreed += (
                bool(score("exact_answer", graded["solution"], row["ground_truth"]).value)
                == graded["is_correct"]
            )
    assert compared > 2500
    assert agreed / compared > 0.995


def test_json_fields_right_wrong_missing():
    reference = {"folder": "money", "priority": "high"}
    right = score("json_fields", ' {"priority": "high", "folder": "money"}\n', reference)
    assert (right.value, right.well_formed) == (1, True)
    wrong = score("json_fields", '{"folder": "work", "priority": "high"}', json.dumps(reference))
    assert (wrong.value, wrong.well_formed, wrong.evidence["wrong"]) == (0, True, ["folder"])
    missing = score("json_fields", '{"folder": "money"}', reference)
    assert (missing.value, missing.well_formed, missing.evidence["missing"]) == (
        0,
        False,
        ["priority"],
    )


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "m",
        "```json\n{}\n```",
        'Sure: {"a": 1}',
        '{"a": 1} ok',
        '{"a": 1, "a": 1}',
        "[1]",
        '{"a": NaN}',
        '{"a": 1',
        "{'a': 1}",
    ],
)
def test_json_fields_is_strict(answer):
    result = score("json_fields", answer, {"a": 1})
    assert (result.value, result.well_formed, result.status) == (0, False, JudgementStatus.OK)


def test_json_fields_types_count():
    assert score("json_fields", '{"a": 1.0}', {"a": 1}).value == 1
    assert score("json_fields", '{"a": true}', {"a": 1}).value == 0
    assert score("json_fields", '{"a": "1"}', {"a": 1}).value == 0
    assert score("json_fields", '{"a": {"b": [1, true]}}', {"a": {"b": [1, True]}}).value == 1
    assert score("json_fields", '{"a": {"b": [1, 1]}}', {"a": {"b": [1, True]}}).value == 0
    assert score("json_fields", '{"a": null}', {"a": None}).value == 1


def test_json_fields_settings():
    reference = {"a": 1, "b": 2}
    assert score("json_fields", '{"a": 1, "b": 3}', reference, fields=["a"]).value == 1
    assert score("json_fields", '{"a": 1, "b": 3}', reference, weights={"a": 3}).value == 0.75
    assert score("json_fields", "no", reference, weights={"a": 3}).value == 0
    extra = score("json_fields", '{"a": 1, "b": 2, "c": 3}', reference, allow_extra=False)
    assert (extra.value, extra.well_formed, extra.evidence["extra"]) == (0, False, ["c"])
    assert score("json_fields", '{"a": 1, "b": 2, "c": 3}', reference).value == 1
    with pytest.raises(ConfigError, match="weights"):
        score("json_fields", "{}", {}, weights={"a": -1})


def test_json_fields_without_a_reference_still_judges_the_form():
    result = score("json_fields", '{"a": 1}', None, fields=["a"])
    assert (result.status, result.well_formed) == (JudgementStatus.NOT_APPLICABLE, True)
    assert score("json_fields", "{}", "no object", fields=["a"]).well_formed is False


VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.text(max_size=5)
    | st.lists(st.integers(0, 3))
)


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=4))
def test_json_fields_accepts_what_it_was_made_from(reference):
    assert score("json_fields", json.dumps(reference), reference).value == 1


def test_regex():
    assert score("regex", "call 555-1234 now", pattern=r"\d{3}-\d{4}").value == 1
    assert score("regex", "call 555-1234 now", pattern=r"\d{3}-\d{4}", full=True).value == 0
    assert score("regex", "HELLO", pattern="hello", ignore_case=True).value == 1
    caught = score("regex", "id=42;", reference=42, pattern=r"id=(?P<id>\d+)", group="id")
    assert (caught.value, caught.well_formed, caught.evidence["group"]) == (1, True, "42")
    assert score("regex", "no", reference=42, pattern=r"id=(\d+)", group=1).well_formed is False
    assert (
        score("regex", "id=42", pattern=r"id=(\d+)", group=1).status
        is JudgementStatus.NOT_APPLICABLE
    )
    assert (
        score("regex", "id=42", reference=1, pattern=r"id=\d+", group=3).status
        is JudgementStatus.FAILED
    )


def test_a_pattern_that_backtracks_for_ever_is_a_failed_score():
    result = score("regex", "a" * 20_000 + "!", pattern=r"((a+)+)+b", timeout=0.1)
    assert result.status is JudgementStatus.FAILED
    assert "0.1 s" in result.evidence["reason"]


@pytest.mark.parametrize(
    "pattern", ["(a", "a" * 1001, "(?:(?:a{1000}){1000}){1000}", "(a){99999999999}", "[z-a]"]
)
def test_an_impossible_pattern_is_a_setting_that_is_refused(pattern):
    with pytest.raises(ConfigError, match="pattern"):
        score("regex", "a", pattern=pattern)


def test_an_unknown_function_names_the_nearest():
    from thumbwheel.core.errors import NotFound

    with pytest.raises(NotFound, match="json_fields"):
        FUNCTIONS.get("json_field")


@pytest.mark.parametrize(
    ("reference", "arguments"),
    [
        ({"filter": {"tags": ["a", "b"]}}, {"filter": {"tags": "a"}}),
        ({"filter": {"q": ""}}, {"filter": {}}),
        ({"q": ""}, {}),
    ],
)
def test_exact_values_of_a_call_are_no_alternatives_and_no_permission_to_leave_out(
    reference, arguments
):
    expected = {"name": "find", "arguments": reference}
    assert (
        score("tool_match", json.dumps({"name": "find", "arguments": reference}), expected).value
        == 1
    )
    assert (
        score("tool_match", json.dumps({"name": "find", "arguments": arguments}), expected).value
        < 1
    )


def test_a_field_that_the_reference_has_not_says_nothing():
    for answer in ('{"a": null}', '{"a": 3}'):
        assert (
            score("json_fields", answer, {"b": 1}, fields=["a"]).status
            is JudgementStatus.NOT_APPLICABLE
        )
    assert score("json_fields", '{"a": 1}', {}).value == 0, "nothing was asked for"
    assert score("json_fields", "{}", {}).value == 1
