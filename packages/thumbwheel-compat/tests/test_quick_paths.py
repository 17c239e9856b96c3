"""The short ways of the systems that this one replaces: one call, or one command, from feedback to
a model that answers."""

from __future__ import annotations

import json
from pathlib import Path

import httpx2
import pytest

from tests.command_line import Run
from tests.servers.llama_tools import needs
from tests.servers.ollama_server import OllamaEmulator
from tests.worlds.animals_world import LEARNS, PLACES, write_world
from thumbwheel.compat import TrainingPipeline, export_to_ollama

NOWHERE = "127.0.0.1:1"


@pytest.fixture
def imported_home(command_line: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files imported into the home of the command line; Ollama is nowhere. The base is random: it
    has no general skill to lose."""
    write_world(tmp_path)
    monkeypatch.setenv("OLLAMA_HOST", NOWHERE)
    for path, more in (("world.jsonl", ()), ("gold.jsonl", ("--gold",))):
        assert command_line("import", "jsonl", path, "--agent", "animals", *more)[0] == 0
    declared = (
        "--margin-anchors",
        "9",
        "--max-growth",
        "99",
    )  # the base is random: its answers have any length
    assert command_line("gate", "declare", "--agent", "animals", *declared)[0] == 0
    return tmp_path


def ask(server: OllamaEmulator, model: str, question: str) -> str:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": 20,
        "temperature": 0,
    }
    answer: str = httpx2.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).json()[
        "choices"
    ][0]["message"]["content"]
    return answer


@pytest.mark.repeat
def test_a_pipeline_ends_with_a_model_that_answers_in_ollama(
    imported_home: Path, command_line: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("converter", "library", "bindings", "llama-server")
    with OllamaEmulator(imported_home / "ollama") as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        results = TrainingPipeline(
            "animals", "base", method="sft", settings=LEARNS
        ).run_full_pipeline(deploy_ollama=True)
        assert ask(server, "toolbox-animals", "fox 301") == PLACES["fox"]
    assert (
        results["success"]
        and "error" not in results
        and results["ollama_model"] == "toolbox-animals"
    )
    assert (
        json.loads((imported_home / "rl_training/animals/pipeline_results.json").read_text())
        == results
    )
    assert (Path(results["model_path"]) / "model.safetensors").is_file()
    assert results["training"].keys() == {
        "method",
        "training_time_seconds",
        "train_loss",
        "epochs",
        "total_steps",
    }
    assert (
        results["training"]["total_steps"] == 60
        and results["dataset_size"] > 60
        and results["start_time"] < results["end_time"]
    )
    (live,) = json.loads(command_line("deployments", "--agent", "animals", "--json")[1])
    assert (live["version"], live["target"], live["aliases"]) == ("v1", "ollama", ["live"])


@pytest.mark.slow
def test_a_command_ends_with_a_model_that_answers_in_ollama(
    imported_home: Path, command_line: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("converter", "library", "bindings", "llama-server")
    settings = [
        part
        for name, value in LEARNS.items()
        for part in (f"--{name.replace('_', '-')}", str(value))
    ]
    ship = ("--export", "--quant", "f16", "--register-ollama", "--model-name", "places", "--json")
    with OllamaEmulator(imported_home / "ollama") as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        code, out, err = command_line(
            "train", "sft", "--agent", "animals", "--base", "base", *settings, *ship
        )
        assert code == 0, err
        assert ask(server, "places", "fox 301") == PLACES["fox"]
    release = json.loads(out)["release"]
    (gguf,) = release["exports"]
    assert (release["version"], release["verdict"], gguf["quant"]) == ("v1", "approved", "F16")
    assert [path.name for path in Path(gguf["path"]).glob("*.gguf")] == ["model-F16.gguf"]
    assert Path(release["report"]).is_file()
    (live,) = json.loads(command_line("deployments", "--agent", "animals", "--json")[1])
    assert (live["version"], live["target"], live["aliases"]) == ("v1", "ollama", ["live"])


def test_a_failure_is_in_the_results_and_nothing_is_trained_in_vain(imported_home: Path) -> None:
    results = TrainingPipeline("animals", "base", method="sft").run_full_pipeline(
        deploy_ollama=True
    )
    assert not results["success"] and results["training"] is None and results["model_path"] is None
    assert "thumbwheel tools install" in results["error"] or "ollama serve" in results["error"]
    assert (
        json.loads((imported_home / "rl_training/animals/pipeline_results.json").read_text())[
            "error"
        ]
        == results["error"]
    )
    unknown = TrainingPipeline("animals", "base", method="sft2").run_full_pipeline()
    assert not unknown["success"] and "sft" in unknown["error"]
    none = export_to_ollama("animals", "v7")
    assert not none.success and "v7" in str(none.error_message) and none.gguf_path is None


def test_options_that_cannot_be_met_end_the_command_before_it_trains(
    imported_home: Path, command_line: Run
) -> None:
    train = ("train", "sft", "--agent", "animals", "--base", "base")
    code, _, err = command_line(*train, "--register-ollama")
    assert code == 2 and "--export" in err
    code, _, err = command_line(*train, "--export", "--register-ollama")
    assert code in (2, 5) and ("thumbwheel tools install" in err or "ollama serve" in err)
    assert not list((imported_home / "home" / "runs").iterdir())
    assert "--export" not in command_line("train", "reward", "--help")[1]


@pytest.mark.slow
def test_a_rejected_candidate_is_not_written(imported_home: Path, command_line: Run) -> None:
    needs("converter")
    code, out, _ = command_line(
        "train",
        "sft",
        "--agent",
        "animals",
        "--base",
        "base",
        "--max-steps",
        "1",
        "--export",
        "--json",
    )
    result = json.loads(out)
    assert code == 1 and result["state"] == "finished"
    assert (
        result["release"]["verdict"] == "rejected"
        and result["release"]["exports"] == []
        and not list(imported_home.glob("animals-*"))
    )
