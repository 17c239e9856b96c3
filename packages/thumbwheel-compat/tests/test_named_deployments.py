"""Commands that docs/40-migrating.md names for serving, run as they stand there against a server
that answers as Ollama does: the hosting profiles, the names, and the way back."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from test_migrating import WORDS
from tests.approvals import approve
from tests.command_line import Run
from tests.models.tiny_models import tiny_adapter, tuned_version
from tests.servers.llama_tools import needs, wide_base
from tests.servers.ollama_server import OllamaEmulator
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.hardware import machine
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.types import Basis

Named = Callable[..., Any]
AGENT = "support"
PROFILE = "thumbwheel deploy VERSION --agent A --target ollama --set profile=ryzen_optimized"
CONTEXTS = {"ryzen_optimized": 4096, "gpu_auto": 8192, "apple_silicon": 8192, "cpu_auto": None}
"""Profile -> tokens of an answer with its prompt; None depends on the memory."""

pytestmark = [pytest.mark.slow, pytest.mark.tools]


@pytest.fixture(scope="module")
def tuned_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with two approved versions."""
    needs("converter", "library", "bindings", "llama-server")
    folder = tmp_path_factory.mktemp("tuned")
    base = wide_base(folder / "base", max_position_embeddings=8192)
    with Workspace.open(Home(folder / "home"), Sources({}, "", {})) as ws:
        for seed in (1, 2):
            adapter = tiny_adapter(base, folder / f"adapter{seed}", seed=seed)
            version = tuned_version(ws, base, adapter, AGENT)
            approve(ws, version, Basis.GOLD)
    return folder / "home"


@pytest.fixture(scope="module")
def ollama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OllamaEmulator]:
    with OllamaEmulator(tmp_path_factory.mktemp("ollama")) as server:
        yield server


@pytest.fixture
def named(
    command_line: Run, tuned_home: Path, ollama: OllamaEmulator, monkeypatch: pytest.MonkeyPatch
) -> Named:
    """Return a function that runs a command of the page in that home, and returns its JSON."""
    monkeypatch.setenv("THUMBWHEEL_HOME", str(tuned_home))
    monkeypatch.setenv("OLLAMA_HOST", ollama.url)

    def run(command: str, *more: str, **names: str) -> Any:
        assert command in WORDS, f"the page does not name {command}"
        values = {"A": AGENT, "VERSION": "v1"} | names
        arguments = [values.get(part, part) for part in shlex.split(command)[1:]]
        code, out, err = command_line(*arguments, *more, "--json")
        assert code == 0, (command, err)
        return json.loads(out)

    return run


@pytest.mark.parametrize("profile", [*CONTEXTS, "auto"])
def test_a_profile_is_set_in_the_model(profile: str, named: Named, ollama: OllamaEmulator) -> None:
    named(PROFILE, "--set", f"profile={profile}", "--set", f"name=hosted-{profile}")
    parameters = ollama.manifest(f"hosted-{profile}")["parameters"]
    context = CONTEXTS.get(profile)
    if context is not None:
        assert parameters["num_ctx"] == context
    if profile in ("ryzen_optimized", "cpu_auto"):
        cores = machine().cores or machine().threads
        assert parameters["num_gpu"] == 0
        assert parameters["num_thread"] == max(1, min(cores - 2, machine().threads))
    if profile in ("gpu_auto", "apple_silicon"):
        # Ollama knows the size of the model and of the accelerator
        assert "num_gpu" not in parameters and "num_thread" not in parameters


@pytest.mark.parametrize("name", ["toolbox-A", "cc-widget-selector"])
def test_a_model_has_the_name_that_was_chosen(
    name: str, named: Named, ollama: OllamaEmulator
) -> None:
    command = f"thumbwheel deploy VERSION --agent A --target ollama --set name={name}"
    named(command)
    assert f"{name}:latest" in [entry["name"] for entry in ollama.tags()["models"]]


def test_a_rollback_is_one_command(named: Named, ollama: OllamaEmulator) -> None:
    deploy = "thumbwheel deploy VERSION --agent A --target ollama"
    for version in ("v1", "v2"):
        named(deploy, VERSION=version)

    def live() -> str:
        rows = named("thumbwheel deployments --agent A")
        (version,) = [row["version"] for row in rows if "live" in row["aliases"]]
        return str(version)

    assert live() == "v2"
    named("thumbwheel rollback --agent A")
    assert live() == "v1"
    named("thumbwheel promote VERSION --agent A", VERSION="v2")
    assert live() == "v2"
    named("thumbwheel undeploy VERSION --agent A")
    assert [row["version"] for row in named("thumbwheel deployments --agent A")] == ["v2"]
    switches = named("thumbwheel deployments --agent A --history")["switches"]
    assert len(switches) >= 4


def test_a_modelfile_is_written(named: Named, tmp_path: Path) -> None:
    written = named("thumbwheel modelfile VERSION --agent A", "--system", "Be brief.")
    assert written["system"] == "Be brief." and written["template"]
    assert os.path.isfile(written["base"])
    assert written["environment"]["OLLAMA_MAX_LOADED_MODELS"] == "2"
