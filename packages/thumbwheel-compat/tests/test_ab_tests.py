"""The A/B tests of the replaced systems: the answer of the five agents, and two Ollama names."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from thumbwheel.compat.command_center import OllamaABTest
from thumbwheel.compat.ocd import get_ab_test
from thumbwheel.core.errors import InputError


def decision(number: int, version: str | None, feedback: str | None, reward: Any) -> dict[str, Any]:
    return {
        "id": f"d{number}",
        "agentType": "FILER",
        "state": {"item": {"title": f"Task {number}", "instructions": "Do it"}},
        "action": {"swimlane": "PROJECT", "confidence": 0.5},
        "reward": reward,
        "userFeedback": feedback,
        "modelVersion": version,
        "createdAt": "2026-01-05T08:30:00Z",
    }


def source_of(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "decisions.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def test_the_answer_has_the_keys_of_the_original_and_zero_is_a_value(tmp_path: Path) -> None:
    rows = [
        decision(1, "v1", "CONFIRMED", 0.0),
        decision(2, "v1", "OVERRIDDEN", None),
        decision(3, "v2", "CONFIRMED", 1.0),
        decision(4, None, None, None),
        decision(5, "v1", "IGNORED", None),
    ]
    registry = [{"version": "v1", "weight": 3, "description": "today"}, {"version": "v2"}]
    answer = get_ab_test("FILER", registry, source=source_of(tmp_path, rows))
    assert answer["agentType"] == "FILER" and answer["abTestingEnabled"] is True
    assert answer["totalDecisions"] == 5
    first, second, unnamed = answer["versions"]
    assert (first["version"], first["weight"], first["description"]) == ("v1", 3, "today")
    # an overridden decision was not accepted, and an ignored one says nothing
    assert first["stats"]["acceptanceRate"] == 0.5
    assert first["stats"]["feedbackBreakdown"] == {"CONFIRMED": 1, "OVERRIDDEN": 1, "IGNORED": 1}
    assert first["stats"]["decisionsWithFeedback"] == 3
    assert first["stats"]["avgConfidence"] == 0.5
    assert second["stats"]["decisionsWithReward"] == 1
    assert unnamed["version"] == "unknown" and unnamed["stats"]["avgReward"] is None
    assert answer["comparison"]["mostDecisions"] == "v1"
    assert answer["comparison"]["bestReward"] == "v2"
    assert answer["comparison"]["decided"] is None  # two decisions decide nothing


def test_a_better_version_is_named_once_that_is_known(tmp_path: Path) -> None:
    draw = random.Random(3)
    rows = []
    for number in range(600):
        version = "v2" if number % 2 else "v1"
        reward = float(draw.random() < (0.75 if version == "v2" else 0.35))
        rows.append(decision(number, version, "CONFIRMED" if reward else "CORRECTED", reward))
    answer = get_ab_test("FILER", source=source_of(tmp_path, rows))
    assert answer["abTestingEnabled"] is False
    assert answer["comparison"]["decided"] == "v2"


def test_two_ollama_names_each_user_keeps_one() -> None:
    test = OllamaABTest("command-center", "command-center-dpo", share=0.2)
    users = [f"user-{number}" for number in range(1000)]
    models = [test.model_for(user) for user in users]
    assert models == [test.model_for(user) for user in users]
    assert 150 < models.count("command-center-dpo") < 250
    for user, model in zip(users, models, strict=True):
        test.record_metric(user, "liked", float(model == "command-center-dpo"))
    liked = test.metrics()["liked"]
    assert liked["command-center"]["mean"] == 0.0
    assert liked["command-center-dpo"]["gain"] == pytest.approx(1.0)
    with pytest.raises(InputError, match="have to be two"):
        OllamaABTest("same", "same")
