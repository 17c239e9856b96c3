"""Rewards made of feedback: thumbs, ratings, scores, corrections and outcomes, and that what nobody
said is no number."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from thumbwheel.rewards.function import Case, JudgementStatus
from thumbwheel.rewards.functions import FUNCTIONS
from thumbwheel.rewards.types import Statement

START = datetime(2026, 1, 5, tzinfo=UTC)


def say(kind, value, *, rater="r1", weight=1.0, name=None, scale=None, days=0.0, id=None):
    return Statement(
        id or f"f-{kind}-{rater}-{days:g}",
        kind,
        name,
        value,
        scale,
        rater,
        weight,
        START + timedelta(days=days),
    )


def judge(name, *statements, text="an answer", settings=None, as_of=None, occurred_at=START):
    case = Case(text, feedback=statements, occurred_at=occurred_at, as_of=as_of)
    (result,) = FUNCTIONS.get(name).create(settings or {}).score([case])
    return result


@pytest.mark.parametrize("name", ["thumb", "rating", "score", "edit_distance", "outcome"])
def test_defect_2c10_no_signal_is_never_zero(name):
    result = judge(name)
    assert (result.value, result.status) == (None, JudgementStatus.NOT_APPLICABLE)
    muted = say(
        {"edit_distance": "correction"}.get(name, name),
        "x" if name == "edit_distance" else True,
        weight=0.0,
        name="n",
    )
    assert judge(name, muted).value is None


def test_thumbs_are_the_weighted_part_of_raters_whose_newest_is_up():
    result = judge(
        "thumb",
        say("thumb", False, days=0),
        say("thumb", True, days=1),
        say("thumb", False, rater="r2", weight=3.0),
    )
    assert result.value == 0.25
    assert result.evidence == {"raters": 2, "feedback_ids": ["f-thumb-r1-1", "f-thumb-r2-0"]}
    torn = judge("thumb", say("thumb", True, id="a"), say("thumb", False, id="b"))
    assert (torn.value, torn.evidence["reason"]) == (None, "each rater gives both thumbs at once")


def test_a_rating_is_its_place_on_its_own_scale():
    assert judge("rating", say("rating", 4)).value == 0.75
    assert judge("rating", say("rating", 4, scale={"min": 0, "max": 10})).value == 0.4
    both = judge("rating", say("rating", 5), say("rating", 1, rater="r2"))
    assert (both.value, both.evidence["rating"], both.evidence["scale"]) == (0.5, 3.0, [1.0, 5.0])
    assert judge("rating", say("score", 0.5)).value is None
    assert judge("score", say("score", 0.5), say("rating", 5)).value == 0.5


def test_edit_distance_is_what_the_correction_kept():
    assert judge("edit_distance", say("correction", "an answer")).value == 1.0
    changed = judge("edit_distance", say("correction", "an Answer!"))
    assert changed.value == pytest.approx(1 - 2 / 10)
    assert changed.evidence["changes"] == 2
    words = judge(
        "edit_distance", say("correction", "one two"), text="one three", settings={"unit": "words"}
    )
    assert words.value == 0.5
    torn = judge("edit_distance", say("correction", "x"), say("correction", "y", rater="r2"))
    assert torn.status is JudgementStatus.NOT_APPLICABLE
    assert "without a plurality" in torn.evidence["reason"]
    assert judge("edit_distance", say("correction", "x" * 200_001)).status is JudgementStatus.FAILED


def test_an_outcome_counts_inside_its_window_and_says_less_the_later_it_comes():
    settings = {"window_days": 10, "discount": 0.9}
    assert judge(
        "outcome", say("outcome", True, name="solved", days=2), settings=settings
    ).value == pytest.approx(0.905)
    assert judge(
        "outcome", say("outcome", False, name="solved", days=2), settings=settings
    ).value == pytest.approx(0.095)
    assert (
        judge(
            "outcome", say("outcome", 0.5, name="share", days=10), settings={"window_days": 10}
        ).value
        == 0.5
    )
    late = judge(
        "outcome",
        say("outcome", True, name="solved", days=10.5),
        settings=settings,
        as_of=START + timedelta(days=11),
    )
    assert (late.value, late.status) == (None, JudgementStatus.NOT_APPLICABLE)
    before = judge("outcome", say("outcome", True, name="solved", days=-1), settings=settings)
    assert before.value is None
    assert judge("outcome", say("outcome", True, name="Escalated")).value == 0.0
    assert judge("outcome", say("outcome", True, name="x"), settings={"names": ["y"]}).value is None


def test_an_outcome_is_awaited_while_its_window_is_open_and_never_assumed():
    for day, status in (
        (1, JudgementStatus.PENDING),
        (29.9, JudgementStatus.PENDING),
        (30, JudgementStatus.NOT_APPLICABLE),
    ):
        result = judge("outcome", as_of=START + timedelta(days=day))
        assert (result.value, result.status) == (None, status)
    unknown = judge(
        "outcome", say("outcome", True, name="solved", days=400), occurred_at=None, as_of=START
    )
    assert unknown.value == 1.0
    assert "nobody knows" in unknown.evidence["window"]


def test_an_outcome_reads_only_whether_its_window_is_open():
    function = FUNCTIONS.get("outcome").create({})
    first, second, closed = (
        function.inputs(Case("a", occurred_at=START, as_of=START + timedelta(days=day)))
        for day in (1, 2, 31)
    )
    assert first == second != closed


def test_feedback_of_another_kind_changes_nothing():
    for name, kind in (
        ("thumb", "thumb"),
        ("rating", "rating"),
        ("score", "score"),
        ("edit_distance", "correction"),
    ):
        function = FUNCTIONS.get(name).create({})
        of_its_kind = say(kind, "text" if kind == "correction" else True if kind == "thumb" else 1)
        alone, beside = (
            Case("a", feedback=(of_its_kind,)),
            Case("a", feedback=(of_its_kind, say("label", "x", name="y"))),
        )
        assert function.inputs(alone) == function.inputs(beside) != function.inputs(Case("a"))


@pytest.mark.parametrize(
    ("words", "value"), [(0, 0.0), (1, 0.5), (2, 1.0), (4, 1.0), (6, 0.5), (8, 0.0), (99, 0.0)]
)
def test_length_rises_to_least_and_falls_from_most(words, value):
    result = judge("length", text="w " * words, settings={"least": 2, "most": 4})
    assert result.value == value
    assert result.evidence["length"] == words
