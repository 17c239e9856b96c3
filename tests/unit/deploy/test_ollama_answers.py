"""Deployed on the emulator, a tuned model answers as the trained one; by our target and by the
official client, old Ollama and new."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx2
import ollama as official
import pytest

from tests.command_line import Run
from tests.models.gguf_models import gguf_folders, package
from tests.servers.ollama_server import OllamaEmulator
from tests.worlds.deploy_world import DeployWorld
from thumbwheel.core.errors import Conflict, ModelError, ThumbwheelError
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy import deploy
from thumbwheel.deploy.targets.ollama import OLLAMA, OllamaConfig
from thumbwheel.deploy.types import Endpoint
from thumbwheel.export.types import GGUF_ADAPTER, GGUF_MODEL, ModelKind

QUESTIONS = ("Name a colour.", "What is 17 * 23?", "Größe?")
OLD, NEW, NEWEST = "0.20.0", "0.33.0", "0.34.2"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return gguf_folders(tmp_path_factory.mktemp("models"))


@pytest.fixture
def ollama(tmp_path: Path) -> Iterator[OllamaEmulator]:
    with OllamaEmulator(tmp_path / "ollama", NEW) as emulator:
        yield emulator


def settings(emulator: OllamaEmulator, **values: object) -> OllamaConfig:
    return OllamaConfig.model_validate(
        {"host": emulator.url, "profile": "cpu_auto", "context": 256, "threads": 1} | values
    )


def ask(endpoint: Endpoint, question: str, model: str | None = None) -> str:
    body = {
        "model": model or endpoint.model,
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": 12,
    }
    reply = httpx2.post(f"{endpoint.url}/chat/completions", json=body, timeout=60)
    reply.raise_for_status()
    return str(reply.json()["choices"][0]["message"]["content"])


@pytest.fixture(scope="session")
def trained(files: dict[str, Path]) -> dict[str, str]:
    """Greedy answers of base + adapter in float32, as text of whole characters."""
    return _answers(files["base"], files["adapter"])


def _answers(base: Path, adapter: Path | None) -> dict[str, str]:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from thumbwheel.engine.load import load_tokenizer
    from thumbwheel.engine.prompt import PromptBuilder

    builder = PromptBuilder(load_tokenizer(str(base)))
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    if adapter:
        model = PeftModel.from_pretrained(model, adapter)
    answers = {}
    for question in QUESTIONS:
        ids = torch.tensor([builder.prompt([{"role": "user", "content": question}])])
        out = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12
        )
        answers[question] = whole(
            builder.tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
        )
    return answers


def whole(text: str) -> str:
    return text.replace("\ufffd", "").strip()


@pytest.mark.parametrize(
    ("version", "kind"),
    [
        (OLD, GGUF_MODEL),
        (NEW, GGUF_MODEL),
        (NEWEST, GGUF_MODEL),
        (OLD, GGUF_ADAPTER),
        (NEW, GGUF_ADAPTER),
    ],
)
def test_it_answers_as_the_trained_model(
    files: dict[str, Path],
    trained: dict[str, str],
    ollama: OllamaEmulator,
    tmp_path: Path,
    version: str,
    kind: ModelKind,
) -> None:
    ollama.version = version
    endpoint = OLLAMA.apply(package(files, tmp_path / "place", kind), settings(ollama))
    assert OLLAMA.health(endpoint).alive
    assert {question: whole(ask(endpoint, question)) for question in QUESTIONS} == trained
    assert trained != _answers(files["base"], None)
    client = official.Client(host=ollama.url)
    reply = client.chat(
        "support-v3",
        [{"role": "user", "content": QUESTIONS[0]}],
        options={"temperature": 0, "num_predict": 12},
    )
    assert whole(reply.message.content or "") == trained[QUESTIONS[0]]
    shown = client.show("support-v3")
    assert (shown.template.startswith("{{ range .Messages }}")) == (version == OLD)
    assert "num_ctx 256" in (shown.parameters or "")
    assert [running.model for running in client.ps().models] == ["support-v3-unfinished"]


def test_a_second_apply_sends_and_makes_nothing(
    files: dict[str, Path], ollama: OllamaEmulator, tmp_path: Path
) -> None:
    parcel = package(files, tmp_path / "place")
    first = OLLAMA.apply(parcel, settings(ollama))
    ollama.seen.clear()
    assert OLLAMA.apply(parcel, settings(ollama)) == first
    assert ollama.seen == ["GET /api/version", "GET /api/tags", "POST /api/generate"]
    changed = OLLAMA.apply(parcel, settings(ollama, temperature=0.2))
    assert changed.details["digest"] != first.details["digest"] and not OLLAMA.health(first).alive


def test_system_text_template_and_the_built_in_one_that_is_only_like_it(
    files: dict[str, Path], trained: dict[str, str], ollama: OllamaEmulator, tmp_path: Path
) -> None:
    jinja = (files["gguf"] / "chat_template.jinja").read_text()
    ollama.built_in = {
        "chatml": (
            jinja.replace("im_end", "im_ended"),
            "{{ range .Messages }}WRONG {{ .Content }}{{ end }}",
        )
    }
    endpoint = OLLAMA.apply(package(files, tmp_path / "place"), settings(ollama))
    assert {question: whole(ask(endpoint, question)) for question in QUESTIONS} == trained
    with_system = OLLAMA.apply(
        package(files, tmp_path / "place", version="v4", system='Say """no""".\nThen stop.'),
        settings(ollama),
    )
    shown = httpx2.post(f"{ollama.url}/api/show", json={"model": with_system.model}).json()
    assert shown["system"] == 'Say """no""".\nThen stop.'
    assert whole(ask(with_system, QUESTIONS[0])) != trained[QUESTIONS[0]]


def test_an_alias_moves_in_one_step_and_goes_with_its_version(
    files: dict[str, Path], ollama: OllamaEmulator, tmp_path: Path
) -> None:
    first = OLLAMA.apply(
        package(files, tmp_path / "place"), settings(ollama, name="toolbox-support")
    )
    second = OLLAMA.apply(
        package(files, tmp_path / "place", version="v4", system="Be brief."), settings(ollama)
    )
    OLLAMA.point("support", first)
    OLLAMA.point("support-canary", second)
    assert (
        ask(first, QUESTIONS[0], "support")
        == ask(first, QUESTIONS[0])
        == ask(first, QUESTIONS[0], "toolbox-support")
    )
    OLLAMA.point("support", second)
    OLLAMA.point("support", second)
    assert (
        ask(first, QUESTIONS[0], "support") == ask(second, QUESTIONS[0]) != ask(first, QUESTIONS[0])
    )
    OLLAMA.remove(second)
    OLLAMA.remove(second)
    left = {model.model for model in official.Client(host=ollama.url).list().models}
    assert left == {"support-v3:latest", "toolbox-support:latest"}
    assert OLLAMA.health(first).alive and not OLLAMA.health(second).alive
    twin = OLLAMA.apply(package(files, tmp_path / "place", version="v5"), settings(ollama))
    assert twin.details["digest"] == first.details["digest"]
    OLLAMA.point("support", twin)
    OLLAMA.remove(first)
    assert {model.model for model in official.Client(host=ollama.url).list().models} == {
        "support-v5:latest",
        "support:latest",
    }
    OLLAMA.remove(twin)
    assert list(ollama.blobs.iterdir()) == [] and ollama.running == {}


def test_names_of_somebody_else_are_never_taken(
    files: dict[str, Path], ollama: OllamaEmulator, tmp_path: Path
) -> None:
    endpoint = OLLAMA.apply(package(files, tmp_path / "place"), settings(ollama))
    official.Client(host=ollama.url).copy("support-v3", "support-v4")
    official.Client(host=ollama.url).copy("support-v3", "support")
    with pytest.raises(Conflict, match="Thumbwheel did not create it"):
        OLLAMA.apply(package(files, tmp_path / "place", version="v4"), settings(ollama))
    with pytest.raises(Conflict, match="Thumbwheel did not create it"):
        OLLAMA.point("support", endpoint)


@pytest.mark.parametrize(
    "fault", ["full disk", "broken upload", "error in stream", "cut stream", "no load"]
)
def test_whatever_fails_the_model_before_still_answers(
    files: dict[str, Path], ollama: OllamaEmulator, tmp_path: Path, fault: str
) -> None:
    endpoint = OLLAMA.apply(package(files, tmp_path / "place"), settings(ollama))
    OLLAMA.point("support", endpoint)
    before = ask(endpoint, QUESTIONS[0], "support")
    ollama.fail = fault
    if fault in ("full disk", "broken upload"):
        ollama.blob(f"sha256:{package(files, tmp_path).files['model-F16.gguf']}").unlink(
            missing_ok=True
        )
    with pytest.raises(ThumbwheelError):
        OLLAMA.apply(
            package(files, tmp_path / "place", version="v4", system="New."), settings(ollama)
        )
    assert [
        name
        for name in ollama.manifests.iterdir()
        if "unfinished" in name.name or "v4" in name.name
    ] == []
    assert ask(endpoint, QUESTIONS[0], "support") == before
    two = OLLAMA.apply(
        package(files, tmp_path / "place", version="v4", system="New."), settings(ollama)
    )
    assert OLLAMA.health(two).alive


def test_a_killed_server_is_dead_and_found_again(files: dict[str, Path], tmp_path: Path) -> None:
    with OllamaEmulator(tmp_path / "ollama", NEW) as first:
        endpoint = OLLAMA.apply(package(files, tmp_path / "place"), settings(first))
        port = int(first.url.rpartition(":")[2])
    assert "nothing answers" in OLLAMA.health(endpoint).why
    with OllamaEmulator(tmp_path / "ollama", NEW, port=port) as again:
        assert OLLAMA.health(endpoint).alive
        OLLAMA.apply(package(files, tmp_path / "place"), settings(again))
        assert not any("create" in request or "blobs" in request for request in again.seen)


def test_the_official_client_can_do_what_the_contract_says(
    files: dict[str, Path], ollama: OllamaEmulator
) -> None:
    client = official.Client(host=ollama.url)
    digest = client.create_blob(next(files["gguf"].glob("*.gguf")))
    lines = [
        line.status
        for line in client.create(
            "mine", files={"m.gguf": digest}, parameters={"stop": ["<|im_end|>"]}, stream=True
        )
    ]
    assert lines[-1] == "success"
    reply = client.generate(
        "mine", "Name a colour.", options={"temperature": 0, "num_predict": 4}, stream=True
    )
    assert [part.done for part in reply] == [False, True]
    assert (
        client.generate("mine", keep_alive=0).done_reason == "unload" and client.ps().models == []
    )
    assert client.generate("mine", keep_alive="10m").done_reason == "load"
    with pytest.raises(official.ResponseError, match="missing unit"):
        client.generate("mine", keep_alive="-1")
    with pytest.raises(official.ResponseError, match="neither 'from' or 'files'"):
        client.create("other")
    assert client.delete("mine").status == "success"


def test_a_version_comes_to_its_alias_and_stays_there_when_the_next_one_fails(
    files: dict[str, Path],
    deploying_ws: Workspace,
    ollama: OllamaEmulator,
    command_line: Run,
    tmp_path: Path,
) -> None:
    world = DeployWorld(deploying_ws, files["base"], [files["adapter"]], "helper")
    version = world.version(0)
    hosting = {
        "host": ollama.url,
        "profile": "cpu_auto",
        "context": 256,
        "threads": 1,
        "name": "toolbox-helper",
    }
    done = deploy.deploy(deploying_ws, version, "ollama", quant="F16", settings=hosting)
    assert (done.canary.verdict, world.live()) == ("passed", version.name)
    text = world.text()
    names = {model.model for model in official.Client(host=ollama.url).list().models}
    assert names == {"helper:latest", f"helper-{version.name}:latest", "toolbox-helper:latest"}
    ollama.fail = "error in stream"
    with pytest.raises(ModelError, match="unsupported architecture"):
        deploy.deploy(
            deploying_ws, version, "ollama", quant="F16", settings=hosting | {"context": 300}
        )
    assert world.text() == text != ""
    wanted = (
        "--home",
        str(deploying_ws.home.path),
        "modelfile",
        version.name,
        "--agent",
        "helper",
        "--quant",
        "F16",
        "--context",
        "256",
    )
    code, _, output = command_line(*wanted, "--to", "Modelfile")
    assert (code, "next: ollama create helper-" in output, "OLLAMA_NUM_PARALLEL=" in output) == (
        0,
        True,
        True,
    )
    lines = (tmp_path / "Modelfile").read_text()
    assert (
        lines.startswith(f"FROM {deploying_ws.home.path}/exports/")
        and "\nPARAMETER num_ctx 256\n" in lines
    )
    assert 'TEMPLATE """{{ range .Messages }}' in lines
    assert json.loads(command_line(*wanted, "--no-template", "--json")[1])["template"] is None
    assert (
        json.loads(command_line(*wanted, "--system", "Be brief.", "--json")[1])["system"]
        == "Be brief."
    )
    assert "\nSYSTEM Be brief.\n" in command_line(*wanted, "--system", "Be brief.")[1]


@pytest.mark.skipif(
    not os.environ.get("OLLAMA_HOST"), reason="needs a real Ollama: set OLLAMA_HOST"
)
def test_a_real_ollama(files: dict[str, Path], trained: dict[str, str], tmp_path: Path) -> None:
    parcel = replace(package(files, tmp_path / "place"), name="thumbwheel-test-v3")
    endpoint = OLLAMA.apply(parcel, OllamaConfig(profile="cpu_auto", context=256))
    try:
        assert {question: whole(ask(endpoint, question)) for question in QUESTIONS} == trained
        OLLAMA.point("thumbwheel-test", endpoint)
        assert whole(ask(endpoint, QUESTIONS[0], "thumbwheel-test")) == trained[QUESTIONS[0]]
    finally:
        OLLAMA.remove(endpoint)
