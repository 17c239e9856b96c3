"""The reward presets of the systems: their golden vectors, in their own arithmetic."""

from __future__ import annotations

from pathlib import Path

import pytest

from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation.suite_context import _reward_scorer
from thumbwheel.models.versions import ensure_agent
from thumbwheel.rewards.combine import RewardConfig
from thumbwheel.rewards.function import Case, JudgementStatus, Score
from thumbwheel.rewards.functions import FUNCTIONS
from thumbwheel.rewards.presets import PRESETS

AWAY = Score.none(JudgementStatus.NOT_APPLICABLE, "nothing of the kind")
PLAIN_CHAT = dict.fromkeys(PRESETS.get("isaa").components, AWAY) | {"format_compliance": Score(1.0)}


def test_golden_vector_plain_chat_in_the_arithmetic_of_isaa():
    reward = RewardConfig(preset="isaa").combine(PLAIN_CHAT)
    assert reward == pytest.approx(4.75 / 8)
    assert round(reward, 3) == 0.594


def test_defect_0c7_a_faultless_plain_answer_is_good():
    config = RewardConfig(preset="isaa", arithmetic="applicable")
    assert config.combine(PLAIN_CHAT) == 1.0 >= config.good_from
    assert RewardConfig(preset="isaa").combine(PLAIN_CHAT) < config.good_from


def test_a_failure_is_zero_only_in_the_arithmetic_of_isaa():
    failed = {
        "format_compliance": Score(1.0),
        "syntax": Score.none(JudgementStatus.FAILED, "raised"),
    }
    assert RewardConfig(preset="isaa").combine(failed) == 0.5
    assert RewardConfig(preset="isaa", arithmetic="applicable").combine(failed) == 1.0


def test_golden_vector_of_ocd_is_the_decision_in_its_old_arithmetic():
    part = RewardConfig(preset="ocd").parts()["decision"]
    function = FUNCTIONS.get("decision").create(part.settings)
    item = {
        "status": "DONE",
        "cycleCount": 0,
        "totalTimeInCreate": 300,
        "swimlane": "PROJECT",
        "priority": "MEDIUM",
    }
    case = Case(
        "{}",
        metadata={
            "decision": {
                "agent_type": "FILER",
                "confidence": 0.8,
                "item": item,
                "feedback": "CONFIRMED",
            }
        },
    )
    assert RewardConfig(preset="ocd").combine(
        {"decision": function.score([case])[0]}
    ) == pytest.approx(0.9075)


def test_the_tools_of_isaa_keep_its_arithmetic_too():
    part = RewardConfig(preset="isaa").parts()["tool_success"]
    function = FUNCTIONS.get("tool_success").create(part.settings)
    asked = [{"role": "user", "content": "Please search for it."}]
    assert [
        score.value for score in function.score([Case("Hello.", prompt=asked), Case("Hello.")])
    ] == [0.3, 0.5]


def test_fresh_answers_have_a_mean_reward_where_the_preset_is_made_of_feedback_alone(
    tmp_path: Path,
) -> None:
    """Nobody said anything about a fresh answer: its case judges it."""
    settings = {"rewards": {"agents": {"filer": {"preset": "ocd"}}}}
    with Workspace.open(Home(tmp_path / "home"), Sources(settings, "test.yaml", {})) as ws:
        ensure_agent(ws, "filer")
        score = _reward_scorer(ws, "filer", frozenset())
        case = {"checker": "json_fields"}
        answers = [
            Case('{"swimlane": "HOME"}', {"swimlane": "HOME"}, metadata=case),
            Case('{"swimlane": "HABIT"}', {"swimlane": "HOME"}, metadata=case),
        ]
        assert [result.value for result in score(answers)[""]] == [1.0, 0.0]
