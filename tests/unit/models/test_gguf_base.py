"""A GGUF file as a base: made into a folder once, under the hash of its content, from wherever it
lies."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from tests.models.real_base import SMOLLM2, smollm2
from tests.models.tiny_models import tiny_base
from tests.servers.llama_tools import needs
from thumbwheel.core.errors import InputError, ModelError, StorageError
from thumbwheel.engine.base_check import find_base
from thumbwheel.engine.load import load_base
from thumbwheel.engine.prompt import PromptBuilder
from thumbwheel.llm.convert import convert
from thumbwheel.llm.library import Model
from thumbwheel.models.base import gguf_file, loadable, locate, name_of
from thumbwheel.models.gguf import base
from thumbwheel.models.known_bases import KNOWN_BASES
from thumbwheel.models.ollama_store import MODEL

pytestmark = [pytest.mark.tools, pytest.mark.slow]


@pytest.fixture(autouse=True)
def _tools() -> None:
    needs("converter", "library", "bindings")


@pytest.fixture(scope="module")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The GGUF file of a tiny model."""
    folder = tmp_path_factory.mktemp("tiny_file")
    tiny_base(folder / "base", "llama")
    convert(folder / "base", folder / "tiny.gguf", "F16", "llama", [2])
    return folder / "tiny.gguf"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(base, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache"


def test_a_file_is_a_base_and_is_read_once(
    tiny_file: Path, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.gguf"
    shutil.copyfile(tiny_file, file)
    name, folder = locate(str(file))
    assert (name, folder.parent) == (str(file), cache)
    messages = capsys.readouterr().err
    assert "reading mine.gguf" in messages and "F16, 16.1 bits a weight" in messages
    source = base.source_of(folder)
    assert source is not None and source.sha256 == folder.name and source.tokens_compared

    assert locate(str(file)) == (name, folder)
    other = tmp_path / "elsewhere" / "copy.gguf"
    other.parent.mkdir()
    shutil.copyfile(file, other)
    assert locate(str(other)) == (str(other), folder)
    assert "dequantising" not in capsys.readouterr().err
    (tmp_path / "link.gguf").symlink_to(file)
    assert name_of(str(tmp_path / "link.gguf")) == str(file)
    assert loadable(str(file)) == str(folder)
    assert sorted(path.name for path in cache.iterdir()) == [
        folder.name,
        f"{folder.name}.lock",
        base.HASHES,
    ]

    model, tokenizer = load_base(str(folder))
    assert model.dtype == torch.float16
    prompt = PromptBuilder(tokenizer).prompt([{"role": "user", "content": "Grüße 1234"}])
    with Model(file) as served:
        text = "<|im_start|>user\nGrüße 1234<|im_end|>\n<|im_start|>assistant\n"
        assert served.tokens(text, special=True) == prompt


def test_a_file_that_was_changed_is_another_base(
    tiny_file: Path, cache: Path, tmp_path: Path
) -> None:
    file = tmp_path / "model.gguf"
    shutil.copyfile(tiny_file, file)
    first = find_base(str(file), tmp_path / "home")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    second = find_base(str(file), tmp_path / "home")
    assert second.name == first.name
    assert second.folder != first.folder
    assert second.fingerprint != first.fingerprint


def test_a_cut_file_leaves_nothing(tiny_file: Path, cache: Path, tmp_path: Path) -> None:
    file = tmp_path / "cut.gguf"
    file.write_bytes(tiny_file.read_bytes()[:-5000])
    with pytest.raises(ModelError, match="it ends within its tensor"):
        locate(str(file))
    assert not cache.exists() or [path for path in cache.iterdir() if path.is_dir()] == []


def test_a_full_disk_leaves_nothing(
    tiny_file: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(base, "write_model", full)
    with pytest.raises(StorageError, match="No space left"):
        locate(str(tiny_file))
    assert [path for path in cache.iterdir() if path.is_dir()] == []


def test_what_is_neither_folder_nor_gguf_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "model.bin"
    other.write_bytes(b"PK\x03\x04")
    with pytest.raises(ModelError, match="it is no GGUF file"):
        locate(str(other))
    with pytest.raises(ModelError, match="there is no such folder or file"):
        locate(str(tmp_path / "none.gguf"))
    with pytest.raises(InputError, match="blank"):
        locate(" ")


def test_the_real_model_of_ollama_is_the_one_that_was_fetched(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob, sha256 = smollm2(), KNOWN_BASES[SMOLLM2].sha256
    store = tmp_path / "models"
    manifest = store / "manifests/registry.ollama.ai/library/smollm2/135m"
    manifest.parent.mkdir(parents=True)
    (store / "blobs").mkdir()
    layers = [{"mediaType": MODEL, "digest": f"sha256:{sha256}", "size": blob.stat().st_size}]
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    try:
        os.link(blob, store / "blobs" / f"sha256-{sha256}")
    except OSError:
        shutil.copyfile(blob, store / "blobs" / f"sha256-{sha256}")
    monkeypatch.setenv("OLLAMA_MODELS", str(store))

    name, folder = locate("ollama:library/smollm2:135m")
    assert name == "ollama:smollm2:135m"
    assert locate(SMOLLM2) == (SMOLLM2, folder)
    source = base.source_of(folder)
    assert source is not None and source.description == "Q4_1, 5.7 bits a weight"
    assert (source.pre_tokenizer, source.dtype, source.quantised) == ("smollm", "bfloat16", True)
    file = gguf_file(name)
    assert file is not None and file.sha256 == sha256

    model, tokenizer = load_base(str(folder), "float32")
    builder = PromptBuilder(tokenizer)
    prompt = builder.prompt([{"role": "user", "content": "What is the capital of France?"}])
    with torch.no_grad():
        answer = model.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False)
        ours = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
    assert tokenizer.decode(answer[0, len(prompt) :]).startswith("The capital of France is Paris.")
    with Model(blob) as served:
        computed = torch.from_numpy(served.logits([prompt], len(prompt))[0].copy())
    kl = (ours.exp() * (ours - computed.log_softmax(-1))).sum(-1)
    assert float(kl.mean()) < 0.02, (
        "llama.cpp rounds what it multiplies with such weights to 8 bits"
    )

    # the name of a blob is not believed
    other = "0" * 64
    shutil.copyfile(blob, store / "blobs" / f"sha256-{other}")
    layers[0]["digest"] = f"sha256:{other}"
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    with pytest.raises(ModelError, match=f"its hash is sha256:{sha256}, which is not"):
        locate("ollama:smollm2:135m")
