"""The ollama target against the emulator: what it sends, what it refuses, what a failure leaves.
Real answers: test_ollama_answers.py."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.servers.ollama_server import OllamaEmulator
from thumbwheel.core.errors import ConfigError, Conflict, ModelError, NotFound, StorageError
from thumbwheel.deploy import modelfile
from thumbwheel.deploy.ollama_api import OllamaServer, address
from thumbwheel.deploy.targets.ollama import OLLAMA, OllamaConfig
from thumbwheel.deploy.types import Endpoint, Package
from thumbwheel.export.types import GGUF_ADAPTER, GGUF_MODEL, ModelKind


def gguf(path: Path, **metadata: str) -> str:
    """A GGUF file that has nothing but metadata; its sha256."""
    text = lambda part: struct.pack("<Q", len(part)) + part.encode()  # noqa: E731
    pairs = b"".join(
        text(name.replace("__", ".")) + struct.pack("<I", 8) + text(value)
        for name, value in metadata.items()
    )
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(metadata)) + pairs)
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def package(tmp_path: Path) -> Package:
    digest = gguf(tmp_path / "model-F16.gguf", general__architecture="qwen2")
    return Package(
        agent="support",
        version="v3",
        name="support-v3",
        kind=GGUF_MODEL,
        folder=tmp_path,
        files={"model-F16.gguf": digest},
        base=tmp_path,
        base_fingerprint=None,
        tokenizer=tmp_path,
        state_folder=tmp_path / "place",
        stops=("<|im_end|>",),
    )


@pytest.fixture
def ollama(tmp_path: Path) -> Iterator[OllamaEmulator]:
    with OllamaEmulator(tmp_path / "ollama", "0.29.0") as emulator:
        yield emulator


def test_addresses_are_read_as_ollama_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OLLAMA_HOST", raising=False)
    assert address(None) == "http://127.0.0.1:11434"
    assert address("0.0.0.0") == "http://127.0.0.1:11434"
    assert address("gpu-box:8080") == "http://gpu-box:8080"
    assert address("http://gpu-box/") == "http://gpu-box:80"
    assert address("https://gpu-box") == "https://gpu-box:443"
    monkeypatch.setenv("OLLAMA_HOST", '"10.0.0.7"')
    assert address(None) == "http://10.0.0.7:11434"
    with pytest.raises(ConfigError, match="host:port"):
        address("a:b:c")


def test_one_that_is_not_there_is_asked_before_anything_is_converted() -> None:
    with pytest.raises(ModelError, match="nothing answers there"):
        OLLAMA.check(OllamaConfig(host="127.0.0.1:9", profile="cpu_auto"))


def test_one_that_is_there_is_fine(ollama: OllamaEmulator) -> None:
    OLLAMA.check(OllamaConfig(host=ollama.url, profile="cpu_auto"))


def test_where_none_runs_the_error_says_how_to_start_it(package: Package) -> None:
    settings = OllamaConfig(host="127.0.0.1:9", profile="cpu_auto")
    with pytest.raises(
        ModelError, match=r"nothing answers there.*OLLAMA_NUM_PARALLEL=\d+ .*ollama serve"
    ):
        OLLAMA.apply(package, settings)
    health = OLLAMA.health(
        Endpoint(
            "http://127.0.0.1:9/v1", "support-v3", {"host": "http://127.0.0.1:9", "digest": "x"}
        )
    )
    assert (health.alive, "nothing answers" in health.why) == (False, True)


@pytest.mark.parametrize(
    ("version", "kind", "why"),
    [
        ("0.5.4", GGUF_MODEL, "Update it to 0.5.5"),
        ("0.34.1", GGUF_ADAPTER, "no longer accepts adapters"),
    ],
)
def test_a_version_that_cannot_do_it_is_refused_before_anything_is_sent(
    package: Package, ollama: OllamaEmulator, version: str, kind: ModelKind, why: str
) -> None:
    ollama.version = version
    with pytest.raises(ModelError, match=why):
        OLLAMA.apply(replace(package, kind=kind), OllamaConfig(host=ollama.url))
    assert ollama.seen == ["GET /api/version"]


def test_a_build_without_a_version_is_the_newest(ollama: OllamaEmulator) -> None:
    ollama.version = "0.0.0"
    with OllamaServer(ollama.url) as server:
        assert server.version() > (1000,)
        ollama.version = "0.33.0-rc2"
        assert server.version() == (0, 33, 0)


def test_a_blob_is_sent_once_and_checked(ollama: OllamaEmulator, tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    digest = gguf(file, general__architecture="qwen2")
    with OllamaServer(ollama.url) as server:
        server.put(file, digest)
        server.put(file, digest)
        assert ollama.seen == [
            f"HEAD /api/blobs/sha256:{digest}",
            f"POST /api/blobs/sha256:{digest}",
            f"HEAD /api/blobs/sha256:{digest}",
        ]
        with pytest.raises(ModelError, match="digest mismatch"):
            server.put(file, "0" * 64)
    assert [path.name for path in ollama.blobs.iterdir()] == [f"sha256-{digest}"]


def test_a_full_disk_and_a_broken_upload_leave_no_blob_in_use_and_the_next_try_works(
    ollama: OllamaEmulator, tmp_path: Path
) -> None:
    file = tmp_path / "m.gguf"
    digest = gguf(file, general__architecture="x" * (4 << 20))
    with OllamaServer(ollama.url) as server:
        ollama.fail = "full disk"
        with pytest.raises(StorageError, match=r"no space left.*OLLAMA_MODELS"):
            server.put(file, digest)
        ollama.fail = "broken upload"
        with pytest.raises(ModelError, match="connection broke"):
            server.put(file, digest)
        assert not ollama.blob(f"sha256:{digest}").exists()
        server.put(file, digest)
        assert ollama.blob(f"sha256:{digest}").read_bytes() == file.read_bytes()


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("error in stream", "unsupported architecture"),
        ("cut stream", "stopped before it was made, after 'writing manifest'"),
    ],
)
def test_success_is_the_last_line_and_nothing_else(
    package: Package, ollama: OllamaEmulator, fault: str, why: str
) -> None:
    digest = package.files["model-F16.gguf"]
    with OllamaServer(ollama.url) as server:
        server.put(package.model, digest)
        ollama.fail = fault
        with pytest.raises(ModelError, match=why):
            server.create("support", {"files": {"m.gguf": f"sha256:{digest}"}})
        assert server.digests() == {}
        assert server.create("support", {"files": {"m.gguf": f"sha256:{digest}"}})[-1] == "success"
        with pytest.raises(ModelError, match="relative"):
            server.create("support", {"files": {"/m.gguf": f"sha256:{digest}"}})


def test_list_show_copy_and_delete(package: Package, ollama: OllamaEmulator) -> None:
    digest = package.files["model-F16.gguf"]
    with OllamaServer(ollama.url) as server:
        server.put(package.model, digest)
        server.create(
            "one",
            {
                "files": {"m.gguf": f"sha256:{digest}"},
                **modelfile.of(package, OllamaConfig(profile="cpu_auto")).fields(),
            },
        )
        shown = server.show("one")
        assert (
            'stop "<|im_end|>"' in shown["parameters"]
            and "repeat_penalty 1.0" in shown["parameters"]
        )
        server.copy("one", "two")
        digests = server.digests()
        assert digests["one:latest"] == digests["two:latest"]
        server.delete("one")
        server.delete("one")
        assert list(server.digests()) == ["two:latest"]
        with pytest.raises(NotFound, match="not found"):
            server.copy("one", "three")
        server.load("one", 0)


def test_something_other_than_ollama_is_said_to_be(tmp_path: Path) -> None:
    from thumbwheel.llm.fake import FakeServer, Reply

    with (
        FakeServer(lambda request: Reply("[]")) as other,
        OllamaServer(other.url.removesuffix("/v1")) as server,
        pytest.raises(ModelError, match="something other than Ollama"),
    ):
        server.show("x")


def test_names_that_are_none_are_refused(package: Package, ollama: OllamaEmulator) -> None:
    with pytest.raises(ConfigError, match="at most 80"):
        OLLAMA.apply(package, OllamaConfig(host=ollama.url, name="../evil"))
    assert ollama.seen == []


def test_the_modelfile_says_where_the_numbers_work(package: Package) -> None:
    settings = OllamaConfig(
        profile="cpu_auto", context=1024, threads=3, gpu_layers=0, temperature=0.5
    )
    text = modelfile.of(
        replace(package, system="Be brief."),
        settings,
        "{{ range .Messages }}{{ .Content }}{{ end }}",
    ).text()
    assert text.splitlines() == [
        f"FROM {package.model}",
        "TEMPLATE {{ range .Messages }}{{ .Content }}{{ end }}",
        "SYSTEM Be brief.",
        "PARAMETER num_ctx 1024",
        "PARAMETER num_thread 3",
        "PARAMETER num_gpu 0",
        "PARAMETER repeat_penalty 1.0",
        "PARAMETER temperature 0.5",
        "PARAMETER stop <|im_end|>",
    ]
    over = replace(package, kind=GGUF_ADAPTER, base=Path("/base.gguf"))
    assert (
        modelfile.of(over, settings)
        .text()
        .startswith(f"FROM /base.gguf\nADAPTER {package.model}\n")
    )


def test_the_record_survives_and_is_json(tmp_path: Path) -> None:
    from thumbwheel.deploy.targets.ollama import OwnedNames

    record = OwnedNames(tmp_path, "http://127.0.0.1:11434")
    record.claim("a:latest", {})
    record.set("a:latest", "x", "d")
    assert record.is_current("a:latest", "x", {"a:latest": "d"}) and not record.is_current(
        "a:latest", "x", {"a:latest": "e"}
    )
    stored = json.loads((tmp_path / "http-127.0.0.1-11434.json").read_text())
    assert stored == {
        "place": str(tmp_path.resolve()),
        "names": {"a:latest": {"from": "x", "digest": "d"}},
    }


def test_a_copied_home_takes_no_name_of_the_original_for_its_own(tmp_path: Path) -> None:
    from thumbwheel.deploy.targets.ollama import OwnedNames

    (tmp_path / "original").mkdir()
    record = OwnedNames(tmp_path / "original", "http://127.0.0.1:11434")
    record.claim("a:latest", {})
    record.set("a:latest", "x", "d")
    shutil.copytree(tmp_path / "original", tmp_path / "copy")
    copy = OwnedNames(tmp_path / "copy", "http://127.0.0.1:11434")
    assert record.of("a:latest") == ["a:latest"] and copy.of("a:latest") == []
    with pytest.raises(Conflict, match="it exists, and Thumbwheel did not create it"):
        copy.claim("a:latest", {"a:latest": "d"})
