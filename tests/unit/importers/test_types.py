"""Records refuse what cannot be, with the reason, and read tolerantly what can."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from thumbwheel.importers.types import (
    CaseRecord,
    FeedbackRecord,
    StepRecord,
    TargetRef,
    TraceRecord,
    Unreadable,
    explain,
    parse_time,
)

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-05T12:00:00Z",
        "2026-01-05 12:00:00",
        "2026-01-05 12:00:00.000000",
        "2026-01-05T13:00:00+01:00",
        " 2026-01-05T12:00 ",
        NOON.replace(tzinfo=None),
    ],
)
def test_times_are_read_tolerantly(text: Any) -> None:
    assert parse_time(text) == NOON
    assert parse_time(text).utcoffset() == timedelta(0)


@given(st.datetimes(datetime(1970, 1, 2), datetime(2100, 12, 30)), st.integers(-23, 23))
def test_any_written_time_is_read_back(time: datetime, hours: int) -> None:
    aware = time.replace(tzinfo=timezone(timedelta(hours=hours)))
    if 1970 <= aware.astimezone(UTC).year <= 2100:
        assert parse_time(aware.isoformat()) == aware
        assert parse_time(str(aware)) == aware


@pytest.mark.parametrize(
    "text",
    [
        "2026-13-01",
        "2026-02-30T00:00:00Z",
        "yesterday",
        "",
        "0001-01-01T00:00:00Z",
        "9999-12-31T23:59:59-12:00",
        1700000000,
        None,
        True,
    ],
)
def test_impossible_times_are_refused(text: Any) -> None:
    with pytest.raises(Unreadable, match="time"):
        parse_time(text)


def feedback(kind: str, value: Any, count: int = 1, **more: Any) -> FeedbackRecord:
    targets = [TargetRef(kind="trace", id=f"t{i}") for i in range(count)]
    return FeedbackRecord(**{"kind": kind, "value": value, "targets": targets, **more})


def reason(kind: str, value: Any, count: int = 1, **more: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        feedback(kind, value, count, **more)
    return explain(caught.value)


@pytest.mark.parametrize(
    ("kind", "value", "more"),
    [
        ("thumb", True, {}),
        ("rating", 1, {}),
        ("rating", 4.5, {}),
        ("rating", 10, {"scale": {"min": 0, "max": 10}}),
        ("score", 0, {}),
        ("correction", "better", {}),
        ("label", True, {"name": "spam"}),
        ("label", "spam", {"name": "class"}),
        ("outcome", 1.0, {"name": "resolved"}),
        ("outcome", False, {"name": "resolved"}),
        ("comment", "nice", {}),
    ],
)
def test_possible_feedback(kind: str, value: Any, more: dict[str, Any]) -> None:
    assert feedback(kind, value, **more).value == value


@pytest.mark.parametrize(
    ("kind", "value", "more", "why"),
    [
        ("thumb", 1, {}, "neither true"),
        ("thumb", None, {}, "neither true"),
        ("rating", 6, {}, "outside its scale, 1 to 5"),
        ("rating", 0, {}, "outside"),
        ("rating", float("nan"), {}, "outside|finite"),
        ("rating", 10**400, {}, "outside"),
        ("rating", True, {}, "no number"),
        ("rating", "4", {}, "no number"),
        ("rating", 4, {"scale": {"min": 5, "max": 5}}, "no width"),
        ("score", float("inf"), {}, "outside|finite"),
        ("score", 1.01, {}, "outside"),
        ("score", -0.01, {}, "outside"),
        ("correction", "  ", {}, "no text"),
        ("correction", None, {}, "no text"),
        ("label", True, {}, "has a name"),
        ("label", 3, {"name": "x"}, "true, false or a text"),
        ("outcome", 1.0, {}, "has a name"),
        ("outcome", 2, {"name": "x"}, "outside"),
        ("comment", "", {}, "no text"),
        ("thumb", True, {"supersedes": "a", "retracts": "b"}, "both"),
        ("thumb", True, {"occurred_at": "2026-99-01"}, "no possible time"),
        ("thumb", True, {"rater": {"id": " "}}, "rater.id"),
        ("thumb", True, {"rater": {"id": "a", "weight": -1.0}}, "rater.weight"),
        ("thumb", True, {"id": ""}, "id"),
        ("thumbs", True, {}, "kind"),
    ],
)
def test_impossible_feedback_is_refused_with_the_reason(
    kind: str, value: Any, more: dict[str, Any], why: str
) -> None:
    assert re.search(why, reason(kind, value, **more))


@given(st.permutations(range(4)), st.lists(st.booleans(), min_size=3, max_size=3))
def test_every_ranking_of_all_targets_is_a_preference(order: list[int], joins: list[bool]) -> None:
    ranking = [[order[0]]]
    for position, join in zip(order[1:], joins, strict=True):
        if join:
            ranking[-1].append(position)
        else:
            ranking.append([position])
    assert feedback("preference", {"ranking": ranking}, 4).value == {"ranking": ranking}


@pytest.mark.parametrize(
    "ranking",
    [
        [],
        [[0]],
        [[0], [0]],
        [[0], [2]],
        [[0, 1], []],
        [[False], [True]],
        "x",
        [0, 1],
        [[0], [1], [2]],
    ],
)
def test_other_rankings_are_refused(ranking: Any) -> None:
    assert "ranking" in reason("preference", {"ranking": ranking}, 2)


def test_targets_are_counted() -> None:
    assert "two or more" in reason("preference", {"ranking": [[0]]}, 1)
    assert "one target; it has 2" in reason("thumb", True, 2)
    assert "one target; it has 0" in reason("thumb", True, 0)
    twice = [TargetRef(kind="trace", id="t"), TargetRef(kind="trace", id="t")]
    assert "named twice" in reason("preference", {"ranking": [[0], [1]]}, 2, targets=twice)
    assert "whole session" in reason("correction", "x", targets=[TargetRef(kind="session", id="s")])
    assert feedback("comment", "", 0, retracts="f1").targets == []


def test_a_retraction_needs_no_target_and_no_text() -> None:
    assert feedback("comment", "", 0, retracts="f1").retracts == "f1"


@pytest.mark.parametrize(
    ("input", "why"),
    [
        ([], "neither a text"),
        (3, "neither a text"),
        ([{"role": "usr", "content": "x"}], "Did you mean 'user'"),
        ([{"content": "x"}], "no chat message"),
        ([{"role": "user"}], "neither content"),
        (["x"], "no chat message"),
    ],
)
def test_inputs_that_are_no_chat_are_refused(input: Any, why: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TraceRecord(input=input)
    assert why in explain(caught.value)


def test_a_text_is_the_users_message_and_whole_numbers_are_ids() -> None:
    record = TraceRecord(input="hi", id=7)
    assert record.input == [{"role": "user", "content": "hi"}]
    assert record.id == "7"
    assert [step.kind for step in record.steps] == ["llm"]


def test_steps_are_coherent() -> None:
    for values, why in (
        ({"token_ids": [1, 2], "token_logprobs": [-0.1]}, "1 token_logprobs for 2"),
        ({"token_ids": [1], "token_logprobs": [0.5]}, "less than or equal to 0"),
        ({"token_ids": [2**40]}, "token_ids.0"),
        (
            {"started_at": "2026-01-05T12:00:00Z", "ended_at": "2026-01-05T11:00:00Z"},
            "before it starts",
        ),
        ({"kind": "thought"}, "kind"),
        ({"sampling": {"t": 1}, "temperature": 1}, "'temperature' is unknown"),
    ):
        with pytest.raises(ValidationError) as caught:
            StepRecord.model_validate(values)
        assert why in explain(caught.value)


def test_unknown_keys_name_the_nearest_known_one() -> None:
    for values, hint in (
        ({"input": "x", "steps": [{"kid": "llm"}]}, "'kind'"),
        ({"input": "x", "steps": [{"tokens": {"promt": 1}}]}, "'prompt'"),
    ):
        with pytest.raises(ValidationError) as caught:
            TraceRecord.model_validate(values)
        assert f"Did you mean {hint}" in explain(caught.value)


def test_a_case_needs_something_to_judge_by() -> None:
    with pytest.raises(ValidationError, match="neither"):
        CaseRecord(input="x")
    assert CaseRecord(input="x", checker="json_fields").reference is None


def test_identity_is_the_content() -> None:
    record, same, named = (
        TraceRecord(input="hi"),
        TraceRecord(input=[{"content": "hi", "role": "user"}]),
        TraceRecord(input="hi", id="x", source="y"),
    )
    assert record.name_and_fingerprint() == same.name_and_fingerprint()
    assert named.name_and_fingerprint() == ("x", record.name_and_fingerprint()[1])
    assert (
        TraceRecord(input="hi", output="").name_and_fingerprint() != record.name_and_fingerprint()
    )
    with pytest.raises(Unreadable, match="NaN"):
        TraceRecord(input="hi", metadata={"deep": [float("inf")]}).name_and_fingerprint()


def test_the_hash_of_a_record_stays_what_it_was() -> None:
    record = TraceRecord(
        input="hi", output="ho", occurred_at="2026-01-05 12:00:00", metadata={"ü": 1}
    )
    content = (
        '{"input":[{"content":"hi","role":"user"}],"metadata":{"ü":1},"occurred_at":"2026-01-05T12:00:00Z",'
        '"output":"ho","status":"ok","steps":[{"kind":"llm","status":"ok"}]}'
    )
    digest = hashlib.sha256(content.encode()).hexdigest()
    assert record.name_and_fingerprint() == (f"sha256:{digest[:40]}", digest)
