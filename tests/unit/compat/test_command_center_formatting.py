"""The checks of the Command Center's own tests: prompts, answers, files of pairs, the learner's
buffer and the Modelfile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from thumbwheel.compat.command_center import (
    DPOPair,
    OnlineLearner,
    build_fixture_dpo_pairs,
    build_widget_dpo_pairs,
    create_ollama_modelfile,
    format_fixture_selection_prompt,
    format_fixture_selection_response,
    format_widget_selection_prompt,
    format_widget_selection_response,
    get_dataset_stats,
    load_pairs_from_jsonl,
    merge_entries_with_ratings,
    pairs_to_jsonl,
)
from thumbwheel.core.errors import InputError

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


def test_create_ollama_modelfile() -> None:
    modelfile = create_ollama_modelfile(
        gguf_path="/path/to/model.gguf", model_name="test-model", temperature=0.1, num_ctx=2048
    )
    for line in ("FROM /path/to/model.gguf", "PARAMETER temperature 0.1", "PARAMETER num_ctx 2048"):
        assert line in modelfile
