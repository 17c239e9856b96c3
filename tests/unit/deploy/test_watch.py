"""Models that answer are watched by `serve`: killed, standing still, without their port, gone with
a reboot, they turn health red and come back. Servers and models are real processes."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests import waiting
from tests.command_line import Run
from tests.servers import thumbwheel_server
from tests.servers.llama_tools import needs
from tests.servers.vllm_server import VllmServer
from tests.worlds.deploy_world import DeployWorld
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy import canary, deploy, processes, routing, running
from thumbwheel.deploy.processes import Running
from thumbwheel.deploy.types import CanaryVerdict, Deployment

pytestmark = pytest.mark.slow

until = partial(waiting.until, seconds=120.0)
AGENT = "filer"


@pytest.fixture
def apart(tmp_path: Path, tiny_model: Path, adapters: list[Path]) -> Iterator[DeployWorld]:
    """A home of its own, with v1 live on the embedded target."""
    with Workspace.open(Home(tmp_path / "home"), Sources({}, "", {})) as ws:
        world = DeployWorld(ws, tiny_model, adapters, AGENT)
        world.version(0)
        yield world
        for record in (ws.home.path / "deployments").rglob(processes.RECORD):
            processes.stop(record.parent)


class Served:
    """`thumbwheel serve` of the home of a world."""

    def __init__(self, world: DeployWorld, server: thumbwheel_server.ThumbwheelServer) -> None:
        self._world, self._server = world, server
        token = world.ws.home.access_token.read_text().strip()
        headers = {"authorization": f"Bearer {token}", "accept": "text/html"}
        self._client = httpx2.Client(
            base_url=server.url, headers=headers, timeout=60, trust_env=False
        )

    def ask(self) -> Any:
        return self._client.post("/v1/chat/completions", json=self._world.question())

    def answers(self) -> bool:
        return bool(self.ask().status_code == 200)

    def problem(self) -> str:
        return str(self._server.health()["problems"].get("deployments", ""))

    def is_well(self) -> bool:
        return self._server.health()["status"] == "green" and self.answers()

    def page(self, path: str) -> str:
        response = self._client.get(path)
        assert response.status_code == 200, response.text
        return str(response.text)

    def start(self) -> None:
        """As the button of the pages."""
        path = f"/api/agents/{AGENT}/deployments/restart"
        reply = self._client.post(path, json={}, headers={"accept": "application/json"})
        assert reply.status_code < 300, reply.text


@contextmanager
def served(world: DeployWorld) -> Iterator[Served]:
    environment = {"OMP_NUM_THREADS": "1"}
    with thumbwheel_server.running(world.ws.home.path, environment) as server:
        yield Served(world, server)


def live(world: DeployWorld) -> Deployment:
    deployment = routing.route(world.ws, world.learner, "live").deployment
    assert deployment is not None
    return deployment


def server_of(deployment: Deployment) -> Running:
    assert deployment.endpoint is not None
    server = processes.find(Path(deployment.endpoint.details["place"]))
    assert server is not None
    return server


@pytest.mark.parametrize("target", ["embedded", "llamacpp"])
def test_a_killed_model_turns_health_and_pages_red_and_comes_back(
    apart: DeployWorld, target: str
) -> None:
    if target == "llamacpp":
        needs("llama-server", "converter")
    # a random model is so undecided that half precision changes its answers
    precision = {"quant": "F32"} if target == "llamacpp" else {}
    apart.deploy("v1", target=target, accept="Ada: it is a test", **precision)
    with served(apart) as gateway:
        until(gateway.is_well)
        first = server_of(live(apart))
        os.kill(first.pid, signal.SIGKILL)
        assert until(gateway.problem) < 10
        assert AGENT not in gateway.problem(), "health is public"
        home = gateway.page("/")
        assert "live v1, does not answer" in home
        assert f"/api/agents/{AGENT}/deployments/restart" in home
        refusal = gateway.ask()
        if refusal.status_code != 200:  # it may be back already
            assert f"thumbwheel deployments --agent {AGENT} --restart" in refusal.text
            assert "it logged no reason" in refusal.text
        until(gateway.is_well)
        assert gateway.ask().headers["x-thumbwheel-version"] == "v1"
        assert server_of(live(apart)).pid != first.pid
        assert "does not answer" not in gateway.page("/")


def test_a_model_that_stands_still_is_ended_and_started_again(apart: DeployWorld) -> None:
    apart.deploy("v1")
    with served(apart) as gateway:
        until(gateway.is_well)
        first = server_of(live(apart))
        os.kill(first.pid, signal.SIGSTOP)
        assert until(gateway.problem) < 15
        until(gateway.is_well)
        assert server_of(live(apart)).pid != first.pid


def is_bound(listener: socket.socket, port: int) -> bool:
    """Bind to the port; return whether nobody has it any more."""
    try:
        listener.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True


def test_a_model_whose_port_another_program_took_moves(apart: DeployWorld) -> None:
    apart.deploy("v1")
    with served(apart) as gateway, socket.socket() as other:
        until(gateway.is_well)
        first = server_of(live(apart))
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        os.kill(first.pid, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{first.pid}/exe").exists())
        until(lambda: is_bound(other, first.port))  # the kernel frees it in a moment
        other.listen()
        until(gateway.problem)
        until(gateway.is_well)
        assert server_of(live(apart)).port != first.port


def test_after_a_reboot_serve_starts_what_was_live(apart: DeployWorld) -> None:
    apart.deploy("v1")
    os.killpg(server_of(live(apart)).pid, signal.SIGKILL)
    with served(apart) as gateway:
        until(gateway.is_well)


def test_a_model_that_a_person_stopped_stays_stopped_until_it_is_started(
    apart: DeployWorld, command_line: Run
) -> None:
    apart.deploy("v1")
    home = str(apart.ws.home.path)
    code, _, _ = command_line("--home", home, "deployments", "--agent", AGENT, "--stop")
    assert code == 0
    running.start_again(apart.ws, live(apart))  # as `serve` would
    with served(apart) as gateway:
        until(lambda: "live v1, does not answer" in gateway.page("/"))
        time.sleep(5)
        assert gateway.problem() == "" and gateway.ask().status_code == 502
        assert "Start" in gateway.page(f"/agents/{AGENT}/deployments")
        gateway.start()
        until(gateway.is_well)


def test_an_adapter_that_a_new_vllm_does_not_have_is_loaded_again(
    apart: DeployWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server itself is somebody else's, and computes nothing here, which no canary takes."""
    with VllmServer(apart.base) as vllm:
        version = apart.find("v1")
        monkeypatch.setattr(
            canary, "check", lambda *_: canary.Canary(CanaryVerdict.UNOPPOSED, (), 0, 0)
        )
        deploy.deploy(apart.ws, version, "vllm", settings={"url": vllm.url})
        port = int(vllm.url.rpartition(":")[2])
    with served(apart) as gateway:
        until(gateway.problem)
        with VllmServer(apart.base, port=port) as again:
            until(lambda: "filer-v1" in again.adapters)
            until(lambda: gateway.problem() == "")
