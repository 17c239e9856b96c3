"""The training package of the five agents: every importable name, on decisions in every
shape of table and export."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from thumbwheel import compat
from thumbwheel.app.open import opener
from thumbwheel.capture.ingest import ingest
from thumbwheel.compat import ocd
from thumbwheel.core.errors import DataError, InputError

NAMES = [
    "DecisionRecord",
    "load_training_decisions",
    "get_training_stats",
    "format_prompt_for_agent",
    "get_system_prompt",
    "calculate_reward_from_record",
    "calculate_reward_from_components",
    "normalize_reward",
    "export_training_data",
]
FILER = {
    "status": "TODO",
    "swimlane": "PROJECT",
    "priority": "MEDIUM",
    "labels": ["Größe", "東京"],
    "confidence": 0.8,
}
DONE = {"completedSuccessfully": True, "cycleCount": 0, "totalTimeInCreate": 300}
COLD = {"abandoned": True, "cycleCount": 3, "blockedAt": "2026-01-06T08:00:00.000Z"}


def row(number: int, word: str | None = None, **columns: Any) -> dict[str, Any]:
    """A row of the table with the columns that are never null, and those that are given."""
    return {
        "id": f"d{number}",
        "agentType": "FILER",
        "state": {"item": {"title": f"Bank Nº {number}", "rawInstructions": "call 東京"}},
        "action": FILER,
        "userId": "ann",
        "userFeedback": word,
        "createdAt": f"2026-01-05T08:{number:02}:00.000Z",
    } | columns


ROWS = [
    row(
        1,
        "CONFIRMED",
        feedbackAt="2026-01-06T08:00:00Z",
        outcomeMetrics=DONE,
        confidence=0.8,
        isTrainingData=True,
    ),
    row(
        2,
        "CORRECTED",
        userCorrection={"swimlane": "HOME"},
        reward=-0.5,
        rewardComponents={"immediate": {"userFeedback": -0.5}},
    ),
    row(3),
    row(4, "OVERRIDDEN", userId=None, isTrainingData=False, isValidationData=True),
    row(5, "IGNORED"),
    row(6, reward=0.0),
    {
        "messages": [
            {
                "role": "user",
                "content": json.dumps({"item": {"title": "Zahnarzt"}}, ensure_ascii=False),
            },
            {"role": "assistant", "content": json.dumps(FILER, ensure_ascii=False)},
        ],
        "reward": 1.1,
        "metadata": {
            "decisionId": "d7",
            "agentType": "FILER",
            "rewardComputedAt": "2026-01-05T09:00:00.000Z",
        },
    },
    {
        "prompt": "Instructions: call the bank",
        "completion": '{"swimlane": "HOME"}',
        "reward": -3.0,
        "metadata": {
            "decisionId": "d8",
            "userFeedback": "CORRECTED",
            "createdAt": "2026-01-05T08:08:00.000Z",
        },
    },
    row(9, agentType="PRIORITIZER", action={"recommended_item_id": "i1"}),
]


@pytest.fixture
def decisions(tmp_path: Path) -> Path:
    path = tmp_path / "decisions.jsonl"
    lines = [
        json.dumps(line, ensure_ascii=False)
        for line in [*ROWS, row(1, "CORRECTED", feedbackAt="2026-01-05T09:00:00Z")]
    ]
    path.write_text("\n".join([*lines, '{"id": "d0"', ""]), encoding="utf-8")
    return path


def test_the_newest_decision_and_the_latest_word_are_told_by_time_whatever_the_zone(
    tmp_path: Path,
) -> None:
    rows = [
        row(
            1,
            "CONFIRMED",
            createdAt="2026-01-05T23:30:00-02:00",
            feedbackAt="2026-01-06T09:00:00+02:00",
        ),
        row(
            1,
            "OVERRIDDEN",
            createdAt="2026-01-05T23:30:00-02:00",
            feedbackAt="2026-01-06T08:00:00Z",
        ),
        row(2, createdAt="2026-01-06T01:00:00.000Z"),
        row(3, createdAt="2026-01-06 01:10:00"),
        row(4, createdAt=None),
    ]
    path = tmp_path / "zones.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in rows))
    decisions = ocd.load_training_decisions("FILER", require_reward=False, source=path)
    assert [decision.id for decision in decisions] == ["d1", "d3", "d2", "d4"]
    assert decisions[0].user_feedback == "OVERRIDDEN"


def test_an_exported_line_keeps_when_its_decision_was_judged(tmp_path: Path) -> None:
    path, exported = tmp_path / "rows.jsonl", tmp_path / "lines.jsonl"
    judged = row(
        1,
        "CONFIRMED",
        feedbackAt="2026-01-06T09:00:00Z",
        outcomeMetrics=DONE,
        outcomeObservedAt="2026-01-07T09:00:00Z",
    )
    path.write_text(json.dumps(judged))
    assert ocd.export_training_data("FILER", exported, source=path)["count"] == 1
    metadata = json.loads(exported.read_text())["metadata"]
    assert (metadata["feedbackAt"], metadata["outcomeObservedAt"]) == (
        judged["feedbackAt"],
        judged["outcomeObservedAt"],
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there(name: str) -> None:
    assert getattr(compat, name) is getattr(importlib.import_module("thumbwheel.compat.ocd"), name)
    assert name in ocd.__all__ and name in compat.__all__


def test_decisions_of_every_dialect_newest_first(
    decisions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = ocd.load_training_decisions(
        "FILER", require_reward=False, is_training_data=None, source=decisions
    )
    assert [decision.id for decision in records] == [
        "d8",
        "d6",
        "d5",
        "d4",
        "d3",
        "d2",
        "d1",
        "d7",
    ], "d7 has no time"
    first = records[-2]
    assert (first.user_feedback, first.action["labels"], first.confidence) == (
        "CONFIRMED",
        ["Größe", "東京"],
        0.8,
    )
    assert first.state and first.state["item"]["title"] == "Bank Nº 1"
    assert records[1].reward is None, "a 0.0 that nothing stands behind is no reward"
    assert "1 line is no decision" in capsys.readouterr().err
    rewarded = ocd.load_training_decisions("FILER", source=decisions)
    assert [decision.id for decision in rewarded] == ["d8", "d5", "d2", "d1", "d7"]
    wanted = ocd.load_training_decisions(
        "FILER", 1, min_reward=-2.0, require_feedback=True, source=decisions
    )
    assert [decision.id for decision in wanted] == ["d5"]
    assert [
        decision.id
        for decision in ocd.load_training_decisions("FILER", require_reward=False, source=decisions)
    ][-1] == "d7"
    assert (
        ocd.load_training_decisions(
            "FILER", require_reward=False, is_training_data=False, source=decisions
        )[0].id
        == "d4"
    )
    with pytest.raises(InputError, match="PRIORITISER"):
        ocd.load_training_decisions("PRIORITISER", source=decisions)


def test_statistics(decisions: Path) -> None:
    # stored: -0.5, 1.1, -3; by the word: ignored, overridden, confirmed and done
    rewards = [-0.5, 1.1, -3.0, -0.08, -0.88, 1.63]
    assert ocd.get_training_stats("FILER", source=decisions) == {
        "total_decisions": 8,
        "decisions_with_reward": 6,
        "decisions_with_feedback": 5,
        "avg_reward": pytest.approx(sum(rewards) / 6),
        "min_reward": -3.0,
        "max_reward": pytest.approx(1.63),
        "training_data_count": 7,
        "validation_data_count": 1,
    }
    assert ocd.get_training_stats("PRIORITIZER", source=decisions)["avg_reward"] is None
    assert ocd.get_training_stats("STORER", source=decisions)["total_decisions"] == 0


def test_the_address_is_read_from_the_environment(
    decisions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", str(decisions))
    assert ocd.get_training_stats("FILER")["total_decisions"] == 8
    monkeypatch.delenv("DATABASE_URL")
    with pytest.raises(InputError, match="DATABASE_URL"):
        ocd.get_training_stats("FILER")


@pytest.mark.parametrize(
    ("record", "reward", "normal"),
    [
        (row(1, "CONFIRMED", outcomeMetrics=DONE, confidence=0.8), 1.63, 0.9075),
        (row(1, "OVERRIDDEN", outcomeMetrics=COLD, confidence=0.9), -1.46, 0.135),
        (
            row(
                1,
                "CORRECTED",
                agentType="LIBRARIAN",
                action={"findings": []},
                outcomeMetrics={"missedIssue": True},
            ),
            -2.5,
            -0.125,
        ),
        (
            row(
                1,
                agentType="RETRIEVER",
                action={"generatedContent": "Ü"},
                outcomeMetrics={"hallucinationCount": 3},
            ),
            -5.0,
            -0.75,
        ),
        (row(1, "IGNORED", confidence=0.8), -0.08, 0.48),
        (row(1, "CONFIRMED", reward=0.25), 0.25, 0.5625),
        (
            row(
                1,
                "CONFIRMED",
                rewardComponents={"immediate": {"userFeedback": 1.0}, "delayed": {"made_up": 9}},
            ),
            1.0,
            0.75,
        ),
    ],
)
def test_their_golden_rewards(
    record: dict[str, Any], reward: float, normal: float, tmp_path: Path
) -> None:
    path = tmp_path / "decisions.jsonl"
    path.write_text(json.dumps(record, ensure_ascii=False) + "\n", encoding="utf-8")
    (decision,) = ocd.load_training_decisions(
        record["agentType"], require_reward=False, source=path
    )
    total = ocd.calculate_reward_from_record(decision)
    assert total == pytest.approx(reward) and total is not None
    assert ocd.normalize_reward(total) == pytest.approx(normal)


def test_rewards_of_components() -> None:
    assert (
        ocd.calculate_reward_from_components("LIBRARIAN", {"delayed": {"conflictPrevention": 9}})
        == 5.0
    )
    assert (
        ocd.calculate_reward_from_components(
            "FILER", {"immediate": {"userFeedback": -0.5, "confidenceCalibration": -0.2}}
        )
        == -0.52
    )
    with pytest.raises(InputError, match="GUARDRAIL"):
        ocd.calculate_reward_from_components("GUARDRAIL", {})


def test_nothing_known_is_no_reward(decisions: Path) -> None:
    (silent,) = (
        record
        for record in ocd.load_training_decisions("FILER", require_reward=False, source=decisions)
        if record.id == "d3"
    )
    assert ocd.calculate_reward_from_record(silent) is None, (
        "2.C 10: never a 0.0 for what nobody judged"
    )


def test_prompts_are_those_that_are_trained_on() -> None:
    state = {
        "item": {"title": "Bank", "rawInstructions": "anrufen: Größe"},
        "availableOpuses": [{"name": "Haus", "opusType": "PROJECT"}],
    }
    text = ocd.format_prompt_for_agent("FILER", state)
    assert text.startswith("Instructions: anrufen: Größe\nRouting Notes: None\nItem Title: Bank")
    assert text.endswith("- Haus (PROJECT)")
    assert "swimlane" in ocd.get_system_prompt("FILER") and ocd.get_system_prompt("GUARDRAIL") == ""
    assert json.loads(ocd.format_prompt_for_agent("GUARDRAIL", {"a": "ü"})) == {"a": "ü"}


def test_an_export_comes_in_again(
    decisions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "new" / "filer.jsonl"
    report = ocd.export_training_data("FILER", path, source=decisions)
    assert report == {
        "count": 5,
        "avg_reward": pytest.approx((1.63 - 0.5 - 0.08 + 1.1 - 3.0) / 5),
        "confirmed_count": 1,
        "corrected_count": 2,
    }
    assert "2 decisions are left out" in capsys.readouterr().err, (
        "d3 and d6; d4 is no training data"
    )
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    by_id = {line["metadata"]["decisionId"]: line for line in lines}
    assert by_id["d1"]["reward"] == pytest.approx(1.63) and json.loads(by_id["d1"]["completion"])[
        "labels"
    ] == ["Größe", "東京"]
    assert by_id["d2"]["metadata"]["userCorrection"] == {"swimlane": "HOME"}
    assert by_id["d8"]["prompt"] == "Instructions: call the bank"
    assert (
        ocd.export_training_data(
            "FILER", path, min_reward=-2.0, require_feedback=True, limit=2, source=decisions
        )["count"]
        == 2
    )
    ocd.export_training_data("FILER", path, source=decisions)
    with opener(tmp_path / "home", None, "warning")() as ws:
        imported = ingest(ws, "filer", "decisions", path)
    assert (imported.read, imported.stored, imported.refused) == (5, 5, 0)
    with pytest.raises(DataError, match="STORER"):
        ocd.export_training_data("STORER", path, source=decisions)
