"""The Command Center's DPO package: every name, on entries and ratings as its simulation
and its rating page write them."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.models.tiny_models import tiny_adapter
from tests.servers.llama_tools import needs, wide_base
from tests.servers.ollama_server import OllamaEmulator
from thumbwheel import compat
from thumbwheel.app.open import opener
from thumbwheel.capture.ingest import ingest
from thumbwheel.compat import command_center
from thumbwheel.core.errors import ConfigError, Conflict, DataError, InputError, NotFound

NAMES = [
    "CommandCenterDPOTrainer",
    "DPOPair",
    "ExportResult",
    "FeedbackSample",
    "OnlineLearner",
    "TrainingResult",
    "build_fixture_dpo_pairs",
    "build_widget_dpo_pairs",
    "create_ollama_modelfile",
    "export_to_ollama",
    "format_fixture_selection_prompt",
    "format_fixture_selection_response",
    "format_widget_selection_prompt",
    "format_widget_selection_response",
    "get_dataset_stats",
    "get_online_learner",
    "init_online_learner",
    "load_pairs_from_jsonl",
    "merge_entries_with_ratings",
    "pairs_to_jsonl",
    "prepare_training_dataset",
]
ELSEWHERE = {"TrainingResult", "export_to_ollama"}
"""Names that the top has from another system."""


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there(name: str) -> None:
    module = importlib.import_module("thumbwheel.compat.command_center")
    assert name in module.__all__ and name in compat.__all__
    assert (getattr(compat, name) is getattr(module, name)) is (name not in ELSEWHERE)


def entry(
    number: int, question: int, scenario: str, fixture: str, rating: str | None = None, **more: Any
) -> dict[str, Any]:
    return {
        "entry_id": f"e{number:05}",
        "question_id": f"q{question:03}",
        "question": f"Wie geht es Pumpe {question}? 泵",
        "scenario": scenario,
        "fixture": fixture,
        "size": "normal",
        "natural": True,
        "forced": False,
        "rating": rating,
        "tags": [],
        "notes": "",
    } | more


class TestPairs:
    def test_their_golden_pair(self) -> None:
        rated = [
            {"question_id": "q1", "scenario": "kpi", "rating": "up", "question": "Größe?"},
            {"question_id": "q1", "scenario": "trend", "rating": "down", "question": "Größe?"},
            {"question_id": "q1", "scenario": "gauge", "rating": None, "question": "Größe?"},
        ]
        before = json.dumps(rated)
        (pair,) = command_center.build_widget_dpo_pairs(rated, ["kpi", "trend", "gauge", "map"])
        assert (pair.chosen, pair.rejected, pair.question_id) == (
            "kpi (normal)",
            "trend (normal)",
            "q1",
        )
        assert "Größe?" in pair.prompt and "gauge, kpi, map, trend" in pair.prompt
        assert pair.metadata == {"type": "widget_selection", "num_liked": 1, "num_disliked": 1}
        assert json.dumps(rated) == before

    def test_an_entry_without_what_was_understood_is_of_the_same_question(self) -> None:
        meta = {"intent": {"type": "status", "domains": ["pumps"], "entities": {"no": ["4"]}}}
        rated = [
            entry(1, 1, "kpi", "dial", "up", size="hero", pipeline_meta=meta),
            entry(2, 1, "trend", "line", "down"),
        ]
        (pair,) = command_center.build_widget_dpo_pairs(rated, ["kpi", "trend"], None)
        assert (pair.chosen, pair.rejected) == ("kpi (hero)", "trend (normal)")
        assert "pumps" in pair.prompt and "pipeline_meta" not in rated[1]

    def test_several_widgets_of_a_question(self) -> None:
        rated = [
            entry(1, 1, "kpi", "dial", "up"),
            entry(2, 1, "trend", "line", "up"),
            entry(3, 1, "map", "grid", "down"),
        ]
        first, *others = command_center.build_widget_dpo_pairs(rated, [])
        assert (first.chosen, first.rejected) == ("kpi (normal), trend (normal)", "map (normal)")
        assert first.metadata["num_liked"] == 2 and {pair.rejected for pair in others} == {
            "map (normal)"
        }

    def test_a_forced_entry_is_no_choice_and_a_contradiction_no_pair(self) -> None:
        forced = [
            entry(1, 1, "kpi", "dial", "up"),
            entry(2, 1, "map", "grid", "down", natural=False, forced=True),
        ]
        assert command_center.build_widget_dpo_pairs(forced, []) == []
        both = [
            entry(1, 1, "kpi", "dial", "up"),
            entry(2, 1, "kpi", "bar", "down"),
            entry(3, 1, "map", "grid", "down"),
        ]
        pairs = command_center.build_widget_dpo_pairs(both, [])
        assert all(pair.chosen != pair.rejected and "kpi" not in pair.chosen for pair in pairs)

    def test_fixtures_of_one_scenario_size_and_data(self) -> None:
        descriptions = {
            "kpi": {"dial": "eine runde Skala", "bar": "水平", "text": ""},
            "chatstream": "one variant",
        }
        rated = [
            entry(1, 1, "kpi", "dial", "up"),
            entry(2, 1, "kpi", "bar", "down"),
            entry(3, 1, "kpi", "text", "down", size="hero"),
            entry(4, 1, "chatstream", "default-render", "up"),
        ]
        (pair,) = command_center.build_fixture_dpo_pairs(rated, descriptions)
        assert (pair.chosen, pair.rejected, pair.scenario) == ("dial", "bar", "kpi")
        assert "- dial: eine runde Skala" in pair.prompt and pair.metadata == {
            "type": "fixture_selection"
        }

    def test_raters_outvote_each_other(self) -> None:
        rated = [entry(2, 1, "kpi", "bar", "down", device_id="a")]
        rated += [
            entry(1, 1, "kpi", "dial", rating, device_id=device)
            for device, rating in (("a", "up"), ("b", "up"), ("c", "down"))
        ]
        (pair,) = command_center.build_fixture_dpo_pairs(rated, {})
        assert (pair.chosen, pair.rejected) == ("dial", "bar")
        assert command_center.build_fixture_dpo_pairs(rated[:-2] + rated[-1:], {}) == [], (
            "one to one says nothing"
        )

    def test_nothing_rated_is_no_pair(self) -> None:
        assert command_center.build_widget_dpo_pairs([], ["kpi"]) == []
        assert command_center.build_fixture_dpo_pairs([entry(1, 1, "kpi", "dial")], {}) == []


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, Path]:
    """The files of a run: 40 questions, each with a liked and a disliked fixture; ratings in the
    form of the page."""
    entries = []
    ratings = {}
    for question in range(40):
        for fixture, rating in (("dial", "up"), ("bar", "down")):
            number = len(entries)
            entries.append(entry(number, question, "kpi", fixture))
            ratings[f"e{number:05}"] = {
                "rating": rating,
                "tags": ["perfect"],
                "notes": "schön",
                "rated_at": "2026-02-02T10:00:00Z",
            }
    data, rated = tmp_path / "mine" / "data.json", tmp_path / "mine" / "rated.json"
    data.parent.mkdir()
    data.write_text(
        json.dumps({"run_id": "run1", "entries": entries}, ensure_ascii=False), encoding="utf-8"
    )
    rated.write_text(
        json.dumps({"stats": {}, "ratings": ratings}, ensure_ascii=False), encoding="utf-8"
    )
    return data, rated


class TestDataset:
    def test_questions_are_split_and_never_pairs(self, run: tuple[Path, Path]) -> None:
        pytest.importorskip("datasets")
        dataset = command_center.prepare_training_dataset(
            "file", *run, min_samples=40, val_split=0.2
        )
        assert dataset["train"].column_names == ["prompt", "chosen", "rejected", "question_id"]
        assert (
            set(dataset["train"]["chosen"]) == {"dial"}
            and len(dataset["train"]) + len(dataset["validation"]) == 40
        )
        assert not set(dataset["train"]["question_id"]) & set(dataset["validation"]["question_id"])
        with pytest.raises(DataError, match="at least 50"):
            command_center.prepare_training_dataset("file", *run)
        with pytest.raises(InputError, match="pair_type"):
            command_center.prepare_training_dataset("file", *run, pair_type="all")  # type: ignore[arg-type]

    def test_ratings_that_are_none_are_told(
        self, run: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
    ) -> None:
        pytest.importorskip("datasets")
        ratings = json.loads(run[1].read_text())
        ratings["ratings"]["e99999"] = {"rating": "up"}
        run[1].write_text(json.dumps(ratings))
        command_center.prepare_training_dataset("file", *run, min_samples=40)
        assert "1 line is left out, the first for this reason: " in capsys.readouterr().err

    def test_what_was_imported_is_the_database(
        self, run: tuple[Path, Path], tmp_path: Path
    ) -> None:
        pytest.importorskip("datasets")
        (run[0].parent / "ratings.json").write_bytes(run[1].read_bytes())
        with opener(tmp_path / "home", None, "warning")() as ws:
            ingest(ws, "panels", "widgets", run[0])
        dataset = command_center.prepare_training_dataset(
            agent="panels", home=tmp_path / "home", min_samples=40, val_split=0
        )
        assert len(dataset["train"]) == 40 and "validation" not in dataset
        from_files = command_center.prepare_training_dataset("file", *run, min_samples=40)
        asked = set(from_files["train"]["question_id"]) | set(
            from_files["validation"]["question_id"]
        )
        assert set(dataset["train"]["question_id"]) == asked, "questions have their own ids"
        pairs = command_center.build_dataset_from_db(40, agent="panels", home=tmp_path / "home")
        assert {pair.question_id for pair in pairs} == asked
        assert (
            command_center.build_dataset_from_db(41, agent="panels", home=tmp_path / "home") == []
        )
        with pytest.raises(InputError, match="ratings_path"):
            command_center.prepare_training_dataset("file", run[0])


class TestTrainer:
    def test_the_configs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        trainer = command_center.CommandCenterDPOTrainer(config_name="high_quality")
        assert (
            trainer.options["num_train_epochs"],
            trainer.options["lora_r"],
            trainer.options["beta"],
        ) == (5, 32, 0.1)
        assert command_center.CommandCenterDPOTrainer(config_name="small_gpu").base_model.endswith(
            "3B-Instruct"
        )
        by_name = command_center.CommandCenterDPOTrainer("small_gpu")
        assert by_name.base_model.endswith("3B-Instruct")
        monkeypatch.setenv("RL_BASE_MODEL", "mine")
        assert command_center.CommandCenterDPOTrainer({"beta": 0.2}).options["beta"] == 0.2
        assert command_center.CommandCenterDPOTrainer().base_model == "mine"
        with pytest.raises(ConfigError, match="tiny"):
            command_center.CommandCenterDPOTrainer(config_name="tiny")

    def test_a_failure_is_a_result(self, tmp_path: Path) -> None:
        pytest.importorskip("torch")
        trainer = command_center.CommandCenterDPOTrainer({"base_model": str(tmp_path / "none")})
        result = trainer.train(
            [{"prompt": "Q?", "chosen": "ä", "rejected": "b", "question_id": "q1"}],
            output_dir=tmp_path / "out",
        )
        assert not result.success and result.error_message and result.train_samples == 1
        with pytest.raises(ConfigError, match="bata"):
            command_center.CommandCenterDPOTrainer({"bata": 0.2}).load_base_model()
        exported = command_center.export_to_ollama(tmp_path / "none", register=False)
        assert not exported.success and exported.error_message

    @pytest.mark.parametrize(
        ("rows", "why"),
        [
            ([{"prompt": "Q?", "chosen": "ä"}], "its rejected is not text"),
            ([{"prompt": None, "chosen": "ä", "rejected": "b"}], "its prompt is not text"),
            ([{"prompt": "Q?", "chosen": "half \ud800", "rejected": "b"}], "it is no JSON"),
            ([], "nothing to train on"),
        ],
    )
    def test_rows_that_cannot_be_trained_on_are_a_failure(
        self, tmp_path: Path, rows: list[dict[str, Any]], why: str
    ) -> None:
        result = command_center.CommandCenterDPOTrainer({"base_model": "none"}).train(
            rows, output_dir=tmp_path
        )
        assert not result.success and why in str(result.error_message)

    @pytest.mark.slow
    def test_a_training_after_one_that_failed_has_its_own_rows(
        self, tiny_model: Path, tmp_path: Path
    ) -> None:
        def rows(name: str, count: int) -> list[dict[str, Any]]:
            return [
                {"prompt": f"{name} {n} 泵?", "chosen": "kpi (normal)", "rejected": "map (normal)"}
                for n in range(count)
            ]

        trainer = command_center.CommandCenterDPOTrainer(
            {"base_model": str(tiny_model), "max_steps": 1, "max_length": 512, "min_rows": 10}
        )
        assert not trainer.train(rows("wrong", 5), output_dir=tmp_path).success
        result = trainer.train(rows("right", 20), output_dir=tmp_path)
        assert result.success, result.error_message
        assert result.metrics["train_rows"] + result.metrics["dev_rows"] <= 20

    @pytest.mark.slow
    def test_pairs_become_an_adapter(
        self, run: tuple[Path, Path], tiny_model: Path, tmp_path: Path
    ) -> None:
        dataset = command_center.prepare_training_dataset("file", *run, min_samples=40)
        trainer = command_center.CommandCenterDPOTrainer(
            {"base_model": str(tiny_model), "max_steps": 2, "max_length": 512}
        ).load_base_model()
        result = trainer.train(dataset["train"], dataset.get("validation"), tmp_path / "out")
        assert result.success, result.error_message
        assert (
            result.checkpoint_path
            and Path(result.checkpoint_path, "adapter_model.safetensors").is_file()
        )
        assert result.final_loss and result.epochs_completed > 0 and result.eval_samples > 0
        again = trainer.train(dataset["train"], None, tmp_path / "out")
        assert not again.success and "already" in str(again.error_message)

    @pytest.mark.slow
    def test_a_checkpoint_goes_to_ollama(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        needs("converter", "library", "bindings", "llama-server")
        base = wide_base(tmp_path / "base")
        adapter = tiny_adapter(base, tmp_path / "final")
        with OllamaEmulator(tmp_path / "ollama") as server:
            monkeypatch.setenv("OLLAMA_HOST", server.url)
            other = command_center.export_to_ollama(
                adapter, base_model=str(tmp_path), quantization="f16", register=False
            )
            assert not other.success
            result = command_center.export_to_ollama(
                adapter, "cc-widget-selector", str(base), "f16"
            )
            assert result.success and result.ollama_model_name == "cc-widget-selector", (
                result.error_message
            )
            assert (
                result.gguf_path == str(tmp_path / "export" / "cc-widget-selector.gguf")
                and result.file_size_mb
            )
            names = [model["name"] for model in compat.OllamaDeployer().list_models()]
            assert names == ["cc-widget-selector:latest"]


class TestLearner:
    def test_ratings_outlive_the_process(self, tmp_path: Path) -> None:
        learner = command_center.init_online_learner(min_samples=3, checkpoint_dir=tmp_path)
        assert command_center.get_online_learner() is learner
        assert not learner.add_feedback(
            {"entry_id": "e1", "rating": "up", "tags": ["perfect"], "notes": "schön ✓"}
        )
        assert not learner.add_feedback({"entry_id": "e2", "rating": "down"})
        assert learner.get_status() == {
            "buffer_size": 2,
            "min_samples": 3,
            "is_training": False,
            "last_train_time": None,
            "train_count": 0,
            "should_retrain": False,
            "auto_export": True,
            "auto_deploy": False,
        }
        with (tmp_path / "feedback_buffer.jsonl").open("ab") as stream:
            stream.write(b'{"entry_id": "e9", "rat')  # a writer was killed
        again = command_center.OnlineLearner(min_samples=3, checkpoint_dir=tmp_path)
        assert (
            again.add_feedback({"entry_id": "e3", "rating": "up", "device_id": "tablet"})
            and again.should_retrain()
        )
        line = json.loads(
            (tmp_path / "feedback_buffer.jsonl").read_text(encoding="utf-8").splitlines()[0]
        )
        assert (line["notes"], line["tags"]) == ("schön ✓", ["perfect"])
        for wrong in ({"entry_id": "e1"}, {"rating": "up"}, {"entry_id": "e1", "rating": "UP"}):
            with pytest.raises(InputError):
                again.add_feedback(wrong)

    def test_ratings_that_nothing_joins_stay(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        pytest.importorskip("torch")
        learner = command_center.OnlineLearner(min_samples=1, checkpoint_dir=tmp_path)
        learner.add_feedback({"entry_id": "e1", "rating": "up"})
        assert learner.trigger_retrain(async_mode=False) is False
        assert "1 ratings are left out" in capsys.readouterr().err
        assert (
            learner.get_status()["buffer_size"] == 1
            and learner.should_retrain()
            and not learner.is_training
        )

    @pytest.mark.slow
    def test_a_run_learns_from_all_ratings(
        self, run: tuple[Path, Path], tiny_model: Path, tmp_path: Path
    ) -> None:
        trainer = command_center.CommandCenterDPOTrainer(
            {"base_model": str(tiny_model), "max_steps": 2, "max_length": 512}
        )
        results: list[command_center.TrainingResult] = []
        learner = command_center.OnlineLearner(
            10,
            checkpoint_dir=tmp_path / "runs",
            auto_export=False,
            on_retrain_complete=results.append,
            data_path=run[0],
            trainer=trainer,
        )
        for name, rating in json.loads(run[1].read_text())["ratings"].items():
            learner.add_feedback({"entry_id": name, **rating})
        assert learner.trigger_retrain()
        assert not learner.trigger_retrain(), "one run at a time"
        learner.wait(600)
        assert (
            learner.last_result and learner.last_result.success and results == [learner.last_result]
        )
        status = learner.get_status()
        assert (status["buffer_size"], status["train_count"], status["should_retrain"]) == (
            0,
            1,
            False,
        )
        for number in range(20):
            due = learner.add_feedback({"entry_id": f"e{number:05}", "rating": "up"})
        assert due, "within the interval twice as many"


class TestCheckpoints:
    """Evaluating, copying, loading and resuming an adapter by the trainer's own methods."""

    def test_nothing_is_there_yet(self, tmp_path: Path) -> None:
        trainer = command_center.CommandCenterDPOTrainer({"base_model": "none"})
        for call in (lambda: trainer.evaluate([]), lambda: trainer.save_checkpoint("copy")):
            with pytest.raises(Conflict, match="trained or loaded"):
                call()
        with pytest.raises(NotFound, match="no adapter"):
            trainer.load_checkpoint(tmp_path)
        rows = [{"prompt": "Q?", "chosen": "a", "rejected": "b"}]
        result = trainer.train(rows, None, tmp_path / "out", resume_from_checkpoint=tmp_path)
        assert not result.success and "not of a run" in str(result.error_message)

    def test_an_adapter_is_loaded_copied_and_measured(
        self, tiny_model: Path, tmp_path: Path
    ) -> None:
        adapter = tiny_adapter(tiny_model, tmp_path / "final")
        trainer = command_center.CommandCenterDPOTrainer({"base_model": "none"})
        trainer.load_checkpoint(adapter)
        assert trainer.base_model == str(tiny_model)
        trainer.save_checkpoint(tmp_path / "copy")
        assert (tmp_path / "copy" / "adapter_model.safetensors").is_file()
        answers = {"chosen": "kpi", "rejected": "trend, map"}
        pairs = [{"prompt": f"Pump {number}?"} | answers for number in range(6)]
        measured = trainer.evaluate(pairs)
        assert measured["eval_samples"] == 12 and 0 <= measured["eval_accuracy"] <= 1
        assert measured["eval_loss"] > 0 and measured["base"]["eval_loss"] > 0
        with pytest.raises(InputError, match="row 1: its rejected is not text"):
            trainer.evaluate([{"prompt": "Q?", "chosen": "a"}])

    def test_a_run_is_named_by_its_checkpoint(self, tmp_path: Path) -> None:
        from thumbwheel.compat.command_center.training import run_of

        checkpoint = tmp_path / "home" / "runs" / "run-1" / "checkpoints" / "checkpoint-10"
        checkpoint.mkdir(parents=True)
        assert run_of(checkpoint, tmp_path / "home") == "run-1"
        with pytest.raises(NotFound, match="output_dir"):
            run_of(checkpoint, tmp_path / "other")


