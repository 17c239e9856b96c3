"""What people are told: each kind of notice from the rows that it stands on, and nothing quoted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from tests.servers.scripted_upstream import ScriptedUpstream
from tests.store.test_traces import store
from tests.worlds.experiment_world import ExperimentWorld
from tests.worlds.gateway_world import AGENT as SUPPORT
from tests.worlds.gateway_world import opened_home, serve_remote
from thumbwheel.app.routing_table import RoutingTable
from thumbwheel.capture.feedback import add_feedback
from thumbwheel.core.config import Home, Sources
from thumbwheel.db import schema
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy import switch
from thumbwheel.deploy.types import Health
from thumbwheel.deploy.watch import DeploymentWatch, Watched
from thumbwheel.gateway.settings import GatewayConfig
from thumbwheel.jobs import queue
from thumbwheel.models import versions
from thumbwheel.models.types import Agent, EndpointAddress
from thumbwheel.notify.notices import JOB_KIND, notices
from thumbwheel.server.notifier import long_dead

DESK = Agent.named("desk")
NOW = datetime.now(UTC)
MONDAY = (NOW - timedelta(days=NOW.weekday())).date()


@pytest.fixture
def desk_ws(tmp_path: Path) -> Iterator[Workspace]:
    with Workspace.open(Home.at(tmp_path / "home"), Sources({}, "none", {})) as workspace:
        versions.ensure_agent(workspace, "desk")
        yield workspace


def test_a_week_that_is_worse_beyond_chance_is_a_regression(desk_ws: Workspace) -> None:
    for week, good in ((MONDAY - timedelta(days=7), 27), (MONDAY, 6)):
        for number in range(30):
            name = f"{week}-{number}"
            answered = {"occurred_at": f"{week}T00:00:01Z", "input": "?", "output": "!"}
            store(desk_ws, {"id": name} | answered)
            add_feedback(desk_ws, "desk", name, "thumb", number < good, rater="ann")
    (notice,) = notices(desk_ws, DESK, {}, NOW)
    assert (notice.kind, notice.key) == ("regression", f"regression {MONDAY}")
    assert "found 20 % of 30 rated answers good" in notice.text
    assert "90 % of 30" in notice.text


def fail(ws: Workspace, kind: str) -> str:
    """A job that failed, with an error that quotes somebody."""
    job = queue.enqueue(ws, kind, {"agent": "desk"}, agent="desk")
    error = {"kind": "DataError", "what": "x", "why": "customer-17 said so", "fix": "y"}
    change = schema.jobs.update().where(schema.jobs.c.id == job.id)
    values = {"state": "failed", "error": error, "ended_at": datetime.now(UTC)}
    ws.db.write(lambda connection: connection.execute(change.values(**values)))
    return job.id


def test_a_failed_job_is_told_without_its_error_until_one_succeeds(desk_ws: Workspace) -> None:
    job_id = fail(desk_ws, "evaluate")
    fail(desk_ws, JOB_KIND)
    (notice,) = notices(desk_ws, DESK, {}, datetime.now(UTC))
    assert (notice.kind, notice.title) == ("failed_job", "desk: evaluate failed")
    assert notice.path == f"/jobs/{job_id}"
    assert "customer-17" not in str(notice.to_json())
    assert notices(desk_ws, DESK, {}, datetime.now(UTC) + timedelta(days=8)) == []
    later = queue.enqueue(desk_ws, "evaluate", {"agent": "desk"}, agent="desk")
    succeeded = schema.jobs.update().where(schema.jobs.c.id == later.id).values(state="succeeded")
    desk_ws.db.write(lambda connection: connection.execute(succeeded))
    assert notices(desk_ws, DESK, {}, datetime.now(UTC)) == []


def test_a_version_that_lost_its_traffic_is_a_stop_loss(tmp_path: Path) -> None:
    with opened_home(tmp_path / "home") as ws, ScriptedUpstream() as upstream:
        for model in ("large", "small"):
            serve_remote(ws, EndpointAddress(upstream.url, model), alias=None)
        switch.promote(ws, versions.version(ws, SUPPORT, "v0"))
        with RoutingTable(ws, GatewayConfig(), 3600.0) as table:
            experiment = ExperimentWorld(ws, table).begin("v0", "v1", min_units=50)
        agent = Agent.named(SUPPORT)
        assert notices(ws, agent, {}, datetime.now(UTC)) == []

        def lose(connection: sa.Connection) -> None:
            ended = {"state": "lost", "ended_at": datetime.now(UTC)}
            connection.execute(schema.experiments.update().values(**ended))

        ws.db.write(lose)
        (notice,) = notices(ws, agent, {}, datetime.now(UTC))
        assert (notice.kind, notice.title) == ("stop_loss", "support: v1 lost against v0")
        assert notice.path.endswith(experiment.id)


def watched(version: str, silent_for: float, is_stopped: bool = False) -> Watched:
    """A deployment that has not answered for so many seconds."""
    deployment: Any = SimpleNamespace(agent="desk", version=version)
    silence = Health(False, "connection refused")
    return Watched(deployment, silence, is_stopped, time.monotonic() - silent_for)


class SilentWatch(DeploymentWatch):
    """A watch that looked already."""

    def down(self) -> list[Watched]:
        """Return a deployment that may be starting, one that is dead, and one that was stopped."""
        return [watched("v1", 5.0), watched("v2", 120.0), watched("v3", 120.0, is_stopped=True)]


def test_only_a_deployment_that_is_silent_for_long_is_told_once_a_day(desk_ws: Workspace) -> None:
    down = long_dead(SilentWatch(desk_ws, list, lambda: None))
    assert down == {("desk", "v2"): "connection refused"}
    (notice,) = notices(desk_ws, DESK, down, NOW)
    (again,) = notices(desk_ws, DESK, down, NOW + timedelta(seconds=1))
    (tomorrow,) = notices(desk_ws, DESK, down, NOW + timedelta(days=1))
    assert notice.kind == "dead_deployment"
    assert notice.key != tomorrow.key
    assert again.key in (notice.key, tomorrow.key)
