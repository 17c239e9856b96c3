"""Rewards of decisions: the golden vectors, one bound for cutting off and for the place between,
and every defect of the original."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from thumbwheel.compat.ocd.decision_function import PARTS
from thumbwheel.core.errors import ConfigError
from thumbwheel.rewards.function import Case, JudgementStatus
from thumbwheel.rewards.functions import FUNCTIONS
from thumbwheel.rewards.types import Statement

AT = datetime(2026, 1, 5, tzinfo=UTC)


def statement(value, name="user_feedback", kind="label", rater="r1", weight=1.0):
    return Statement(f"f-{name}-{rater}", kind, name, value, None, rater, weight, AT)


def judge(agent, word=None, *more, text="{}", compatible=False, **decision):
    statements = (*([statement(word)] if word else []), *more)
    case = Case(text, metadata={"decision": {"agent_type": agent, **decision}}, feedback=statements)
    (result,) = FUNCTIONS.get("decision").create({"compatible": compatible}).score([case])
    return result


GOLDEN = [
    (
        "FILER",
        "CONFIRMED",
        {
            "confidence": 0.8,
            "item": {
                "status": "DONE",
                "cycleCount": 0,
                "totalTimeInCreate": 300,
                "swimlane": "PROJECT",
                "priority": "MEDIUM",
            },
        },
        1.63,
        0.9075,
    ),
    (
        "FILER",
        "OVERRIDDEN",
        {
            "confidence": 0.9,
            "item": {
                "status": "COLD_STORAGE",
                "cycleCount": 3,
                "blockedAt": "2026-01-05T08:00:00Z",
            },
        },
        -1.46,
        0.135,
    ),
    ("LIBRARIAN", "CORRECTED", {"outcome": {"missedIssue": True}}, -2.5, -0.125),
    ("RETRIEVER", None, {"outcome": {"hallucinationCount": 3}}, -6.0, -0.75),
]


@pytest.mark.parametrize(("agent", "word", "decision", "total", "normalised"), GOLDEN)
def test_golden_vectors_of_the_original_arithmetic(agent, word, decision, total, normalised):
    result = judge(agent, word, compatible=True, **decision)
    assert result.evidence["total"] == pytest.approx(total)
    assert result.value == pytest.approx(normalised)
    assert result.evidence["bound"] == 5.0


@pytest.mark.parametrize(("agent", "word", "decision", "total", "normalised"), GOLDEN)
def test_defect_2c7_the_bound_that_cuts_off_is_the_bound_that_normalises(
    agent, word, decision, total, normalised
):
    result = judge(agent, word, **decision)
    assert result.evidence["total"] == pytest.approx(total)
    assert result.value == pytest.approx((max(-5.0, min(5.0, total)) + 5) / 10)
    for bound in (0.5, 2.0, 5.0):
        function = FUNCTIONS.get("decision").create({"bound": bound})
        case = Case(
            "{}",
            metadata={"decision": {"agent_type": agent, **decision}},
            feedback=(statement(word),) if word else (),
        )
        assert 0 <= function.score([case])[0].value <= 1


@pytest.mark.parametrize("agent", sorted(PARTS))
@pytest.mark.parametrize("compatible", [False, True])
def test_defect_2c10_a_decision_without_any_signal_waits(agent, compatible):
    result = judge(
        agent, compatible=compatible, confidence=0.9, item={"status": "TODO", "cycleCount": 2}
    )
    assert (result.value, result.status) == (None, JudgementStatus.PENDING)
    assert "components" not in result.evidence


def test_what_is_no_decision_and_a_guardrail_do_not_apply():
    assert judge("GUARDRAIL", "CONFIRMED").status is JudgementStatus.NOT_APPLICABLE
    (plain,) = FUNCTIONS.get("decision").create({}).score([Case("hello")])
    assert (plain.value, plain.evidence["reason"]) == (None, "it is no decision")


def test_defect_2c11_a_retriever_without_an_item_gets_its_reward_from_feedback():
    assert judge("RETRIEVER", "CONFIRMED").value == pytest.approx(0.6)
    decision = {
        "text": '{"generatedContent": "12345678"}',
        "correction": {"generatedContent": "123456"},
    }
    corrected, old = (
        judge("RETRIEVER", "CORRECTED", compatible=compatible, **decision)
        for compatible in (False, True)
    )
    assert corrected.evidence["total"] == pytest.approx(-1 - 0.5 * 0.25)
    assert old.evidence["total"] == pytest.approx(-1 - 0.5 * 0.1 * 0.25)


def test_defect_2c12_slow_work_of_a_prioritizer_is_not_good_and_coefficients_count_once():
    slow = {
        "item": {"status": "DONE"},
        "outcome": {"timeEfficiency": 0.25, "strategicProgress": 1.0, "opportunityCost": 0.5},
    }
    result, old = (
        judge("PRIORITIZER", "CONFIRMED", **slow),
        judge("PRIORITIZER", "CONFIRMED", compatible=True, **slow),
    )
    parts, olds = result.evidence["components"], old.evidence["components"]
    assert (parts["delayed.timeEfficiency"]["value"], olds["delayed.timeEfficiency"]["value"]) == (
        -0.5,
        0.5,
    )
    assert parts["delayed.strategicProgress"] == {"value": 1.0, "weight": 0.8}
    assert olds["delayed.strategicProgress"] == {"value": 0.3, "weight": 0.8}
    assert result.evidence["total"] == pytest.approx(1 + 1 - 0.5 * 0.5 + 0.8 - 0.5 * 0.3)
    assert old.evidence["total"] == pytest.approx(1 + 1 + 0.5 * 0.5 + 0.8 * 0.3 - 0.2 * 0.5 * 0.3)


def test_ignored_was_said_and_nothing_was_not():
    ignored = judge("LIBRARIAN", "IGNORED")
    assert (ignored.status, ignored.evidence["total"], ignored.value) == (
        JudgementStatus.OK,
        0.0,
        0.5,
    )
    assert judge("LIBRARIAN").value is None


def test_a_storers_correction_counts_the_fields_that_it_changed():
    action = json.dumps({"integrationDecision": "INTEGRATE", "location": "end", "confidence": 0.7})
    result = judge(
        "STORER",
        "CORRECTED",
        text=action,
        correction={"location": "start"},
        outcome={"corpusCoherence": 0.5},
    )
    assert result.evidence["components"]["immediate.editDistance"]["value"] == -0.5
    assert result.evidence["total"] == pytest.approx(-0.5 - 0.25 + 0.35)


def test_a_correction_that_came_as_feedback_counts_and_so_does_a_number_in_a_label():
    action = json.dumps({"integrationDecision": "INTEGRATE", "location": "end", "confidence": 0.7})
    correction = statement(action.replace("end", "start"), None, "correction")
    result = judge(
        "STORER",
        "CORRECTED",
        correction,
        statement("0.5", "corpusCoherence"),
        statement("0", "duplicationDetected"),
        text=action,
    )
    parts = {name: part["value"] for name, part in result.evidence["components"].items()}
    assert (
        parts["immediate.editDistance"],
        parts["delayed.corpusCoherence"],
        parts["delayed.duplicationPenalty"],
    ) == (-0.5, 0.5, 0.0)


def test_late_outcomes_come_as_feedback_in_either_spelling():
    early = judge("LIBRARIAN", "CONFIRMED")
    late = judge("LIBRARIAN", "CONFIRMED", statement(True, "conflict_prevented", "outcome"))
    assert late.evidence["total"] - early.evidence["total"] == pytest.approx(2.0)
    done = judge("FILER", None, statement("DONE", "status"), item={"status": "TODO"})
    assert done.evidence["components"]["delayed.completionSuccess"]["value"] == 1.0
    assert "f-status-r1" in done.evidence["feedback_ids"]


def test_a_thumb_counts_where_nobody_gave_a_word():
    up, down = (statement(value, None, "thumb", "r9") for value in (True, False))
    assert (
        judge("FILER", None, up, confidence=0.8).value
        == judge("FILER", "CONFIRMED", confidence=0.8).value
    )
    assert judge("FILER", None, down).value == judge("FILER", "OVERRIDDEN").value
    correction = {"text": '{"swimlane": "HOME"}', "correction": {"swimlane": "PROJECT"}}
    assert (
        judge("FILER", None, down, **correction).value
        == judge("FILER", "CORRECTED", **correction).value
    )
    assert judge("FILER", "IGNORED", down).evidence["total"] == 0.0, (
        "the word of a person says more than a thumb"
    )
    assert judge("FILER", None, down, feedback="CONFIRMED").evidence["total"] == 1.0


def test_several_people_are_heard_by_their_weight():
    result = judge(
        "LIBRARIAN", None, statement("CONFIRMED", weight=3.0), statement("OVERRIDDEN", rater="r2")
    )
    assert result.evidence["total"] == pytest.approx((3 * 1.0 - 0.8) / 4)


def test_a_goal_counts_only_where_it_is_known():
    kwargs = {
        "text": '{"labels": ["Job 1 (Income)"]}',
        "outcome": {"leadingGoal": "Job 1 (Income)"},
    }
    assert judge("FILER", "CONFIRMED", **kwargs).evidence["total"] == pytest.approx(1.2)
    assert (
        "strategic.goalAlignment"
        not in judge("FILER", "CONFIRMED", text=kwargs["text"]).evidence["components"]
    )


def test_a_weight_of_what_no_agent_has_is_refused():
    weights = {"weights": {"FILER": {"immediate.userFeedbak": 1.0}}}
    with pytest.raises(ConfigError, match=r"Did you mean 'immediate\.userFeedback'"):
        FUNCTIONS.get("decision").create(weights)
    with pytest.raises(ConfigError, match="no rewards for 'CLERK'"):
        FUNCTIONS.get("decision").create({"weights": {"CLERK": {}}})
    with pytest.raises(ConfigError, match="greater than or equal to 0"):
        FUNCTIONS.get("decision").create({"weights": {"FILER": {"immediate.userFeedback": -1.0}}})
    function = FUNCTIONS.get("decision").create(
        {"weights": {"LIBRARIAN": {"immediate.userFeedback": 0.5}}}
    )
    case = Case(
        "{}",
        metadata={
            "decision": {
                "agent_type": "LIBRARIAN",
                "feedback": "CONFIRMED",
                "outcome": {"missedIssue": False},
            }
        },
    )
    assert function.score([case])[0].evidence["total"] == 0.5


def test_the_declared_range_holds_the_ends_of_the_old_arithmetic():
    function = FUNCTIONS.get("decision")
    assert (function.low, function.high) == (-0.75, 1.75)
    assert (
        judge("RETRIEVER", None, compatible=True, outcome={"hallucinationCount": 99}).value
        == function.low
    )
