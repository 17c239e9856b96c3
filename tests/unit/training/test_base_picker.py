"""Bases to choose from: fetched ones, the Hugging Face cache, Ollama; size, licence and fit."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from thumbwheel.core.hardware import machine
from thumbwheel.models.known_bases import KNOWN_BASES
from thumbwheel.training.base_picker import (
    AvailableBase,
    Origin,
    available_bases,
    proposed_base,
)

BASE = next(iter(KNOWN_BASES.values()))


@pytest.fixture(autouse=True)
def nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the test caches of its own: nothing fetched, no hub cache, no Ollama."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


def by_name() -> dict[str, AvailableBase]:
    return {base.name: base for base in available_bases(machine())}


def test_a_base_to_be_fetched_is_proposed_where_nothing_is_here() -> None:
    bases = available_bases(machine())
    assert [base.name for base in bases] == [BASE.id]
    assert bases[0].origin is Origin.TO_FETCH and bases[0].license == "Apache-2.0"
    assert bases[0].fits and proposed_base(bases) == bases[0]


def in_hub(folder: Path, name: str, parameters: int) -> None:
    """Put a model with so many parameters into a hub cache."""
    repository = folder / "hub" / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    tensor = {"dtype": "BF16", "shape": [parameters // 1000, 1000], "data_offsets": [0, 0]}
    header = json.dumps({"weight": tensor, "__metadata__": {"format": "pt"}}).encode()
    (snapshot / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    (snapshot / "config.json").write_text("{}")
    (snapshot / "README.md").write_text("---\nlicense: mit\nlanguage: en\n---\n# A model\n")


def test_the_hub_cache_is_read(tmp_path: Path) -> None:
    in_hub(tmp_path, "somebody/small", 360_000_000)
    in_hub(tmp_path, "somebody/huge", 400_000_000_000)
    bases = by_name()
    small, huge = bases["somebody/small"], bases["somebody/huge"]
    assert (small.parameters, small.license, small.origin) == (360_000_000, "mit", Origin.HUB)
    assert small.fits and not huge.fits
    assert proposed_base(available_bases(machine())) == small


def in_ollama(folder: Path, name: str, model_type: str) -> None:
    """Put a model into Ollama's folder as `ollama pull` does."""
    blobs = folder / "ollama" / "blobs"
    blobs.mkdir(parents=True, exist_ok=True)

    def layer(kind: str, content: str) -> dict[str, Any]:
        digest = hashlib.sha256(content.encode()).hexdigest()
        (blobs / f"sha256-{digest}").write_text(content)
        media_type = f"application/vnd.ollama.image.{kind}"
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    manifest = {
        "config": layer("config", json.dumps({"model_type": model_type, "file_type": "Q4_K_M"})),
        "layers": [layer("model", f"GGUF {name}"), layer("license", "\nMIT License\n\nCopyright")],
    }
    manifests = folder / "ollama" / "manifests" / "registry.ollama.ai" / "library" / name
    manifests.mkdir(parents=True)
    (manifests / "latest").write_text(json.dumps(manifest))


def test_ollama_is_read(tmp_path: Path) -> None:
    in_ollama(tmp_path, "small", "360.2M")
    in_ollama(tmp_path, "huge", "405B")
    bases = by_name()
    small = bases["ollama:small"]
    assert (small.parameters, small.license, small.fits) == (360_200_000, "MIT License", True)
    assert bases["ollama:huge"].fits is False


def test_a_damaged_cache_hides_no_other_base(tmp_path: Path) -> None:
    in_hub(tmp_path, "somebody/small", 360_000_000)
    next((tmp_path / "hub").rglob("model.safetensors")).write_bytes(b"\xff" * 40)
    in_ollama(tmp_path, "small", "360M")
    next((tmp_path / "ollama").rglob("latest")).write_text("{")
    damaged = by_name()["somebody/small"]
    assert damaged.parameters is None and damaged.fits is None
    assert proposed_base(available_bases(machine())) == by_name()[BASE.id]


@pytest.mark.slow
def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    in_hub(tmp_path, "somebody/small", 360_000_000)
    command = [sys.executable, "-P", "-m", "thumbwheel", "--home", str(tmp_path / "home")]

    def output(*arguments: str) -> str:
        done = subprocess.run(
            [*command, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout + done.stderr

    shown = output("models", "available")
    assert "somebody/small" in shown and "proposed: --base somebody/small" in shown

    first = json.loads(subprocess.check_output([*command, "init", "--json"], cwd=tmp_path))
    assert first["base"] == "somebody/small" and first["settings_written"]
    assert "base: somebody/small" in (tmp_path / "thumbwheel.yaml").read_text()
    (tmp_path / "thumbwheel.yaml").write_text("loop: {base: mine}\n")
    assert "left as it is" in output("init", "--agent", "support")
    assert (tmp_path / "thumbwheel.yaml").read_text() == "loop: {base: mine}\n"
    assert (tmp_path / "home" / "thumbwheel.db").is_file()