class TestExports:
    """The helpers of their export module, one by one."""

    def test_an_adapter_is_merged(self, tiny_model: Path, tmp_path: Path) -> None:
        adapter = tiny_adapter(tiny_model, tmp_path / "final")
        merged = command_center.merge_lora_weights(str(tiny_model), adapter, tmp_path / "merged")
        assert Path(merged, "model.safetensors").is_file()
        with pytest.raises(Conflict, match="exists already"):
            command_center.merge_lora_weights(str(tiny_model), adapter, tmp_path / "merged")
        with pytest.raises(NotFound, match="adapter"):
            command_center.merge_lora_weights(str(tiny_model), tmp_path, tmp_path / "other")

    def test_a_model_is_converted_registered_listed_and_removed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        needs("converter", "library", "bindings")
        assert command_center.find_llama_cpp() is not None
        base = wide_base(tmp_path / "base")
        path = command_center.convert_to_gguf(base, tmp_path / "export" / "cc", "f16")
        assert path == str(tmp_path / "export" / "cc.gguf")
        text = command_center.create_ollama_modelfile(path, "cc", 'Say "hi".\nThen go.', 0.1, 2048)
        with OllamaEmulator(tmp_path / "ollama") as server:
            monkeypatch.setenv("OLLAMA_HOST", server.url)
            assert command_center.register_with_ollama(text, "cc", tmp_path / "Modelfile")
            assert (tmp_path / "Modelfile").read_text() == text
            assert command_center.list_ollama_models() == ["cc:latest"]
            status = command_center.get_export_status(tmp_path / "export")
            assert [file["path"] for file in status["gguf_files"]] == [path]
            assert status["ollama_models"] == ["cc:latest"]
            assert command_center.delete_ollama_model("cc")
            assert not command_center.delete_ollama_model("cc")

    def test_no_ollama_has_no_models(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:1")
        assert command_center.list_ollama_models() == []
        assert "127.0.0.1:1" in capsys.readouterr().err

    def test_a_modelfile_is_read_as_it_was_written(self) -> None:
        from thumbwheel.compat.command_center.modelfile_text import read_modelfile
        from thumbwheel.deploy.modelfile import Modelfile

        modelfile = Modelfile(
            "m.gguf",
            template="{{ .Prompt }}",
            system='Say "hi".\nThen go.',
            parameters={"temperature": 0.1, "num_ctx": 2048, "stop": ("<|eot_id|>", "END NOW")},
        )
        assert read_modelfile(modelfile.text()) == modelfile
        assert read_modelfile("# mine\nFROM m.gguf\n\nSYSTEM Be brief.\n").system == "Be brief."
        for text in ("SYSTEM a", "FROM a\nLICENSE b", 'FROM a\nSYSTEM """b'):
            with pytest.raises(InputError, match="a Modelfile"):
                read_modelfile(text)
