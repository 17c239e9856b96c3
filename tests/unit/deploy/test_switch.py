"""Deploy, switch, roll back; and every way to fail, with the old deployment still serving."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import threading
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.worlds.deploy_world import DeployWorld
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import Conflict, DataError, ModelError, StorageError
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy import deploy, prepare, processes, routing, running, switch
from thumbwheel.deploy.targets import TARGETS
from thumbwheel.deploy.types import CanaryVerdict
from thumbwheel.models import versions
from thumbwheel.models.types import Agent, Basis

pytestmark = pytest.mark.slow  # each test starts servers


@pytest.fixture
def served(deployed: DeployWorld):
    """v0 and then v1 went live; v2 is approved."""
    first, second = deployed.version(0), deployed.version(1)
    deployed.deploy("v0")
    deployed.deploy(first)
    return deployed, first, second


def states(world: DeployWorld) -> dict[str, tuple[str, bool]]:
    deployments = routing.deployments(world.ws, world.learner)
    return {row.version: (row.state.value, running.health(row).alive) for row in deployments}


def processes_of(world: DeployWorld) -> set[int]:
    """The servers of the agent that run."""
    pids = set()
    for row in routing.deployments(world.ws, world.learner):
        server = processes.find(Path(row.endpoint.details["place"]))
        assert server is not None
        pids.add(server.pid)
    return pids


def test_versions_go_live_stay_warm_and_come_back(served):
    world, _, two = served
    before = world.text()
    done = world.deploy(two)
    assert done.canary.verdict is CanaryVerdict.PASSED and len(done.canary.duels) == 2
    assert world.live() == "v2" and world.text() != before
    assert states(world) == dict.fromkeys(("v0", "v1", "v2"), ("warm", True))
    running_already = processes_of(world)
    assert switch.rollback(world.ws, world.learner).reason == "rolled back"
    assert world.live() == "v1" and world.text() == before
    assert processes_of(world) == running_already  # what comes back was warm, so it loads nothing
    switch.rollback(world.ws, world.learner)
    assert world.live() == "v0"
    with pytest.raises(Conflict, match="no earlier version"):
        switch.rollback(world.ws, world.learner)
    switch.promote(world.ws, world.find("v2"))
    switch.rollback(world.ws, world.learner)
    assert world.live() == "v0"  # where the promotion came from, not what was taken back before


def test_deploying_again_changes_nothing_and_uses_the_export_again(served):
    world, version, _ = served
    first = routing.deployments(world.ws, world.learner)[0]
    again = world.deploy(version).deployment
    assert again.export_id == first.export_id and again.endpoint == first.endpoint
    assert [row.version for row in routing.deployments(world.ws, world.learner)] == ["v1", "v0"]


def test_a_dry_run_touches_nothing(served):
    world, _, _ = served
    planned = deploy.plan(world.ws, world.find("v2"), "embedded")
    assert (
        planned.export is None
        and planned.folder.name.endswith("-v2-adapter")
        and not planned.folder.exists()
    )
    assert len(routing.deployments(world.ws, world.learner)) == 2


def test_what_may_not_be_served_is_refused(deployed: DeployWorld):
    candidate, on_feedback, tainted = (
        deployed.version(0, basis=None),
        deployed.version(1, Basis.FEEDBACK),
        deployed.version(0),
    )
    deployed.taint(tainted)
    for version, why in (
        (candidate, "only an approved version"),
        (on_feedback, "permits a canary only"),
        (tainted, "tainted"),
    ):
        with pytest.raises(Conflict, match=why):
            deployed.deploy(version)
    with pytest.raises(Conflict, match="tainted"):
        deployed.deploy(tainted, alias=None)
    assert routing.deployments(deployed.ws, deployed.learner) == []
    assert (
        deployed.deploy(on_feedback, "canary").switch
        and deployed.ask(f"{deployed.agent}:canary").status_code == 200
    )


def test_what_got_tainted_is_not_served_any_more(served):
    world, first, second = served
    world.deploy(second)
    world.taint(second)
    reply = world.ask()
    assert reply.status_code == 503 and "tainted" in reply.text
    world.taint(first)
    switch.rollback(world.ws, world.learner)
    assert world.live() == "v0"  # v1 may not be served either, so it is passed over
    assert [row.tainted for row in routing.deployments(world.ws, world.learner)] == [
        True,
        True,
        False,
    ]
    deploy.undeploy(world.ws, world.find("v2"))


def test_a_version_behind_an_alias_is_not_taken_away(served):
    world, _, _ = served
    with pytest.raises(Conflict, match="live points at it"):
        deploy.undeploy(world.ws, world.find("v1"))
    assert deploy.undeploy(world.ws, world.find("v0"))[0].state == "ended"
    assert world.text()
    with pytest.raises(Conflict, match="is not deployed"):
        switch.rollback(world.ws, world.learner)
    assert world.live() == "v1"


def still_serves(world: DeployWorld, version: str, text: str) -> None:
    assert world.live() == version and world.text() == text


def test_a_failed_canary_switches_nothing(served, monkeypatch):
    """What answers as v2 is the adapter of v1."""
    world, first, second = served
    text, real = world.text(), prepare.package
    wrong = prepare.package(
        world.ws,
        first,
        prepare.plan(world.ws, first, "embedded", TARGETS.get("embedded").kinds, None),
    ).folder
    monkeypatch.setattr(
        prepare, "package", lambda *arguments: replace(real(*arguments), folder=wrong)
    )
    with pytest.raises(
        ModelError, match=r"not the promoted version: .* 0 of 10 answers .* previous v1"
    ):
        world.deploy(second)
    still_serves(world, "v1", text)
    assert states(world)["v2"] == ("failed", False)
    with pytest.raises(Conflict, match="is not deployed"):
        switch.promote(world.ws, world.find("v2"))


def test_an_inconclusive_canary_switches_only_when_accepted(served):
    world, _, _ = served
    zero, text = world.version(2), world.text()
    with pytest.raises(DataError, match="only 0 prompts tell it from"):
        world.deploy(zero)
    still_serves(world, "v1", text)
    assert states(world)["v3"] == ("warm", True)
    with pytest.raises(Conflict, match="inconclusive"):
        switch.promote(world.ws, world.find("v3"))
    assert world.deploy(zero, accept="Ada: it is a trial").switch
    assert world.live() == "v3" and "accepted by Ada: it is a trial" in str(
        routing.deployments(world.ws, world.learner)[0].canary
    )


def test_a_damaged_export_is_refused(served):
    """Half-written, or brought from elsewhere: the hash tells."""
    world, _, two = served
    text = world.text()
    weights = world.deploy(two, alias=None).deployment
    folder = world.ws.home.path / "exports" / f"{world.agent}-v2-adapter"
    file = folder / "adapter_model.safetensors"
    whole = file.read_bytes()
    for content in (whole[: len(whole) // 2], (world.adapters[0] / file.name).read_bytes()):
        file.write_bytes(content)
        with pytest.raises(StorageError, match="not the one that was exported"):
            world.deploy(two)
        still_serves(world, "v1", text)
    shutil.rmtree(folder)
    assert world.deploy(two).deployment.export_id != weights.export_id


def test_a_full_disk_leaves_the_old_version_serving(served):
    world, _, two = served
    text = world.text()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, hard))
    try:
        with pytest.raises(StorageError):
            world.deploy(two)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    still_serves(world, "v1", text)
    assert world.deploy(two).switch


def test_a_target_that_cannot_run_it_leaves_nothing(served, monkeypatch):
    world, _, two = served
    text, target = world.text(), TARGETS.get("embedded")

    def apply(package, settings):
        raise ModelError(
            "the architecture", "llama.cpp has none of that name", "Choose another target"
        )

    monkeypatch.setattr(target, "apply", apply)
    with pytest.raises(ModelError, match="architecture"):
        world.deploy(two)
    monkeypatch.undo()
    still_serves(world, "v1", text)
    assert states(world)["v2"] == ("failed", False)


def test_a_target_that_cannot_take_the_alias_undoes_the_switch(served, monkeypatch):
    world, _, two = served
    text, target = world.text(), TARGETS.get("embedded")
    history = versions.switches(world.ws, world.learner, "live")

    def point(alias, endpoint):
        raise ModelError(alias, "it cannot be copied", "Free space")

    monkeypatch.setattr(target, "point", point)
    with pytest.raises(ModelError, match="cannot be copied"):
        world.deploy(two)
    still_serves(world, "v1", text)
    assert versions.switches(world.ws, world.learner, "live") == history


@pytest.mark.slow
def test_a_killed_server_is_seen_and_started_again_with_all_its_models(served):
    world, _, two = served
    world.deploy(two)
    text = world.text()
    folder = Path(routing.deployments(world.ws, world.learner)[0].endpoint.details["place"])
    os.kill(processes.find(folder).pid, signal.SIGKILL)
    while processes.find(folder):
        time.sleep(0.05)
    assert (
        "its process has ended; it logged no reason"
        in running.health(routing.deployments(world.ws, world.learner)[0]).why
    )
    assert world.ask().status_code == 502
    switch.rollback(world.ws, world.learner)  # it is not warm any more, so this starts it
    assert world.live() == "v1" and world.text() != text
    switch.promote(world.ws, world.find("v2"))
    assert world.text() == text
    assert states(world) == dict.fromkeys(("v0", "v1", "v2"), ("warm", True))


def test_a_taken_port_starts_nothing(deployed: DeployWorld, tmp_path: Path):
    with (
        Workspace.open(Home(tmp_path / "home"), Sources({}, "", {})) as ws,
        socket.socket() as occupied,
    ):
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        apart = DeployWorld(ws, deployed.base, deployed.adapters, "apart")
        apart.version(0)
        with pytest.raises(Conflict, match="is taken by another program"):
            deploy.deploy(
                ws, apart.find("v1"), "embedded", settings={"port": occupied.getsockname()[1]}
            )
        assert routing.deployments(ws, Agent.named("apart"))[0].state == "failed"
        assert not list((ws.home.path / "deployments").rglob(processes.RECORD))


def test_what_was_stopped_may_be_deployed_again(
    tmp_path: Path, tiny_model: Path, adapters: list[Path]
):
    with Workspace.open(Home(tmp_path / "home"), Sources({}, "", {})) as ws:
        apart = DeployWorld(ws, tiny_model, adapters, "apart")
        apart.version(0)
        apart.deploy("v1", accept="Ada: it is the first")
        running.stop(ws, Agent.named("apart"))
        done = apart.deploy("v1", accept="Ada: it is the first")
        try:
            assert running.health(done.deployment).alive and apart.ask().status_code == 200
        finally:
            running.stop(ws, Agent.named("apart"))


def test_one_target_that_is_gone_stops_no_other(served, monkeypatch):
    world, _, two = served
    world.deploy(two, alias=None)
    target, real = TARGETS.get("embedded"), TARGETS.get("embedded").remove

    def remove(endpoint):
        if endpoint.model.endswith("v2"):
            raise ModelError("the server", "nothing answers there", "Start it")
        real(endpoint)

    monkeypatch.setattr(target, "remove", remove)
    with pytest.raises(
        ModelError, match=r"(?s)v2 on embedded.*nothing answers there.*2 of 3 are done"
    ):
        running.stop(world.ws, world.learner)
    with pytest.raises(ModelError, match="nothing answers there"):
        deploy.undeploy(world.ws, world.find("v2"))
    assert [row.version for row in routing.deployments(world.ws, world.learner)] == [
        "v2",
        "v1",
        "v0",
    ], "it is still known"
    assert [row.state for row in deploy.undeploy(world.ws, world.find("v2"), forget=True)] == [
        "ended"
    ]
    monkeypatch.undo()
    running.restart(world.ws, world.learner)
    assert states(world) == dict.fromkeys(("v0", "v1"), ("warm", True))


def test_a_rollback_goes_to_the_deployment_that_answered(served):
    world, _, two = served
    (first,) = [row for row in routing.deployments(world.ws, world.learner) if row.version == "v1"]
    newer = deploy.deploy(world.ws, world.find("v1"), "embedded", "canary", settings={"threads": 2})
    world.deploy(two)
    assert newer.deployment.id != first.id
    assert switch.rollback(world.ws, world.learner).evidence["deployment"] == first.id


def test_two_promotions_at_once_end_as_one_after_the_other(served):
    world, _, two = served
    world.deploy(two, alias=None)
    errors: list[Exception] = []

    def promote(version: str) -> None:
        try:
            with Workspace.open(world.ws.home, Sources({}, "", {})) as ws:
                for _ in range(5):
                    switch.promote(ws, versions.version(ws, world.agent, version))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=promote, args=(version,)) for version in ("v1", "v2")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    history = versions.switches(world.ws, world.learner, "live")
    assert not errors and 3 <= len(history) <= 12  # what points there already is no switch
    assert all(
        earlier.to_id == later.from_id != later.to_id for earlier, later in pairwise(history)
    )
    assert versions.aliases_of(world.ws, world.learner)["live"] == history[-1].to_id


def test_a_copied_home_asks_and_stops_nothing_of_the_original(
    deployed: DeployWorld, tmp_path: Path
) -> None:
    deployed.deploy(deployed.version(0))
    copied = Home(tmp_path / "copy")
    shutil.copytree(deployed.ws.home.path, copied.path, symlinks=True)
    with Workspace.open(copied, Sources({}, "", {})) as ws:
        (deployment,) = routing.deployments(ws, deployed.learner)
        assert deployment.endpoint.details["place"].startswith(str(copied.path))
        assert not running.health(deployment).alive
        running.stop(ws, deployed.learner)
        assert (
            DeployWorld(ws, deployed.base, deployed.adapters, deployed.agent).ask().status_code
            == 502
        )
    assert running.health(routing.deployments(deployed.ws, deployed.learner)[0]).alive
    assert deployed.text()
