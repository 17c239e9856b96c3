"""What is live stays what it is: a second deployment of the same version, switches that are none,
servers that are busy or gone."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.command_line import Run
from tests.worlds.deploy_world import DeployWorld
from thumbwheel.core.errors import InputError, ModelError
from thumbwheel.deploy import canary, deploy, prepare, processes, routing, running, switch
from thumbwheel.deploy.targets import TARGETS
from thumbwheel.deploy.targets.embedded import EmbeddedConfig, _server
from thumbwheel.deploy.types import AliasRoute, Deployment, DeploymentState
from thumbwheel.models import versions

pytestmark = pytest.mark.slow  # each test starts servers


@pytest.fixture
def served(deployed: DeployWorld) -> DeployWorld:
    """v0 and then v1 went live; v2 is approved."""
    version = deployed.version(0)
    deployed.version(1)
    deployed.deploy("v0")
    deployed.deploy(version)
    return deployed


def again(
    world: DeployWorld, alias: str | None = "live", wait: float = 121.0
) -> deploy.DeployResult:
    """Deploy v1 with another setting."""
    return deploy.deploy(
        world.ws, world.find("v1"), "embedded", alias, settings={"threads": 1, "wait": wait}
    )


def live(world: DeployWorld) -> Deployment:
    return routing.resolve(world.ws, world.agent)


def warm(world: DeployWorld) -> set[str]:
    return {
        deployment.id
        for deployment in routing.deployments(world.ws, world.learner)
        if deployment.state is DeploymentState.WARM and deployment.version == "v1"
    }


def test_a_failed_canary_of_the_live_version_leaves_it(
    served: DeployWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, text, real = live(served), served.text(), prepare.package
    two = served.find("v2")
    wrong = real(
        served.ws,
        two,
        prepare.plan(served.ws, two, "embedded", TARGETS.get("embedded").kinds, None),
    ).folder
    monkeypatch.setattr(
        prepare, "package", lambda *arguments: replace(real(*arguments), folder=wrong)
    )
    with pytest.raises(ModelError, match="not the promoted version"):
        again(served)
    assert live(served) == before and served.text() == text and warm(served) == {before.id}


def test_another_deployment_of_the_live_version_takes_over_only_when_it_is_switched_to(
    served: DeployWorld,
) -> None:
    before, text = live(served), served.text()
    aside = again(served, alias=None).deployment
    assert (
        live(served) == before
        and aside.name != before.name
        and warm(served) == {before.id, aside.id}
    )
    done = again(served).deployment
    assert (
        done.name == aside.name
        and live(served) == done
        and served.text() == text
        and warm(served) == {done.id}
    )
    assert not running.health(before).alive
    switch.rollback(served.ws, served.learner)
    assert served.live() == "v0"  # past the switch from v1 to v1


def test_an_alias_that_moves_to_another_target_says_who_goes_on_answering(
    served: DeployWorld, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = live(served)
    elsewhere = AliasRoute(exists=True, deployment=replace(before, target="ollama"))
    monkeypatch.setattr(switch, "route", lambda *_: elsewhere)
    switch.promote(served.ws, served.find("v0"))
    assert f"ollama itself goes on answering for {served.agent!r} with v1" in " ".join(
        capsys.readouterr().err.split()
    )


def test_only_the_deployment_that_answers_is_listed_with_the_alias(
    served: DeployWorld, command_line: Run
) -> None:
    before = live(served)
    aside = again(served, alias=None).deployment
    listed = json.loads(
        command_line(
            "--home", str(served.ws.home.path), "deployments", "--agent", served.agent, "--json"
        )[1]
    )
    assert {row["id"]: row["aliases"] for row in listed if row["version"] == "v1"} == {
        before.id: ["live"],
        aside.id: [],
    }


def test_what_is_live_is_promoted_without_a_switch(served: DeployWorld) -> None:
    history = versions.switches(served.ws, served.learner, "live")
    assert switch.promote(served.ws, served.find("v1")) == history[-1]
    assert versions.switches(served.ws, served.learner, "live") == history
    switch.rollback(served.ws, served.learner)
    assert served.live() == "v0"


def test_an_inconclusive_deployment_ends_no_proven_one(
    served: DeployWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = live(served)
    monkeypatch.setattr(canary, "ENOUGH", 1000)
    aside = again(served, alias=None).deployment
    assert live(served) == before and warm(served) == {before.id, aside.id}
    switch.rollback(served.ws, served.learner)
    switch.promote(served.ws, served.find("v1"))
    assert live(served) == before


def test_starting_again_restores_aliases_and_addresses(
    served: DeployWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment, pointed = live(served), []
    monkeypatch.setattr(
        TARGETS.get("embedded"),
        "point",
        lambda alias, endpoint: pointed.append((alias, endpoint.url)),
    )
    running.ensure_running(served.ws, deployment)
    assert pointed == [(served.agent, deployment.endpoint.url)]
    folder = Path(deployment.endpoint.details["place"])
    os.kill(processes.find(folder).pid, signal.SIGKILL)
    while processes.find(folder):
        time.sleep(0.05)
    with pytest.raises(ModelError, match="its process has ended"):
        routing.secret(served.ws, deployment)
    monkeypatch.setattr(
        processes,
        "free_port",
        lambda port=0, real=processes.free_port: (
            None if port == processes_port(deployment) else real(port)
        ),
    )
    done = running.ensure_running(served.ws, deployment)
    assert done.endpoint.url != deployment.endpoint.url and pointed[-1] == (
        served.agent,
        done.endpoint.url,
    )
    assert all(running.health(row).alive for row in routing.deployments(served.ws, served.learner))
    with pytest.raises(ModelError, match="was started again and answers at"):
        routing.secret(served.ws, deployment)


def processes_port(deployment: Deployment) -> int:
    return int(deployment.endpoint.url.removesuffix("/v1").rpartition(":")[2])


def test_a_busy_server_is_waited_for_and_not_started_again(served: DeployWorld) -> None:
    folder = Path(live(served).endpoint.details["place"])
    pid = processes.find(folder).pid
    os.kill(pid, signal.SIGSTOP)
    go_on = threading.Timer(1.0, os.kill, (pid, signal.SIGCONT))
    go_on.start()
    try:
        running = _server(folder, served.base, EmbeddedConfig(wait=0.1), "the server", "127.0.0.1")
    finally:
        go_on.join()
    assert running.pid == processes.find(folder).pid == pid and served.text()


def test_by_hand_an_alias_moves_with_what_answers(served: DeployWorld, command_line: Run) -> None:
    command_line(
        "--home", str(served.ws.home.path), "models", "alias", "live", "v0", "--agent", served.agent
    )
    assert (
        versions.switches(served.ws, served.learner, "live")[-1].evidence["deployment"]
        == live(served).id
    )
    assert served.live() == "v0"


@pytest.mark.parametrize("alias", ["../out", "latest", "v3"])
def test_an_impossible_alias_makes_no_path(served: DeployWorld, alias: str) -> None:
    before = sorted((served.ws.home.path / "deployments").rglob("*"))
    version = served.find("v1")
    with pytest.raises(InputError):
        switch.promote(served.ws, version, alias)
    with pytest.raises(InputError):
        deploy.deploy(served.ws, version, "embedded", alias)
    with pytest.raises(InputError):
        switch.rollback(served.ws, served.learner, alias)
    assert sorted((served.ws.home.path / "deployments").rglob("*")) == before
