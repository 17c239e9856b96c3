"""The llamacpp target against the real llama-server, with real GGUF files."""

from __future__ import annotations

import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.models.gguf_models import gguf_folders, package
from tests.models.tiny_models import CHATML, CHATML_WITH_TOOLS
from tests.servers.llama_tools import needs
from thumbwheel.core.errors import ModelError
from thumbwheel.deploy import processes
from thumbwheel.deploy.rendered_elsewhere import may_show_tools
from thumbwheel.deploy.targets.llamacpp import LLAMACPP, LlamaCppConfig
from thumbwheel.deploy.types import Endpoint
from thumbwheel.engine.adapted_template import END, START
from thumbwheel.export.types import GGUF_ADAPTER
from thumbwheel.llm.client import Client

pytestmark = pytest.mark.slow
SETTINGS = LlamaCppConfig(threads=1, context=128, parallel=1)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    needs("llama-server", "converter")
    return gguf_folders(tmp_path_factory.mktemp("gguf"))


def ask(endpoint: Endpoint, prompt: str = "Hello") -> str:
    client = Client(endpoint.url, endpoint.model, api_key=LLAMACPP.secret(endpoint), attempts=1)
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": 8,
        "temperature": 0,
        **endpoint.body,
    }
    try:
        return str(client.post("chat/completions", body)["choices"][0]["message"]["content"])
    finally:
        client.close()


def test_an_adapter_is_served_with_the_template_that_training_adapted(
    files: dict[str, Path], server_folder: Path, tmp_path: Path
) -> None:
    usual = package(files, server_folder, GGUF_ADAPTER, version="v2")
    folder = shutil.copytree(usual.folder, tmp_path / "adapter")
    longer = "{{ 'Today is the ninth of May.' }}" + CHATML
    (folder / "chat_template.jinja").write_text(f"{START}{{%- set day = 9 -%}}{END}{longer}")
    adapted = replace(usual, folder=folder, name="support-v3")
    counts = []
    for deployed in (usual, adapted):
        endpoint = LLAMACPP.apply(deployed, SETTINGS)
        with_key = {"api_key": LLAMACPP.secret(endpoint), "attempts": 1}
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, **endpoint.body}
        reply = Client(endpoint.url, endpoint.model, **with_key).post("chat/completions", body)
        counts.append(reply["usage"]["prompt_tokens"])
    assert counts[1] > counts[0] + 5


def test_only_a_template_that_names_tools_may_show_them(
    files: dict[str, Path], server_folder: Path, tmp_path: Path
) -> None:
    usual = package(files, server_folder, GGUF_ADAPTER, version="v2")
    assert not may_show_tools(usual)
    assert not may_show_tools(package(files, server_folder, version="v1"))
    folder = shutil.copytree(usual.folder, tmp_path / "adapter")
    template = f"{START}{{%- set day = 9 -%}}{END}{CHATML_WITH_TOOLS}"
    (folder / "chat_template.jinja").write_text(template)
    assert may_show_tools(replace(usual, folder=folder))


def test_versions_come_and_go_and_never_mix(files, server_folder):
    base = replace(
        package(files, server_folder, version="v0"),
        folder=files["base_gguf"],
        files={next(files["base_gguf"].glob("*.gguf")).name: ""},
    )
    merged, lora = (
        package(files, server_folder, version="v1"),
        package(files, server_folder, GGUF_ADAPTER, version="v2"),
    )
    packages = (base, merged, lora)
    endpoints = [LLAMACPP.apply(deployed, SETTINGS) for deployed in packages]
    assert endpoints == [LLAMACPP.apply(deployed, SETTINGS) for deployed in packages]
    assert all(LLAMACPP.health(endpoint).alive for endpoint in endpoints)
    assert not any(endpoint.details["shows_tools"] for endpoint in endpoints)
    # an adapter in a process of its own answers as the merged file does, in any order
    for prompt in ("Hello", "What is 17 * 23?", "Hello"):
        of_base, of_merged, of_lora = (ask(endpoint, prompt) for endpoint in endpoints)
        assert of_merged == of_lora != of_base
    with pytest.raises(ModelError, match="401"):
        Client(endpoints[0].url, "support-v0", attempts=1).post(
            "chat/completions", {"messages": []}
        )
    pid = processes.find(server_folder).pid
    os.kill(pid, signal.SIGKILL)
    while processes.find(server_folder):
        time.sleep(0.05)
    assert "its process has ended" in LLAMACPP.health(endpoints[1]).why
    again = LLAMACPP.apply(merged, SETTINGS)
    assert again == endpoints[1] and ask(again) == ask(endpoints[2])  # all that it had are back
    for endpoint in endpoints:
        LLAMACPP.remove(endpoint)
        LLAMACPP.remove(endpoint)
    assert processes.find(server_folder) is None and not LLAMACPP.health(endpoints[0]).alive


@pytest.mark.parametrize("damage", ["half", "architecture"])
def test_a_file_that_llama_cpp_cannot_read_leaves_the_others_answering(
    files, server_folder, tmp_path, damage
):
    good = LLAMACPP.apply(package(files, server_folder, version="v1"), SETTINGS)
    text = ask(good)
    file = next(files["gguf"].glob("*.gguf"))
    content = file.read_bytes()
    bad = content[: len(content) // 2] if damage == "half" else content.replace(b"qwen2", b"qwenX")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / file.name).write_bytes(bad)
    with pytest.raises(
        ModelError,
        match="corrupted or incomplete"
        if damage == "half"
        else "unknown model architecture: 'qwenX'",
    ):
        LLAMACPP.apply(
            replace(package(files, server_folder, version="v2"), folder=tmp_path / "bad"), SETTINGS
        )
    assert LLAMACPP.health(good).alive and ask(good) == text
    assert "support-v2" not in (server_folder / "presets.ini").read_text()


def test_a_first_file_that_fails_leaves_no_process(files, server_folder, tmp_path):
    shutil.copytree(files["gguf"], tmp_path / "bad")
    next((tmp_path / "bad").glob("*.gguf")).write_bytes(b"GGUF and nothing more")
    with pytest.raises(ModelError):
        LLAMACPP.apply(replace(package(files, server_folder), folder=tmp_path / "bad"), SETTINGS)
    assert processes.find(server_folder) is None
