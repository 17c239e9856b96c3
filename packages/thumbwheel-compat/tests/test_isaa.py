"""The dataset builders of the agent's RL pipeline on records that break lines, ids and rewards."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.servers.ollama_server import OllamaEmulator
from thumbwheel.compat import command_center
from thumbwheel.compat.isaa import (
    ExecutionTrace,
    ExportPipeline,
    GGUFExporter,
    GRPODatasetBuilder,
    KTODatasetBuilder,
    KTOExample,
    RLTrainer,
    TraceCollector,
    TrainingConfig,
)
from thumbwheel.core.errors import DataError, InputError

SEPARATORS = "a\u2028b\u2029c\x85d\u00e9 \U0001f642"


@pytest.mark.parametrize("form", ["jsonl", "json"])
def test_a_saved_example_with_line_separators_in_it_is_read_again(
    tmp_path: Path, form: str
) -> None:
    examples = [KTOExample(SEPARATORS, SEPARATORS, True), KTOExample("q", "", False)]
    builder = KTODatasetBuilder()
    path = tmp_path / f"examples.{form}"
    builder.save_dataset(examples, path, form)
    assert builder.load_dataset(path) == examples


def test_a_script_reads_the_open_run_and_its_object(tmp_path: Path) -> None:
    collector = TraceCollector(tmp_path / "rl_traces")
    assert collector.current_trace is None
    opened = collector.start_trace("s1", "Open?")
    assert collector.current_trace is opened
    collector.record_tool_call("look_up", {"day": "today"}, "nine", True, 12.0)
    run = collector.finish_trace("From nine.")
    row = json.loads(json.dumps(run.to_dict()))
    assert (row["user_query"], row["tool_calls"][0]["tool_name"]) == ("Open?", "look_up")
    assert ExecutionTrace.from_dict({**row, "of_somebody_else": 1}).final_response == "From nine."


def test_an_agent_is_asked_again_by_a_plain_call(tmp_path: Path) -> None:
    """Their builder asks it in a loop of its own, so a script does not await it."""
    texts = iter(("Yes.", "No.", "Yes.", "Perhaps."))

    async def answer(query: str) -> str:
        return next(texts)

    collector = TraceCollector(tmp_path / "rl_traces")
    collector.start_trace("s1", "Open?")
    run = collector.finish_trace("From nine.")
    (group,) = GRPODatasetBuilder().build_synthetic_groups([run], answer, num_generations=4)
    assert group.completions == ["Yes.", "No.", "Yes.", "Perhaps."]


def test_runs_with_the_same_id_keep_their_own_rewards() -> None:
    runs = [
        ExecutionTrace("same", user_query="Sunday?", final_response="Closed.", label=True),
        ExecutionTrace("same", user_query="Sunday?", final_response="Open.", label=False),
    ]
    (example,) = GRPODatasetBuilder().build_dataset(runs)
    assert example.completions == ["Closed.", "Open."]
    assert example.rewards == [1.0, -1.0]


def test_an_empty_answer_that_nobody_labelled_is_no_example() -> None:
    empty = ExecutionTrace("1", user_query="Sunday?", final_response=" \n")
    answered = ExecutionTrace("2", user_query="Sunday?", final_response="Closed.")
    assert KTODatasetBuilder().trace_to_example(empty) is None
    assert GRPODatasetBuilder().build_dataset([empty, answered]) == []


def test_an_empty_answer_keeps_the_label_of_a_person() -> None:
    empty = ExecutionTrace("1", user_query="Sunday?", final_response="", label=False)
    assert KTODatasetBuilder().trace_to_example(empty) == KTOExample("User: Sunday?", "", False)


@pytest.mark.parametrize("form", ["jsonl", "json"])
def test_a_lone_surrogate_is_saved_and_read_again(tmp_path: Path, form: str) -> None:
    examples = [KTOExample("q \ud800", "caf\u00e9 \\ud800", True)]
    builder = KTODatasetBuilder()
    path = tmp_path / f"examples.{form}"
    builder.save_dataset(examples, path, form)
    assert builder.load_dataset(path) == examples


@pytest.mark.parametrize(
    ("name", "text"), [("rows.jsonl", "3\n"), ("rows.json", "[3]"), ("rows.json", "{}")]
)
def test_what_holds_no_examples_is_refused_with_a_reason(
    tmp_path: Path, name: str, text: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError, match=r"it is not an object|it is not a list"):
        KTODatasetBuilder().load_dataset(path)


KTO = {"prompt": "User: Käse?", "completion": "Ja.", "label": True}
GRPO = {"prompt": "User: Käse?", "completions": ["Ja.", "Nein."], "rewards": [1.0, -1.0]}


@pytest.mark.parametrize(
    ("method", "example", "why"),
    [
        ("kto", KTO | {"label": None}, "label None is neither true nor false"),
        ("kto", KTO | {"label": "False"}, "label 'False' is neither true nor false"),
        ("kto", KTO | {"prompt": None}, "prompt None is no text"),
        ("kto", KTO | {"completion": 3}, "completion 3 is no text"),
        ("kto", {"prompt": "a", "completion": "b"}, "it has no 'label'"),
        ("kto", 3, "it is not an object"),
        ("kto", KTO | {"completion": "half \ud800"}, "it is no JSON"),
        ("grpo", GRPO | {"rewards": [1.0]}, "2 completions and 1 rewards"),
        ("grpo", GRPO | {"completions": [], "rewards": []}, "no completions"),
        ("grpo", GRPO | {"rewards": [1.0, math.nan]}, "reward nan is no number"),
        ("grpo", GRPO | {"rewards": [1.0, None]}, "reward None is no number"),
        ("grpo", GRPO | {"completions": ["Ja.", None]}, "completion None is no text"),
    ],
)
def test_an_example_that_cannot_be_trained_on_is_refused_with_a_reason(
    tmp_path: Path, method: str, example: Any, why: str
) -> None:
    trainer = RLTrainer(TrainingConfig("no-base", str(tmp_path), method))
    with pytest.raises(InputError, match=why):
        trainer.train([KTO if method == "kto" else GRPO, example])


def test_no_examples_are_no_training(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing to train on"):
        RLTrainer(TrainingConfig("no-base", str(tmp_path), "kto")).train([])


@pytest.fixture
def gguf(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The precisions that were converted to: a header without any values stands for a file."""
    converted: list[str] = []

    def convert(
        exporter: GGUFExporter, quantization: str = "Q4_K_M", output_name: str | None = None
    ) -> str:
        converted.append(quantization)
        path = exporter.output_dir / (output_name or f"model-{quantization}.gguf")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(16))
        return str(path)

    monkeypatch.setattr(GGUFExporter, "convert", convert)
    return converted


def test_without_an_ollama_or_a_known_profile_nothing_is_converted(
    tmp_path: Path, gguf: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:9")
    pipeline = ExportPipeline(tmp_path / "model", host="127.0.0.1:9")
    assert "nothing answers there" in pipeline.run("f16")["error"]
    assert "there is no such profile" in pipeline.run("f16", hosting_profile="raizen")["error"]
    exported = command_center.export_to_ollama(tmp_path / "model", quantization="f16")
    assert not exported.success and gguf == []


def test_a_hosting_profile_goes_with_the_model(tmp_path: Path, gguf: list[str]) -> None:
    # from 0.30 on Ollama rewrites model files where llama-quantize is installed, and a bare header
    # is no model
    with OllamaEmulator(tmp_path / "ollama", "0.29.0") as server:
        results = ExportPipeline(tmp_path / "model", "toolbox-isaa", host=server.url).run(
            "f16", "Du", hosting_profile="ryzen"
        )
        assert results["success"], results["error"]
        shown = json.dumps(server.show("toolbox-isaa"))
    assert gguf == ["f16"] and "num_thread" in shown and "num_gpu" in shown
