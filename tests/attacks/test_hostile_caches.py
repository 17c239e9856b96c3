"""Model caches of this user with files of strangers: whoever may train on one agent gets any
repository of the hub into the cache, and its headers are read for pages that everybody opens."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

from thumbwheel.core.errors import ModelError
from thumbwheel.core.hardware import machine
from thumbwheel.engine import config_check
from thumbwheel.training import base_picker
from thumbwheel.training.base_picker import AvailableBase, available_bases, count_of

SECONDS = 5
"""Of the processor, for a list that has to take milliseconds; the attacks took minutes to hours."""


@pytest.fixture(autouse=True)
def own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the test a hub cache and an Ollama of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.fixture(autouse=True, scope="module")
def imports() -> None:
    """Load the libraries before anything is measured."""
    import huggingface_hub.constants  # noqa: F401

    available_bases(machine())


def in_hub(folder: Path, name: str, *headers: bytes) -> None:
    """Put a model whose safetensors files have these headers into the hub cache."""
    repository = folder / "hub" / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    (snapshot / "config.json").write_text("{}")
    for number, header in enumerate(headers):
        content = len(header).to_bytes(8, "little") + header
        (snapshot / f"model-{number:05}.safetensors").write_bytes(content)


def of_shape(*shape: Any) -> bytes:
    """Return the header of a file with a tensor of this shape."""
    return json.dumps({"weight": {"dtype": "F32", "shape": shape}}).encode()


def listed() -> dict[str, AvailableBase]:
    began = time.process_time()
    bases = available_bases(machine())
    assert time.process_time() - began < SECONDS
    return {base.name: base for base in bases}


SHAPES: dict[str, bytes] = {
    "a product of long numbers": of_shape(*[10**4000] * 4000),
    "two long numbers": of_shape(10**4000, 10**4000),
    "more numbers than a count can have": of_shape(2**40, 2**40),
    "a length below zero": of_shape(-4, 8),
    "a length that is a fraction": of_shape(2.5),
    "a length without end": b'{"weight": {"shape": [Infinity]}}',
    "a length that is text": of_shape("16"),
    "many dimensions": of_shape(*[1] * 1_000_000),
    "a deep header": b'{"weight": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "many tensors": b"{"
    + b",".join(b'"%d":{"shape":[1]}' % number for number in range(1_500_000))
    + b"}",
    "a list": b"[1, 2]",
    "no shape": b'{"weight": {"shape": 3}}',
    "shapes that are objects": b'{"weight": {"shape": {"a": 1}}}',
}


@pytest.mark.parametrize("attack", SHAPES)
def test_no_header_in_the_hub_cache_stops_the_list(attack: str, tmp_path: Path) -> None:
    in_hub(tmp_path, "stranger/model", SHAPES[attack])
    in_hub(tmp_path, "somebody/small", of_shape(1000, 1000))
    bases = listed()
    assert bases["stranger/model"].parameters is None and bases["stranger/model"].fits is None
    assert bases["somebody/small"].parameters == 1_000_000


@pytest.mark.parametrize("attack", sorted({*SHAPES} - {"more numbers than a count can have"}))
def test_no_header_of_an_adapter_or_a_model_keeps_a_job_busy(attack: str, tmp_path: Path) -> None:
    in_hub(tmp_path, "stranger/model", SHAPES[attack])
    (file,) = (tmp_path / "hub").rglob("*.safetensors")
    began = time.process_time()
    with pytest.raises(ModelError, match="is damaged"):
        config_check.stored_shapes(file)
    assert time.process_time() - began < SECONDS


def test_many_files_of_a_model_are_not_read_for_every_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_hub(tmp_path, "somebody/small", of_shape(1000, 1000), of_shape(1000))
    assert listed()["somebody/small"].parameters == 1_001_000

    def unread(file: Path, most_bytes: int) -> list[list[int]]:
        raise AssertionError(f"{file} is read again")

    monkeypatch.setattr(base_picker, "stored_shapes", unread)
    assert listed()["somebody/small"].parameters == 1_001_000


def test_a_file_that_changed_is_read_anew(tmp_path: Path) -> None:
    in_hub(tmp_path, "somebody/small", of_shape(1000, 1000))
    assert listed()["somebody/small"].parameters == 1_000_000
    file = next((tmp_path / "hub").rglob("*.safetensors"))
    header = of_shape(2000, 1000, 1, 1)
    file.write_bytes(len(header).to_bytes(8, "little") + header)
    assert listed()["somebody/small"].parameters == 2_000_000


def test_headers_of_many_files_fill_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_picker, "MOST_HEADERS", 300)
    in_hub(tmp_path, "stranger/model", *[of_shape(1000, 1000)] * 20)
    assert listed()["stranger/model"].parameters is None


@pytest.mark.parametrize("text", ["1.2.3B", ".B", "9" * 5000 + "B", "9" * 400 + "M", "1..2M"])
def test_no_count_of_parameters_stops_the_list(text: str, tmp_path: Path) -> None:
    """Ollama shows what the author of a model wrote."""
    assert count_of(text) is None
    blobs = tmp_path / "ollama" / "blobs"
    blobs.mkdir(parents=True)

    def blob(kind: str, content: str) -> dict[str, Any]:
        digest = hashlib.sha256(content.encode()).hexdigest()
        (blobs / f"sha256-{digest}").write_text(content)
        media_type = f"application/vnd.ollama.image.{kind}"
        return {"mediaType": media_type, "digest": f"sha256:{digest}"}

    config = blob("config", json.dumps({"model_type": text}))
    manifest = {"config": config, "layers": [blob("model", "GGUF")]}
    file = tmp_path / "ollama" / "manifests" / "registry.ollama.ai" / "library" / "m" / "latest"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(manifest))
    assert listed()["ollama:m"].parameters is None
