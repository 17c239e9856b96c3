"""The vllm target against a server with vLLM's own routes for adapters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.models.tiny_models import tiny_tokenizer
from tests.servers.vllm_server import VllmServer
from thumbwheel.core.errors import ConfigError, Conflict, ModelError
from thumbwheel.deploy.targets.vllm import VLLM, VllmConfig
from thumbwheel.deploy.types import Package
from thumbwheel.export.types import PEFT_ADAPTER


@pytest.fixture
def vllm(tmp_path: Path) -> Iterator[VllmServer]:
    (tmp_path / "base").mkdir()
    with VllmServer(tmp_path / "base") as vllm:
        yield vllm


def package(root: Path, version: str = "v3", rank: int = 8) -> Package:
    folder = root / version
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank}))
    tiny_tokenizer().save_pretrained(folder)
    return Package(
        agent="support",
        version=version,
        name=f"support-{version}",
        kind=PEFT_ADAPTER,
        folder=folder,
        files={},
        base=root / "base",
        base_fingerprint=None,
        tokenizer=folder,
        state_folder=root / "place",
    )


def test_an_adapter_is_loaded_once_pointed_at_and_removed(vllm: VllmServer, tmp_path: Path) -> None:
    old, new = package(tmp_path), package(tmp_path, "v4")
    settings = VllmConfig(url=vllm.url)
    first = VLLM.apply(old, settings)
    assert first == VLLM.apply(old, settings) and first.url == f"{vllm.url}/v1"
    assert {"<|im_start|>", "<|im_end|>"} <= set(first.details["control_tokens"])
    assert first.details["separator"] == "\u200b"
    assert vllm.seen.count("POST /v1/load_lora_adapter") == 1
    second = VLLM.apply(new, settings)
    VLLM.point("support", first)
    VLLM.point("support", second)
    VLLM.point("support", second)
    assert vllm.adapters == {
        "support-v3": str(old.folder),
        "support-v4": str(new.folder),
        "support": str(new.folder),
    }
    assert VLLM.health(first).alive and VLLM.health(second).alive
    VLLM.remove(second)
    VLLM.remove(second)
    assert vllm.adapters == {"support-v3": str(old.folder)}
    assert "no adapter 'support-v4' any more" in VLLM.health(second).why


def test_an_adapter_under_two_names_keeps_its_aliases_when_one_goes(
    vllm: VllmServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "HTTP_PROXY", "http://127.0.0.1:9"
    )  # never asked for what is on this machine
    adapter = package(tmp_path)
    first = VLLM.apply(adapter, VllmConfig(url=vllm.url))
    second = VLLM.apply(replace(adapter, name="support-v3-abc123"), VllmConfig(url=vllm.url))
    VLLM.point("support", second)
    VLLM.remove(first)
    assert sorted(vllm.adapters) == ["support", "support-v3-abc123"]
    VLLM.remove(second)
    assert vllm.adapters == {}


def test_a_server_that_was_started_again_is_said_to_have_lost_it(tmp_path: Path) -> None:
    adapter = package(tmp_path)
    (tmp_path / "base").mkdir()
    with VllmServer(tmp_path / "base") as first:
        endpoint = VLLM.apply(adapter, VllmConfig(url=first.url))
        port = int(first.url.rpartition(":")[2])
    assert "nothing answers" in VLLM.health(endpoint).why
    with VllmServer(tmp_path / "base", port=port) as again:
        assert "was started again has none" in VLLM.health(endpoint).why
        assert VLLM.health(VLLM.apply(adapter, VllmConfig(url=again.url))).alive


def test_what_it_refuses_is_an_error_that_says_what_to_do(
    vllm: VllmServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = package(tmp_path, rank=64)
    settings = VllmConfig(url=vllm.url)
    with pytest.raises(ModelError, match=r"max_lora_rank 16.*--max-lora-rank"):
        VLLM.apply(adapter, settings)
    (tmp_path / "other").mkdir()
    with pytest.raises(ModelError, match=r"it is over .*other, and vLLM .* serves .*base"):
        VLLM.apply(replace(adapter, base=tmp_path / "other"), settings)
    with pytest.raises(ConfigError, match="serves base"):
        VLLM.apply(adapter, VllmConfig(url=vllm.url, base="llama"))
    with pytest.raises(Conflict, match="the base's name"):
        VLLM.apply(replace(adapter, name="base"), settings)
    with pytest.raises(ModelError, match="No adapter found"):
        VLLM.apply(replace(adapter, folder=tmp_path / "other"), settings)
    vllm.key = "secret"
    with pytest.raises(ModelError, match="VLLM_API_KEY"):
        VLLM.apply(adapter, settings)
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    vllm.updating = False
    with pytest.raises(ModelError, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING"):
        VLLM.apply(adapter, settings)
    assert vllm.adapters == {}
    with pytest.raises(ModelError, match="nothing answers there"):
        VLLM.apply(adapter, VllmConfig(url="http://127.0.0.1:9"))


def test_the_key_goes_to_the_front_door(
    vllm: VllmServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = VLLM.apply(package(tmp_path), VllmConfig(url=f"{vllm.url}/v1/"))
    assert VLLM.secret(endpoint) is None and endpoint.url == f"{vllm.url}/v1"
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    assert VLLM.secret(endpoint) == "secret" and "secret" not in json.dumps(dict(endpoint.details))
