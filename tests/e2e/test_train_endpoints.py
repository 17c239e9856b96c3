"""`train grpo` with the answers of two embedded servers that are given each step's adapter: one of
them is killed while it answers, and the run learns the same as from one server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.models.tiny_models import tiny_base
from tests.training_rows import assembled, loop_of, plain_rows
from tests.waiting import until
from thumbwheel.core.errors import ConfigError, ModelError
from thumbwheel.engine.endpoint import KEY, Endpoint
from thumbwheel.engine.served_policy import model_entries
from thumbwheel.llm.client import Client
from thumbwheel.llm.port import free_port

TOKEN = "sesame"
SETTINGS: dict[str, Any] = {
    "num_generations": 3,
    "max_completion_length": 8,
    "max_steps": 3,
    "eval_steps": 3,
    "batch_size": 6,
    "learning_rate": 1e-2,
    "reward_functions": ("tests.reward_functions:length",),
    "reward_workers": 1,
    "replay_weight": None,
    "rollouts": "endpoint",
    "endpoint_model": "base",
}


@dataclass(frozen=True)
class Server:
    """An embedded server as a process."""

    process: subprocess.Popen[bytes]
    url: str

    @property
    def models(self) -> list[str]:
        """The names of what it serves; an empty list while it does not answer."""
        client = Client(self.url, "base", api_key=TOKEN, attempts=1)
        try:
            return list(model_entries(client))
        except ModelError:
            return []
        finally:
            client.close()


def started(folder: Path, base: Path) -> Server:
    """Start a server of `base`, which is all that it serves."""
    folder.mkdir()
    spec = {"base": str(base), "dtype": "float32", "device": "cpu"}
    (folder / "spec.json").write_text(json.dumps(spec))
    (folder / "models.json").write_text(json.dumps({"base": None}))
    port = free_port()
    environment = os.environ | {
        "THUMBWHEEL_EMBEDDED_TOKEN": TOKEN,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-m", "thumbwheel.deploy.embedded"]
    process = subprocess.Popen(
        [*command, str(folder), str(port), "127.0.0.1"],
        env=environment,
        stdout=(folder / "server.log").open("wb"),
        stderr=subprocess.STDOUT,
    )
    return Server(process, f"http://127.0.0.1:{port}/v1")


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    """Two servers of one base, and one of another base."""
    folder = tmp_path_factory.mktemp("servers")
    base = tiny_base(folder / "base", initializer_range=0.1)
    other = tiny_base(folder / "foreign", initializer_range=0.1, seed=1)
    bases = {"first": base, "second": base, "other": other}
    servers = {name: started(folder / name, path) for name, path in bases.items()}
    try:
        for server in servers.values():
            until(lambda server=server: server.models, 300)
        yield servers
    finally:
        for server in servers.values():
            server.process.kill()
            server.process.wait()


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, TOKEN)


def learned(base: Path, folder: Path, urls: list[str], dies: Server | None = None) -> Any:
    """Train with the answers of these servers; return the curve, the weights and how many prompts
    each server answered. The server that `dies` is killed within its first answer of the second
    step."""
    folder.mkdir()
    shared = folder / "adapters"
    assembly = assembled(
        "grpo",
        base,
        folder,
        plain_rows("prompts", 18, 3),
        endpoint_url=urls,
        endpoint_adapters=str(shared),
        **SETTINGS,
    )
    source = assembly.runner.source
    answered = dict.fromkeys(urls, 0)
    post = Client.post

    def watched_post(client: Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
        is_second_step = str(body.get("model")).endswith("-1")
        if dies is not None and client.url == dies.url and is_second_step:
            # It has the request, and does not answer it.
            dies.process.send_signal(signal.SIGSTOP)
            threading.Timer(0.5, dies.process.kill).start()
        return post(client, path, body)

    for endpoint in source._endpoints:
        endpoint.client.post = lambda path, body, client=endpoint.client: watched_post(
            client, path, body
        )
        answer = endpoint.answer

        def counted(*arguments: Any, answer: Any = answer, endpoint: Endpoint = endpoint) -> Any:
            group = answer(*arguments)
            answered[endpoint.client.url] += 1
            return group

        endpoint.answer = counted  # type: ignore[method-assign]
    loop_of(assembly, folder).run()
    assembly.runner.close()
    weights = {
        name: parameter.detach().clone()
        for name, parameter in assembly.model.named_parameters()
        if parameter.requires_grad
    }
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("step_seconds", None)
    assert not list(shared.iterdir())
    return lines, weights, answered


@pytest.mark.slow
def test_a_base_that_differs_is_refused(servers: dict[str, Server], tmp_path: Path) -> None:
    urls = [servers["first"].url, servers["other"].url]
    base = servers["first"].process.args
    assembly = assembled(
        "grpo",
        Path(json.loads((Path(base[3]) / "spec.json").read_text())["base"]),  # type: ignore[index]
        tmp_path,
        plain_rows("prompts", 18, 3),
        endpoint_url=urls,
        **SETTINGS,
    )
    with pytest.raises(ConfigError, match="do not serve the same base") as refused:
        loop_of(assembly, tmp_path).run()
    assert urls[0] in refused.value.what and urls[1] in refused.value.what
    assembly.runner.close()


@pytest.mark.slow
def test_a_server_that_is_killed_within_a_batch_changes_nothing(
    servers: dict[str, Server], tmp_path: Path
) -> None:
    import torch

    first, second = servers["first"], servers["second"]
    spec = Path(first.process.args[3]) / "spec.json"  # type: ignore[index]
    base = Path(json.loads(spec.read_text())["base"])
    lines, weights, answered = learned(base, tmp_path / "one", [first.url])
    assert answered == {first.url: 18}
    assert first.models == ["base"]

    urls = [first.url, second.url]
    began = time.monotonic()
    with_two = learned(base, tmp_path / "two", urls, dies=second)
    assert second.process.wait(10) == -signal.SIGKILL
    assert time.monotonic() - began < 120
    assert sum(with_two[2].values()) == 18 and with_two[2][second.url] > 0
    assert first.models == ["base"]

    # The answers are the same, and so is everything that follows from them.
    assert [line["step"] for line in with_two[0]] == [line["step"] for line in lines]
    for line, expected in zip(with_two[0], lines, strict=True):
        assert line == pytest.approx(expected, rel=1e-5, abs=1e-5)
    for name, weight in with_two[1].items():
        torch.testing.assert_close(weight, weights[name], rtol=0, atol=1e-6)
    assert {line["sampling/policy_lag"] for line in lines if "loss" in line} == {0.0}
    # The importance ratio is 1: servers answer with the very adapter of the step.
    ratios = [line["sampling/importance_sampling_ratio/mean"] for line in lines if "loss" in line]
    assert ratios == pytest.approx([1.0] * 3, abs=1e-3)
    assert any(float(weight.abs().sum()) > 0 for name, weight in weights.items() if "_B" in name)
