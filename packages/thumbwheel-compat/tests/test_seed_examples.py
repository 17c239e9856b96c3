"""The examples by which the replaced systems explain their learners and A/B tests, as their users
have them in scripts, each with nothing changed but the import."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from thumbwheel.compat.command_center import (
    OllamaABTest,
    get_online_learner,
    init_online_learner,
    learner,
)
from thumbwheel.compat.rlhf_plan import ABTestingFramework, ContinuousLearner


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The scripts' own, in a process that has no learner yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(learner, "_learners", [])
    return tmp_path


def test_the_status_of_a_learner_that_nobody_has_configured() -> None:
    online_learner = get_online_learner()
    status = online_learner.get_status()
    assert (status["buffer_size"], status["min_samples"]) == (0, 100)
    assert status["should_retrain"] is False
    assert get_online_learner() is online_learner


def test_a_rating_for_the_learner_and_training_by_hand(folder: Path) -> None:
    online_learner = init_online_learner(min_samples=100)
    rating = {
        "entry_id": "abc123",
        "rating": "up",
        "tags": ["good"],
        "notes": "Perfect widget choice",
    }
    assert online_learner.add_feedback(rating) is False
    assert online_learner.get_status()["buffer_size"] == 1
    assert not online_learner.should_retrain()
    # nothing says what the rating is about, so a run by hand fails, and the rating stays
    assert online_learner.trigger_retrain()
    online_learner.wait(60)
    assert online_learner.last_result is not None and not online_learner.last_result.success
    assert get_online_learner().get_status()["buffer_size"] == 1
    (line,) = (folder / "rl_checkpoints" / "feedback_buffer.jsonl").read_text().splitlines()
    assert json.loads(line)["notes"] == rating["notes"]


def test_two_models_of_ollama() -> None:
    test = OllamaABTest("llama3.1:8b", "cc-widget-selector")
    for number in range(40):
        user = f"user{number}"
        test.record_metric(user, "liked", test.model_for(user) == "cc-widget-selector")
    liked = test.metrics()["liked"]
    assert liked["llama3.1:8b"]["mean"] == 0.0 and liked["cc-widget-selector"]["mean"] == 1.0


def test_interactions_of_a_continuous_learner() -> None:
    continuous = ContinuousLearner(buffer_size=1000, train_threshold=100)

    async def interact() -> None:
        for number in range(5):
            feedback = {"feedback_type": "rating", "rating": 5}
            await continuous.add_interaction(f"Question {number}?", "Answer.", feedback)

    asyncio.run(interact())
    assert len(continuous.feedback_buffer) == 5 and not continuous.learning_active


def test_variants_of_an_assistant() -> None:
    framework = ABTestingFramework(create_assistant=lambda model_id: f"{model_id}: {{}}".format)
    variant = framework.assign_variant("user_1")
    assert variant in ("control", "variant_a")
    model = framework.variants[variant]["model"]
    assert asyncio.run(framework.run_query("user_1", "Hello")) == f"{model}: Hello"
    framework.record_metric(variant, "rating", 5)
    assert framework.analyze_results()["rating"][variant]["mean"] == 5.0


class AgenticAssistant:
    """An assistant that remembers what it was told."""

    def __init__(self, user_name: str, model_id: str) -> None:
        self.user_name, self.model_id = user_name, model_id
        self.messages: list[str] = []

    def chat(self, message: str) -> str:
        self.messages.append(message)
        return f"{self.user_name} by {self.model_id}: {', '.join(self.messages)}"


def create_agentic_assistant(
    user_name: str, model_id: str | None = None, use_case: str = "agentic", **kwargs: object
) -> AgenticAssistant:
    return AgenticAssistant(user_name, str(model_id))


def test_their_assistants_are_one_for_each_user() -> None:
    variants = {"control": {"model": "qwq-32b", "config": {"use_case": "coding"}}}
    framework = ABTestingFramework(variants, create_agentic_assistant)
    answers = [
        asyncio.run(framework.run_query(user, query))
        for user, query in (("ann", "Hello"), ("bob", "Hi"), ("ann", "Again"))
    ]
    assert answers == [
        "ann by qwq-32b: Hello",
        "bob by qwq-32b: Hi",
        "ann by qwq-32b: Hello, Again",
    ]
