"""Models of the local Ollama: found by name, read only, and no manifest decides which file is
read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from thumbwheel.core.errors import ModelError, NotFound
from thumbwheel.models.ollama_store import ADAPTER, MODEL, find_model

DIGEST = "a" * 64


def manifest(digest: str = f"sha256:{DIGEST}", **more: Any) -> dict[str, Any]:
    layer = {"mediaType": MODEL, "digest": digest, "size": 4}
    template = {
        "mediaType": "application/vnd.ollama.image.template",
        "digest": "sha256:" + "b" * 64,
    }
    return {"schemaVersion": 2, "layers": [layer, template]} | more


def add(folder: Path, name: str, content: Any) -> Path:
    path = folder / "manifests" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "models"
    (folder / "blobs").mkdir(parents=True)
    (folder / "blobs" / f"sha256-{DIGEST}").write_bytes(b"GGUF")
    add(folder, "registry.ollama.ai/library/llama3.2/latest", manifest())
    add(folder, "registry.ollama.ai/library/llama3.2/3b", manifest())
    add(folder, "registry.ollama.ai/ada/tuned/latest", manifest())
    add(folder, "hf.co/someone/Some-GGUF/Q4_K_M", manifest())
    monkeypatch.setenv("OLLAMA_MODELS", str(folder))
    return folder


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("llama3.2", "llama3.2"),
        ("llama3.2:latest", "llama3.2"),
        ("library/llama3.2", "llama3.2"),
        ("llama3.2:3b", "llama3.2:3b"),
        ("ada/tuned", "ada/tuned"),
        ("registry.ollama.ai/ada/tuned:latest", "ada/tuned"),
        ("hf.co/someone/Some-GGUF:Q4_K_M", "hf.co/someone/Some-GGUF:Q4_K_M"),
    ],
)
def test_a_name_leads_to_its_blob(name: str, short: str, store: Path) -> None:
    model = find_model(name)
    assert (model.name, model.sha256) == (short, DIGEST)
    assert model.blob == store / "blobs" / f"sha256-{DIGEST}"


def test_the_folder_of_the_user_is_found(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = store.parent / "home"
    (home / ".ollama").mkdir(parents=True)
    store.rename(home / ".ollama" / "models")
    monkeypatch.delenv("OLLAMA_MODELS")
    monkeypatch.setenv("HOME", str(home))
    assert find_model("llama3.2").blob.is_relative_to(home)


def test_a_name_that_is_not_there_names_the_nearest(store: Path) -> None:
    with pytest.raises(NotFound, match=r"Did you mean 'llama3.2'\? Get it: ollama pull llama3.1"):
        find_model("llama3.1")
    for name in ("", "../../etc/passwd", "/etc/passwd", "a/../b", "a:..", "..", "a//b", "a/b/c/d"):
        with pytest.raises(NotFound):
            find_model(name)


@pytest.mark.parametrize(
    "digest",
    [
        "sha256:" + "A" * 64,
        "sha256:" + "a" * 63,
        "sha256:../../../../etc/passwd",
        f"sha256:{DIGEST}/../x",
        f"sha256-{DIGEST}",
        f"md5:{DIGEST}",
        "/etc/passwd",
        "",
        None,
        5,
    ],
)
def test_a_manifest_names_hashes_and_nothing_else(digest: Any, store: Path) -> None:
    add(store, "registry.ollama.ai/library/bad/latest", manifest(digest))
    with pytest.raises(ModelError, match="its manifest names"):
        find_model("bad")


def test_only_regular_files_are_read(store: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"GGUF secret")
    for number, kind in enumerate(("link", "fifo", "folder", "none")):
        digest = str(number) * 64
        blob = store / "blobs" / f"sha256-{digest}"
        if kind == "link":
            blob.symlink_to(secret)
        elif kind == "fifo":
            os.mkfifo(blob)
        elif kind == "folder":
            blob.mkdir()
        add(store, f"registry.ollama.ai/library/{kind}/latest", manifest(f"sha256:{digest}"))
        with pytest.raises(ModelError, match="is no regular file"):
            find_model(kind)
    path = store / "manifests/registry.ollama.ai/library/pipe/latest"
    path.parent.mkdir()
    os.mkfifo(path)
    with pytest.raises(ModelError, match="is no regular file, or too large"):
        find_model("pipe")


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 50_000, '{"layers": 5}', '{"layers": [5]}'])
def test_a_manifest_that_is_none_is_refused(text: str, store: Path) -> None:
    add(store, "registry.ollama.ai/library/bad/latest", {}).write_text(text)
    with pytest.raises(ModelError, match="its manifest"):
        find_model("bad")


def test_what_is_more_or_less_than_one_base_is_refused(store: Path) -> None:
    layer = {"mediaType": MODEL, "digest": f"sha256:{DIGEST}"}
    adapter = {"mediaType": ADAPTER, "digest": f"sha256:{DIGEST}"}
    for layers, why in (
        ([layer, adapter], "a base with an adapter"),
        ([layer, layer], "weights are 2 files"),
        ([], "weights are 0 files"),
    ):
        add(store, "registry.ollama.ai/library/other/latest", {"layers": layers})
        with pytest.raises(ModelError, match=why):
            find_model("other")


def test_without_ollama_the_setting_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    with pytest.raises(NotFound, match="Set OLLAMA_MODELS"):
        find_model("llama3.2")
