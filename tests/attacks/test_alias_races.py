"""Two people at once: what one takes away does not go live by the other, and no version that is
going live is taken away. Who comes first is decided by events, not by time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.servers.scripted_upstream import ScriptedUpstream
from tests.waiting import until
from tests.worlds.gateway_world import AGENT, opened_home, serve_remote
from thumbwheel.core.errors import Conflict
from thumbwheel.db.schema import deployments
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy import deploy, processes, routing, switch
from thumbwheel.deploy.targets import TARGETS
from thumbwheel.deploy.types import Deployment, Health
from thumbwheel.models import versions
from thumbwheel.models.types import LIVE, Agent, EndpointAddress, ModelVersion

SUPPORT = Agent.named(AGENT)


@pytest.fixture
def ws(tmp_path: Path) -> Iterator[Workspace]:
    """A home whose agent has v0 live, and v1 warm under no alias."""
    with ScriptedUpstream() as upstream, opened_home(tmp_path / "home") as ws:
        serve_remote(ws, EndpointAddress(upstream.url, "large"))
        serve_remote(ws, EndpointAddress(upstream.url, "small"), alias=None)
        yield ws


class Beside:
    """Does something in another thread, and returns once that is done or waits for a lock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._waits = threading.Event()
        locked = processes.locked

        @contextmanager
        def noticed(folder: Path) -> Iterator[None]:
            if threading.current_thread() is self._thread:
                self._waits.set()
            with locked(folder):
                yield

        monkeypatch.setattr(processes, "locked", noticed)

    def start(self, work: Callable[[], object]) -> None:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                self.error = error

        self._thread = thread = threading.Thread(target=run)
        thread.start()
        until(lambda: self._waits.is_set() or not thread.is_alive())

    def join(self) -> None:
        assert self._thread is not None
        self._thread.join(60)
        assert not self._thread.is_alive()


def v1(ws: Workspace) -> ModelVersion:
    return versions.version(ws, AGENT, "v1")


def live(ws: Workspace) -> Deployment:
    """Return the deployment that answers for live."""
    deployment = routing.route(ws, SUPPORT, LIVE).deployment
    assert deployment is not None, "live points at a version that nothing serves"
    return deployment


def test_a_version_that_goes_live_is_not_taken_away(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = Beside(monkeypatch)
    health = switch.health
    started: list[str] = []

    def paused(deployment: Deployment) -> Health:
        result = health(deployment)
        if not started:
            started.append(deployment.id)
            beside.start(lambda: deploy.undeploy(ws, v1(ws)))
        return result

    monkeypatch.setattr(switch, "health", paused)
    switch.promote(ws, v1(ws), checks_fit=False)
    beside.join()
    assert live(ws).version == "v1"
    assert isinstance(beside.error, Conflict) and "live points at it" in str(beside.error)


def test_a_version_that_is_taken_away_does_not_go_live(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = Beside(monkeypatch)
    driver = TARGETS.get("remote")
    remove = driver.remove

    def paused(endpoint: Any) -> None:
        beside.start(lambda: switch.promote(ws, v1(ws), checks_fit=False))
        remove(endpoint)

    monkeypatch.setattr(driver, "remove", paused)
    deploy.undeploy(ws, v1(ws))
    beside.join()
    assert live(ws).version == "v0"
    assert isinstance(beside.error, Conflict) and "it is not deployed" in str(beside.error)


def test_a_version_that_another_host_takes_away_does_not_stay_live(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is of a host; the database tells what another one did."""
    point = versions.point

    def pointed(*arguments: Any) -> Any:
        moved = point(*arguments)
        end = sa.update(deployments).where(deployments.c.version_id == v1(ws).id)
        ws.db.write(lambda connection: connection.execute(end.values(state="ended")))
        return moved

    monkeypatch.setattr(versions, "point", pointed)
    with pytest.raises(Conflict, match="taken away in the same moment"):
        switch.promote(ws, v1(ws), checks_fit=False)
    assert live(ws).version == "v0"


def test_a_rollback_waits_for_a_switch_of_another_alias(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = Beside(monkeypatch)
    switch.promote(ws, v1(ws), checks_fit=False)
    health = switch.health
    started: list[str] = []

    def paused(deployment: Deployment) -> Health:
        if not started:
            started.append(deployment.id)
            beside.start(lambda: switch.rollback(ws, SUPPORT))
        return health(deployment)

    monkeypatch.setattr(switch, "health", paused)
    switch.promote(ws, v1(ws), "canary", checks_fit=False)
    beside.join()
    assert beside.error is None
    assert live(ws).version == "v0"
    assert versions.aliases_of(ws, SUPPORT)["canary"] == v1(ws).id
