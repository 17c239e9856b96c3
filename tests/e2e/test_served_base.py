"""A person with a model in a GGUF file or in Ollama and a table of thumbs: an adapter over that
very file, compared in llama.cpp and served there."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.command_line import Run
from tests.models.tiny_models import tiny_tokenizer
from tests.servers.llama_tools import needs, wide_base
from tests.servers.ollama_server import OllamaEmulator
from thumbwheel.core import ids
from thumbwheel.llm.convert import convert
from thumbwheel.llm.library import quantize
from thumbwheel.models.gguf import base
from thumbwheel.models.ollama_store import MODEL

pytestmark = [pytest.mark.slow, pytest.mark.tools]

RATED = (("Yes.", "up"), ("No.", "up"), ("Yes.", "up"), ("No.", "down"))
THUMBS = "question,answer,thumb\n" + "".join(
    f"Is number {number} even?,{','.join(RATED[number % 4])}\n" for number in range(40)
)
AGENT = ("--agent", "support")
QUICK = ("--max-steps", "6", "--learning-rate", "0.02")


@pytest.fixture(autouse=True)
def _tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("converter", "library", "bindings", "llama-server")
    monkeypatch.setattr(base, "cache_folder", lambda: tmp_path / "cache")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model in Q8_0, as people have larger ones."""
    folder = tmp_path_factory.mktemp("model")
    original = wide_base(folder / "base", "llama", tokenizer=tiny_tokenizer())
    convert(original, folder / "F16.gguf", "F16", "llama", [2])
    quantize(folder / "F16.gguf", folder / "tiny-Q8_0.gguf", "Q8_0")
    return folder / "tiny-Q8_0.gguf"


def run_json(run: Run, *arguments: str) -> Any:
    code, out, err = run(*arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def as_ollama_has_it(file: Path, folder: Path) -> str:
    """Put a GGUF file into a folder in Ollama's layout, as the model `tiny`; returns its hash."""
    sha256 = ids.file_hash(file)
    manifest = folder / "manifests/registry.ollama.ai/library/tiny/latest"
    manifest.parent.mkdir(parents=True)
    layer = {"mediaType": MODEL, "digest": f"sha256:{sha256}", "size": file.stat().st_size}
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": [layer]}))
    (folder / "blobs").mkdir()
    os.link(file, folder / "blobs" / f"sha256-{sha256}")
    return sha256


def test_four_commands_from_thumbs_to_an_adapter_in_ollama(
    command_line: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "ollama-models"
    sha256 = as_ollama_has_it(model, store)
    blob = store / "blobs" / f"sha256-{sha256}"
    before = (blob.stat().st_mtime_ns, sorted(store.rglob("*")))
    monkeypatch.setenv("OLLAMA_MODELS", str(store))
    (tmp_path / "thumbs.csv").write_text(THUMBS)
    with OllamaEmulator(tmp_path / "server", "0.24.0") as ollama:
        os.link(blob, ollama.blobs / blob.name)

        run_json(command_line, "import", "csv", str(tmp_path / "thumbs.csv"), *AGENT)
        trained = run_json(command_line, "train", "sft", *AGENT, "--base", "ollama:tiny", *QUICK)
        exported = run_json(command_line, "export", "latest", *AGENT, "--to", str(tmp_path / "out"))
        deployed = run_json(
            command_line,
            *("deploy", "latest", *AGENT, "--target", "ollama", "--alias", "none"),
            *("--set", f"host={ollama.url}", "--set", "context=256", "--set", "threads=1"),
        )

        # the adapter alone, compared over the file that is served
        assert trained["version"] == "v1"
        assert (exported["format"], exported["quant"]) == ("lora_gguf", "F32")
        (file,) = (tmp_path / "out").glob("*.gguf")
        assert file.stat().st_size < model.stat().st_size / 2
        parity = exported["parity"]
        assert parity["dtype"] == "F32 over Q8_0"
        assert parity["same_prompts"] and parity["same_text"]
        assert 0 < parity["mean_kl"] < 0.02 < parity["effect_kl"]

        # Ollama has it over that very blob, which was sent to nobody and changed by nobody
        manifest = json.loads(ollama.path_of("support-v1").read_text())
        assert manifest["model"] == f"sha256:{sha256}"
        assert manifest["adapter"] == f"sha256:{ids.file_hash(file)}"
        assert f"POST /api/blobs/sha256:{sha256}" not in ollama.seen
        assert (blob.stat().st_mtime_ns, sorted(store.rglob("*"))) == before
        assert deployed["state"] == "warm"
        body = {
            "model": "support-v1",
            "messages": [{"role": "user", "content": "Is number 2 even?"}],
            "temperature": 0,
            "max_tokens": 8,
        }
        reply = httpx2.post(f"{ollama.url}/v1/chat/completions", json=body, timeout=60)
        assert reply.status_code == 200


def test_a_file_is_served_by_llama_server_with_the_adapter(
    command_line: Run, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "thumbs.csv").write_text(THUMBS)
    run_json(command_line, "import", "csv", str(tmp_path / "thumbs.csv"), *AGENT)
    run_json(command_line, "train", "sft", *AGENT, "--base", str(model), *QUICK)
    deployed = run_json(
        command_line,
        *("deploy", "latest", *AGENT, "--target", "llamacpp", "--alias", "none"),
        *("--set", "context=256", "--set", "threads=1"),
    )
    try:
        presets = next(tmp_path.rglob("presets.ini"), None) or next(
            Path(os.environ["THUMBWHEEL_HOME"]).rglob("presets.ini")
        )
        section = presets.read_text()
        assert f"model = {model}" in section
        assert re.search(r"lora = .*adapter-F32\.gguf", section)
        assert deployed["state"] == "warm"
    finally:
        command_line("deployments", *AGENT, "--stop")


def test_a_prompt_with_other_tokens_is_told_before_anything_is_converted(
    command_line: Run, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "thumbs.csv").write_text(THUMBS)
    run_json(command_line, "import", "csv", str(tmp_path / "thumbs.csv"), *AGENT)
    run_json(command_line, "train", "sft", *AGENT, "--base", str(model), *QUICK)
    # as if the base had been made with a tokenizer that joins digits
    folder = base.folder_of(model)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["pre_tokenizer"]["pretokenizers"][0] = {
        "type": "Split",
        "pattern": {"Regex": r"\S"},
        "behavior": "Isolated",
        "invert": False,
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    to = tmp_path / "out"
    code, _, err = command_line("export", "latest", *AGENT, "--to", str(to))
    assert code == 5
    assert "a prompt has tokens that differ from training: '" in err
    assert "in llama.cpp" in err and "Nothing was converted" in err
    assert "finer precision" not in err and "comparing" not in err
    assert not to.exists()
