"""The checks of the Command Center's own tests: settings, prompts, answers, files of pairs, the
learner's buffer and the Modelfile."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from thumbwheel.compat.command_center import (
    DPO_CONFIG,
    ONLINE_LEARNING_CONFIG,
    QLORA_CONFIG,
    CommandCenterDPOTrainer,
    DPOPair,
    OnlineLearner,
    build_combined_dpo_pairs,
    build_dataset_from_files,
    build_fixture_dpo_pairs,
    build_widget_dpo_pairs,
    create_ollama_modelfile,
    format_fixture_selection_prompt,
    format_fixture_selection_response,
    format_widget_selection_prompt,
    format_widget_selection_response,
    get_config,
    get_dataset_stats,
    get_online_learner,
    init_online_learner,
    load_entries_from_file,
    load_pairs_from_jsonl,
    load_ratings_from_file,
    merge_entries_with_ratings,
    pairs_to_hf_dataset,
    pairs_to_jsonl,
    shutdown_online_learner,
    train_from_config,
)
from thumbwheel.core.config import build
from thumbwheel.core.errors import ConfigError, InputError
from thumbwheel.training.algorithms.dpo import DpoConfig

ENTRY = {"question_id": "q1", "question": "Is pump 4 fine?", "scenario": "kpi", "size": "hero"}


def test_format_widget_selection_prompt() -> None:
    prompt = format_widget_selection_prompt(
        query="Show me pump efficiency",
        available_scenarios=["kpi", "trend", "gauge"],
        context={"domains": ["maintenance"], "entities": {"equipment": "pump-001"}},
    )
    for part in ("Show me pump efficiency", "kpi, trend, gauge", "maintenance", "pump-001"):
        assert part in prompt


def test_format_widget_selection_response() -> None:
    sizes = {"kpi": "compact", "trend": "hero"}
    answer = format_widget_selection_response(selected_scenarios=["kpi", "trend"], sizes=sizes)
    assert answer == "kpi (compact), trend (hero)"
    assert format_widget_selection_response(["kpi"]) == "kpi (normal)"


def test_format_fixture_selection_prompt() -> None:
    fixtures = ["live-metric", "percentage-change", "dual-value"]
    prompt = format_fixture_selection_prompt(
        scenario="kpi", query="Show efficiency", available_fixtures=fixtures, size="compact"
    )
    for part in ("Scenario: kpi", "Show efficiency", "live-metric", "Size: compact"):
        assert part in prompt
    data = {"label": "Flow", "value": 3}
    assert format_fixture_selection_prompt("kpi", "Q", fixtures, data).count("Data.") == 2
    assert format_fixture_selection_response("live-metric") == "live-metric"


def test_a_formatted_prompt_is_the_one_that_is_trained_on() -> None:
    rated = [
        ENTRY | {"fixture": "dial", "rating": "up", "data_override": {"demoData": {"value": 3}}},
        ENTRY | {"fixture": "bar", "rating": "down", "data_override": {"demoData": {"value": 3}}},
    ]
    (pair,) = build_fixture_dpo_pairs(rated, {"kpi": {"dial": "", "bar": ""}})
    assert pair.prompt == format_fixture_selection_prompt(
        "kpi", "Is pump 4 fine?", ["dial", "bar"], {"demoData": {"value": 3}}, "hero"
    )
    choices = [ENTRY | {"rating": "up"}, ENTRY | {"scenario": "map", "rating": "down"}]
    (choice,) = build_widget_dpo_pairs(choices, ["kpi", "map"])
    assert choice.prompt == format_widget_selection_prompt("Is pump 4 fine?", ["kpi", "map"])
    assert choice.chosen == format_widget_selection_response(["kpi"], {"kpi": "hero"})


def test_pairs_to_jsonl_roundtrip(tmp_path: Path) -> None:
    pairs = [
        DPOPair("Frage 泵?", "kpi (normal)", "map (normal)", "q1", metadata={"type": "widget"}),
        DPOPair("prompt", "dial\u2028", "bar", "q2", scenario="kpi"),
    ]
    path = tmp_path / "data" / "pairs.jsonl"
    assert pairs_to_jsonl(pairs, path) == 2
    first, second = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    assert (first["question_id"], second["scenario"]) == ("q1", "kpi")
    assert load_pairs_from_jsonl(path) == pairs


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"prompt": "p", "chosen": "c"}', "line 2: its rejected is not text"),
        ("[1]", "line 2: it is not a JSON object"),
        ('{"prompt": "p"', "line 2"),
    ],
)
def test_a_line_that_is_no_pair_is_named(line: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    pairs_to_jsonl([DPOPair("p", "c", "r", "q1")], path)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(InputError, match=why):
        load_pairs_from_jsonl(path)


def test_merge_entries_with_ratings() -> None:
    entries = [{"entry_id": "e1", "scenario": "kpi"}, {"entry_id": "e2", "scenario": "trend"}]
    ratings = {"e1": {"rating": "up", "tags": ["good"], "notes": "nice", "rated_at": "2026"}}
    first, second = merge_entries_with_ratings(entries, ratings)
    assert first == entries[0] | {"rating": "up", "tags": ["good"], "notes": "nice"}
    assert second == entries[1] and "rating" not in entries[0]


def test_get_dataset_stats() -> None:
    pairs = [
        DPOPair("p1", "c1", "r1", "q1", "kpi", {"type": "widget_selection"}),
        DPOPair("p2", "c2", "r2", "q2", "kpi", {"type": "fixture_selection"}),
        DPOPair("p3", "c3", "r3", "q3", "trend", {"type": "widget_selection"}),
    ]
    assert get_dataset_stats(pairs) == {
        "total_pairs": 3,
        "widget_selection_pairs": 2,
        "fixture_selection_pairs": 1,
        "unique_scenarios": 2,
        "unique_questions": 3,
        "avg_prompt_length": 2,
        "avg_chosen_length": 2,
        "avg_rejected_length": 2,
    }
    assert get_dataset_stats([])["avg_prompt_length"] is None


def test_the_buffer_of_the_learner(tmp_path: Path) -> None:
    learner = OnlineLearner(min_samples=2, checkpoint_dir=tmp_path)
    learner.add_feedback({"entry_id": "e1", "rating": "up", "tags": ["good"], "notes": "nice"})
    learner.add_feedback({"entry_id": "e2", "rating": "down", "scenario": "kpi"})
    first, second = learner.feedback_buffer
    assert (first.entry_id, first.rating, first.tags, first.scenario) == (
        "e1",
        "up",
        ["good"],
        None,
    )
    assert second.scenario == "kpi" and learner.should_retrain()

    learner.clear_buffer()
    assert learner.feedback_buffer == [] and not learner.should_retrain()
    assert learner.get_status()["buffer_size"] == 0
    learner.add_feedback({"entry_id": "e3", "rating": "up"})
    assert [sample.entry_id for sample in learner.feedback_buffer] == ["e3"]
    assert len((tmp_path / "feedback_buffer.jsonl").read_text().splitlines()) == 3, "all are kept"


def test_ratings_that_wait_in_the_buffer_of_the_original_are_taken_over(tmp_path: Path) -> None:
    sample = {
        "entry_id": "e00001",
        "rating": "up",
        "tags": ["perfect"],
        "notes": "",
        "timestamp": "2026-02-01T12:46:06.120000",
        "question_id": "q1",
        "scenario": "kpi",
        "fixture": "dial",
        "size": "normal",
        "query": "How is pump 4?",
    }
    other = sample | {"entry_id": "e00002", "rating": "down", "scenario": "trend"}
    no_opinion = sample | {"entry_id": "e00003", "rating": None}
    buffer = {
        "samples": [sample, other, no_opinion],
        "last_train_time": "2026-01-31T08:00:00",
        "saved_at": "2026-02-01T12:47:00",
    }
    (tmp_path / "feedback_buffer.json").write_text(json.dumps(buffer))
    learner = OnlineLearner(min_samples=2, checkpoint_dir=tmp_path)
    status = learner.get_status()
    assert (status["buffer_size"], status["should_retrain"]) == (2, True)
    trained_at = datetime.fromisoformat(str(buffer["last_train_time"])).astimezone(UTC)
    assert status["last_train_time"] == trained_at.isoformat()
    first, _ = learner.feedback_buffer
    assert (first.entry_id, first.query, first.timestamp) == (
        "e00001",
        "How is pump 4?",
        "2026-02-01T12:46:06.120000",
    )
    again = OnlineLearner(min_samples=2, checkpoint_dir=tmp_path)
    assert again.get_status()["buffer_size"] == 2, "once"

    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "feedback_buffer.json").write_text('{"samples": [{"rating": "up"}]}')
    with pytest.raises(InputError, match="not a buffer of ratings"):
        OnlineLearner(checkpoint_dir=tmp_path / "other")


def test_create_ollama_modelfile() -> None:
    modelfile = create_ollama_modelfile(
        gguf_path="/path/to/model.gguf", model_name="test-model", temperature=0.1, num_ctx=2048
    )
    for line in ("FROM /path/to/model.gguf", "PARAMETER temperature 0.1", "PARAMETER num_ctx 2048"):
        assert line in modelfile


class TestConfig:
    """Their own checks of `rl/config.py`, and what a script does with it."""

    def test_get_config(self) -> None:
        assert {"dpo", "qlora", "base_model"} <= get_config("default").keys()
        assert get_config("small_gpu")["dpo"]["batch_size"] == 2
        assert get_config("high_quality")["dpo"]["num_epochs"] == 5
        assert {"lora_r", "lora_alpha", "learning_rate", "beta"} <= DPO_CONFIG.keys()
        assert {"load_in_4bit", "bnb_4bit_compute_dtype"} <= QLORA_CONFIG.keys()
        with pytest.raises(ConfigError, match="tiny"):
            get_config("tiny")

    def test_a_config_is_a_copy(self) -> None:
        config = get_config("default")
        config["dpo"]["lora_target_modules"].append("lm_head")
        config["dpo"]["beta"] = 0.2
        assert get_config("default")["dpo"]["beta"] == 0.1
        assert "lm_head" not in DPO_CONFIG["lora_target_modules"]

    def test_a_changed_config_goes_to_the_trainer(self, capsys: pytest.CaptureFixture[str]) -> None:
        config = get_config("small_gpu")
        config["dpo"] |= {"num_epochs": 5, "batch_size": 2, "learning_rate": 1e-5, "optim": "sgd"}
        trainer = CommandCenterDPOTrainer(config)
        assert trainer.base_model == "meta-llama/Llama-3.2-3B-Instruct"
        options = trainer.options
        assert (options["num_train_epochs"], options["batch_size"]) == (5, 16)
        assert (options["learning_rate"], options["preset"]) == (1e-5, "small_gpu")
        assert "dpo.optim does not exist here" in capsys.readouterr().err
        with pytest.raises(ConfigError, match="num_epoch"):
            CommandCenterDPOTrainer({"dpo": {"num_epoch": 5}})

    def test_settings_of_dpo_alone(self) -> None:
        trainer = CommandCenterDPOTrainer({"dpo": {"lora_r": 32}, "qlora": {"load_in_4bit": False}})
        assert (trainer.options["lora_r"], trainer.options["beta"]) == (32, 0.1)
        assert trainer.options["quantization"] == "none"
        build(DpoConfig, trainer.options, "settings")


def test_the_online_settings_make_a_learner(tmp_path: Path) -> None:
    online = ONLINE_LEARNING_CONFIG
    learner = init_online_learner(
        min_samples=online["min_samples_to_retrain"],
        max_buffer_size=2,
        retrain_interval_hours=online["retrain_interval_hours"],
        checkpoint_dir=str(tmp_path),
        auto_export=online["auto_export"],
        auto_deploy=online["auto_deploy"],
    )
    for number in range(3):
        learner.add_feedback({"entry_id": f"e{number}", "rating": "up"})
    assert [sample.entry_id for sample in learner.feedback_buffer] == ["e1", "e2"]
    learner.force_save()
    shutdown_online_learner()
    assert get_online_learner() is not learner


def test_files_become_a_dataset_step_by_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = []
    ratings = {}
    for number in range(40):
        for scenario, rating in (("kpi", "up"), ("trend", "down")):
            entry = f"{scenario}{number}"
            asked = {"question_id": f"q{number}", "question": f"How is pump {number}?"}
            shown = {"scenario": scenario, "fixture": "dial", "size": "normal", "natural": True}
            entries.append({"entry_id": entry, **asked, **shown})
            ratings[entry] = {"rating": rating, "tags": [], "notes": ""}
    (tmp_path / "data.json").write_text(json.dumps({"run_id": "r", "entries": entries}))
    (tmp_path / "ratings.json").write_text(json.dumps({"ratings": ratings}))
    (tmp_path / "bare.json").write_text(json.dumps(ratings))

    loaded = load_ratings_from_file(tmp_path / "ratings.json")
    assert loaded == ratings == load_ratings_from_file(tmp_path / "bare.json")
    rated = merge_entries_with_ratings(load_entries_from_file(tmp_path / "data.json"), loaded)
    pairs = build_combined_dpo_pairs(rated, ["kpi", "trend"], {})
    files = (tmp_path / "data.json", tmp_path / "ratings.json")
    of_files = build_dataset_from_files(*files, pair_type="widget")
    assert {pair.question_id for pair in of_files} == {pair.question_id for pair in pairs}
    dataset = pairs_to_hf_dataset(pairs)
    assert dataset["train"].column_names == ["prompt", "chosen", "rejected", "question_id"]
    assert len(dataset["train"]) + len(dataset["validation"]) == len(pairs) == 40
    assert not set(dataset["train"]["question_id"]) & set(dataset["validation"]["question_id"])
    assert len(pairs_to_hf_dataset(pairs, val_split=0)) == 40
    monkeypatch.setenv("RL_BASE_MODEL", str(tmp_path / "none"))
    result = train_from_config(dataset, output_dir=tmp_path / "out")
    assert (result.success, result.train_samples) == (False, len(dataset["train"]))
    assert result.eval_samples == len(dataset["validation"])
    with pytest.raises(InputError, match=r"none\.json"):
        load_entries_from_file(tmp_path / "none.json")
