"""The plan for feedback, PPO and A/B tests: every class by its name, on feedback lines
as the plan writes them."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from thumbwheel import compat
from thumbwheel.compat import rlhf_plan
from thumbwheel.core.errors import ConfigError, Conflict, InputError

NAMES = [
    "FeedbackEntry",
    "FeedbackCollector",
    "RewardModel",
    "RewardModelTrainer",
    "PPOAssistantTrainer",
    "ContinuousLearner",
    "ABTestingFramework",
    "convert_settings",
]


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there(name: str) -> None:
    module = importlib.import_module("thumbwheel.compat.rlhf_plan")
    assert name in module.__all__ and name in compat.__all__
    if name != "RewardModel":  # at the top it is n3's
        assert getattr(compat, name) is getattr(module, name)


@pytest.fixture
def collector(tmp_path: Path) -> rlhf_plan.FeedbackCollector:
    return rlhf_plan.FeedbackCollector(tmp_path / "data" / "feedback.jsonl")


def answers(samples: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(sample["query"], sample["response"]) for sample in samples]


class TestFeedback:
    def test_a_line_has_every_key_and_a_time_with_a_space(
        self, collector: rlhf_plan.FeedbackCollector
    ) -> None:
        entry = collector.collect(
            "Öffnungszeiten?", "Neun bis 五.", "thumbs_up", user_id="ann", tags=["schön"]
        )
        (line,) = [
            json.loads(text)
            for text in collector.storage_path.read_text(encoding="utf-8").splitlines()
        ]
        assert list(line) == [
            "query",
            "response",
            "feedback_type",
            "rating",
            "correction",
            "timestamp",
            "metadata",
        ]
        assert (line["rating"], line["correction"], line["metadata"]) == (
            None,
            None,
            {"user_id": "ann", "tags": ["schön"]},
        )
        assert re.match(r"\d{4}-\d\d-\d\d \d\d:", line["timestamp"])
        assert list(collector.feedback_buffer) == [entry] and entry.to_dict() == line

    def test_nothing_there_is_no_data(self, collector: rlhf_plan.FeedbackCollector) -> None:
        assert collector.get_training_data() == {"positive": [], "negative": []}

    def test_each_signal_by_its_meaning(self, collector: rlhf_plan.FeedbackCollector) -> None:
        collector.collect("Hours?", "Nine.", "thumbs_up")
        collector.collect("Sunday?", "Ja – immer.", "thumbs_down")
        collector.collect("Price?", "Ten.", "rating", 3)
        collector.collect("Phone?", "一二三", "rating", 5)
        collector.collect("Parking?", "No idea.", "rating", 1)
        collector.collect("Where?", "Here.", "correction", correction="In Größenweg 3.")
        data = collector.get_training_data()
        assert answers(data["positive"]) == [
            ("Phone?", "一二三"),
            ("Hours?", "Nine."),
            ("Where?", "In Größenweg 3."),
        ]
        assert answers(data["negative"]) == [
            ("Where?", "Here."),
            ("Parking?", "No idea."),
            ("Sunday?", "Ja – immer."),
        ]
        assert data["positive"][1]["rating"] is None and data["negative"][1]["rating"] == 1
        assert answers(collector.get_training_data(max_samples=1)["negative"]) == [
            ("Where?", "Here.")
        ], "the newest"

    def test_several_people_and_somebody_who_thinks_again(
        self, collector: rlhf_plan.FeedbackCollector
    ) -> None:
        for user, kind in (("ann", "thumbs_up"), ("bob", "thumbs_up"), ("eve", "thumbs_down")):
            collector.collect("Hours?", "Nine.", kind, user_id=user)
        for user, kind in (("ann", "thumbs_up"), ("bob", "thumbs_down")):
            collector.collect("Even?", "Split.", kind, user_id=user)
        for kind in ("thumbs_up", "thumbs_down"):
            collector.collect("Again?", "Hm.", kind, user_id="ann")
        data = collector.get_training_data()
        assert (answers(data["positive"]), answers(data["negative"])) == (
            [("Hours?", "Nine.")],
            [("Again?", "Hm.")],
        )

    def test_a_higher_bar(self, collector: rlhf_plan.FeedbackCollector) -> None:
        collector.collect("A?", "four", "rating", 4)
        collector.collect("B?", "five", "rating", 5)
        assert answers(collector.get_training_data()["positive"]) == [
            ("B?", "five"),
            ("A?", "four"),
        ]
        assert answers(collector.get_training_data(min_rating=5)["positive"]) == [("B?", "five")]
        with pytest.raises(InputError, match="4 or 5"):
            collector.get_training_data(min_rating=2)

    @pytest.mark.parametrize(
        ("kind", "more"),
        [
            ("thumbs", {}),
            ("rating", {}),
            ("rating", {"rating": 6}),
            ("correction", {}),
            ("thumbs_up", {"x": {1}}),
        ],
    )
    def test_what_is_no_feedback_is_not_stored(
        self, collector: rlhf_plan.FeedbackCollector, kind: str, more: dict[str, Any]
    ) -> None:
        with pytest.raises(InputError):
            collector.collect("Q?", "A.", kind, **more)
        assert not collector.storage_path.exists() and not collector.feedback_buffer

    def test_a_file_of_theirs_with_a_bad_line(
        self, collector: rlhf_plan.FeedbackCollector, capsys: pytest.CaptureFixture[str]
    ) -> None:
        collector.storage_path.parent.mkdir()
        good = {
            "query": "Q?",
            "response": "Ä.",
            "feedback_type": "thumbs_up",
            "timestamp": "2026-01-05 09:13:02",
        }
        collector.storage_path.write_text(
            json.dumps(good) + '\n[1]\n{"query": \n', encoding="utf-8"
        )
        assert answers(collector.get_training_data()["positive"]) == [("Q?", "Ä.")]
        assert "2 lines are no feedback" in capsys.readouterr().err

    def test_a_writer_that_was_killed_takes_no_later_line_along(
        self, collector: rlhf_plan.FeedbackCollector
    ) -> None:
        collector.collect("Hours?", "Nine.", "thumbs_up")
        with collector.storage_path.open("ab") as stream:
            stream.write('{"query": "Grö'.encode()[:-1])
        collector.collect("Sunday?", "Nö.", "thumbs_up")
        assert answers(collector.get_training_data()["positive"]) == [
            ("Sunday?", "Nö."),
            ("Hours?", "Nine."),
        ]

    def test_the_reward_models_rows(self, collector: rlhf_plan.FeedbackCollector) -> None:
        pytest.importorskip("datasets")
        collector.collect("Q?", "Ja.", "thumbs_up")
        collector.collect("Q?", "Nö.", "thumbs_down")
        dataset = rlhf_plan.RewardModelTrainer(feedback_collector=collector).prepare_dataset()
        assert dataset.to_list() == [
            {"text": "Query: Q?\nResponse: Ja.", "label": 1.0},
            {"text": "Query: Q?\nResponse: Nö.", "label": 0.0},
        ]


def test_nobody_is_asked_before_the_training(collector: rlhf_plan.FeedbackCollector) -> None:
    with pytest.raises(Conflict, match="not been trained"):
        rlhf_plan.RewardModel().predict_reward("Q?", "A.")
    trainer = rlhf_plan.PPOAssistantTrainer("base", feedback_collector=collector)
    with pytest.raises(Conflict, match="not been trained"):
        asyncio.run(trainer.train(1, 1))


class TestLearner:
    def test_below_the_threshold_everything_is_only_stored(
        self, collector: rlhf_plan.FeedbackCollector
    ) -> None:
        trainer = rlhf_plan.RewardModelTrainer(feedback_collector=collector)
        learner = rlhf_plan.ContinuousLearner(
            buffer_size=2, train_threshold=10, reward_trainer=trainer
        )

        async def talk() -> None:
            for number in range(4):
                await learner.add_interaction(
                    f"Frage {number}?", "Ja.", {"feedback_type": "thumbs_up", "user_id": "ann"}
                )

        asyncio.run(talk())
        assert [item["query"] for item in learner.feedback_buffer] == ["Frage 2?", "Frage 3?"]
        assert len(collector.get_training_data()["positive"]) == 4, (
            "what leaves the buffer is not lost"
        )
        assert not learner.learning_active
        with pytest.raises(Conflict, match="no assistant"):
            asyncio.run(learner.evaluate())

    def test_a_cycle_that_fails_keeps_its_feedback(
        self, collector: rlhf_plan.FeedbackCollector, capsys: pytest.CaptureFixture[str]
    ) -> None:
        pytest.importorskip("torch")
        trainer = rlhf_plan.RewardModelTrainer(rlhf_plan.RewardModel("no-such-base"), collector)
        learner = rlhf_plan.ContinuousLearner(train_threshold=1, reward_trainer=trainer)
        assert (
            asyncio.run(learner.add_interaction("Q?", "A.", {"feedback_type": "thumbs_up"})) is None
        )
        assert "the training cycle failed" in capsys.readouterr().err
        assert len(learner.feedback_buffer) == 1 and not learner.learning_active


class TestExperiment:
    def test_a_user_stays_and_the_shares_are_those_of_the_weights(self) -> None:
        framework = rlhf_plan.ABTestingFramework()
        users = [f"Nutzer-ß-{number}" for number in range(2000)]
        first = [framework.assign_variant(user) for user in users]
        assert first == [rlhf_plan.ABTestingFramework().assign_variant(user) for user in users]
        assert 900 < first.count("control") < 1100
        weighted = rlhf_plan.ABTestingFramework(
            {
                "a": {"model": "x", "weight": 3},
                "b": {"model": "y"},
                "c": {"model": "z", "weight": 0},
            }
        )
        counts = [weighted.assign_variant(user) for user in users]
        assert 1400 < counts.count("a") < 1600 and counts.count("c") == 0
        with pytest.raises(ConfigError, match="weights"):
            rlhf_plan.ABTestingFramework({"a": {"model": "x", "weight": 0}})

    def test_queries_go_to_the_users_variant(self) -> None:
        created = []

        class Assistant:
            def __init__(self, model_id: str, tone: str = "") -> None:
                created.append(model_id)
                self.name = f"{model_id}{tone}"

            def chat(self, message: str) -> str:
                return f"{self.name}: {message}"

        variants = {"control": {"model": "m1"}, "b": {"model": "m2", "config": {"tone": "!"}}}
        framework = rlhf_plan.ABTestingFramework(variants, Assistant)
        for user in ("ann", "bob", "eve", "dan", "joe"):
            name = {"control": "m1", "b": "m2!"}[framework.assign_variant(user)]
            assert asyncio.run(framework.run_query(user, "Größe?")) == f"{name}: Größe?"
        assert sorted(created) == ["m1", "m2"], "an assistant is made once"
        with pytest.raises(InputError, match="create_assistant"):
            asyncio.run(rlhf_plan.ABTestingFramework().run_query("ann", "Q?"))

    def test_metrics_one_by_one_with_an_interval(self) -> None:
        framework = rlhf_plan.ABTestingFramework()
        for number in range(40):
            framework.record_metric("control", "thumbs", number % 2, f"c{number // 2}")
            framework.record_metric(
                "variant_a", "thumbs", 1.0 if number % 4 else 0.0, f"v{number // 2}"
            )
        framework.record_metric("control", "seconds", 3.0)
        results = framework.analyze_results()
        thumbs = results["thumbs"]
        assert thumbs["control"] == {"n": 40, "users": 20, "mean": 0.5}
        better = thumbs["variant_a"]
        assert (better["mean"], better["gain"]) == (0.75, pytest.approx(0.25)) and better[
            "low"
        ] < 0.25 < better["high"]
        assert results["seconds"]["variant_a"] == {
            "n": 0,
            "users": 0,
            "mean": None,
            "gain": None,
            "low": None,
            "high": None,
        }
        with pytest.raises(InputError, match="variant_a"):
            framework.record_metric("variant_b", "thumbs", 1)


def test_adapters_of_every_tenth_step_are_beside_the_model(tmp_path: Path) -> None:
    from thumbwheel.compat.rlhf_plan.training import copy_adapters

    for step in (4, 10, 20):
        checkpoint = tmp_path / "checkpoints" / f"checkpoint-{step}"
        checkpoint.mkdir(parents=True)
        for name in ("adapter_config.json", "adapter_model.safetensors", "optimizer.pt"):
            (checkpoint / name).write_text(str(step))
    model = tmp_path / "out" / "ppo_epoch_20"
    model.mkdir(parents=True)
    copy_adapters(tmp_path / "checkpoints", tmp_path / "out")
    names = {path.name for path in (tmp_path / "out" / "ppo_epoch_10").iterdir()}
    assert names == {"adapter_config.json", "adapter_model.safetensors"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"ppo_epoch_10", model.name}
    assert list(model.iterdir()) == []


@pytest.mark.repeat
def test_feedback_becomes_a_reward_model_and_an_assistant(
    collector: rlhf_plan.FeedbackCollector,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    model = rlhf_plan.RewardModel(str(tiny_model))
    reward_trainer = rlhf_plan.RewardModelTrainer(model, collector)
    trainer = rlhf_plan.PPOAssistantTrainer(
        str(tiny_model),
        model,
        collector,
        output_dir=tmp_path / "checkpoints",
        options={"max_completion_length": 8, "max_steps": 2},
    )
    learner = rlhf_plan.ContinuousLearner(
        train_threshold=80, reward_trainer=reward_trainer, ppo_trainer=trainer
    )

    async def talk() -> Any:
        metrics = None
        for number in range(80):
            kind, answer = ("thumbs_up", "Yes.") if number % 2 else ("thumbs_down", "Größe!")
            metrics = await learner.add_interaction(
                f"Question {number // 2}?",
                answer,
                {"feedback_type": kind, "user_id": f"u{number % 3}"},
            )
        return metrics

    metrics = asyncio.run(talk())
    assert (
        metrics
        and metrics["test_samples"] > 0
        and 0 <= metrics["average_reward"] <= 1
        and not learner.feedback_buffer
    )
    assert trainer.model_path and (trainer.model_path / "model.safetensors").is_file()
    assert trainer.model_path == tmp_path / "checkpoints" / "ppo_epoch_10"
    # a cycle on more feedback is measured by the same queries and the same judge
    assert asyncio.run(learner.evaluate()) == metrics
    for number in range(30):
        collector.collect(f"Later {number}?", "Yes.", "thumbs_up", user_id="ann")
        collector.collect(f"Later {number}?", "No.", "thumbs_down", user_id="ann")
    later = asyncio.run(learner.trigger_training())
    assert later and later["test_samples"] == metrics["test_samples"]
    assert later["base_average_reward"] == pytest.approx(metrics["base_average_reward"])
    assert 0 <= later["average_reward"] <= 1
    again = rlhf_plan.RewardModel.load_pretrained("models/reward_model")
    assert 0 <= again.predict_reward("Question 1?", "Yes.") <= 1
    asyncio.run(trainer.train_step(["Größe?", "Zahl?"]))
    assert (
        trainer.model_name.endswith("ppo_step_1")
        and Path(trainer.model_name, "model.safetensors").is_file()
    )
    asyncio.run(trainer.train_step(["Noch eine?"]))
    assert trainer.model_name.endswith("ppo_step_2")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
def test_a_metric_is_a_finite_number(value: Any) -> None:
    framework = rlhf_plan.ABTestingFramework()
    with pytest.raises(InputError, match="not a finite number"):
        framework.record_metric("control", "thumbs", value)
    assert framework.analyze_results() == {}


def test_a_negative_count_of_samples_is_refused(collector: rlhf_plan.FeedbackCollector) -> None:
    with pytest.raises(InputError, match="max_samples -1"):
        collector.get_training_data(max_samples=-1)


def test_a_variant_without_a_model_is_refused_before_anybody_asks() -> None:
    with pytest.raises(ConfigError, match=r"variant 'b'.*names no model"):
        rlhf_plan.ABTestingFramework({"a": {"model": "m"}, "b": {}})
