"""The routing table: the right choice, microseconds for it, and never much older than the
database."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.servers.scripted_upstream import ScriptedUpstream
from tests.waiting import until
from tests.worlds.gateway_world import AGENT, opened_home, serve_remote
from thumbwheel.app.routing_table import RoutingTable
from thumbwheel.core.errors import Conflict, ModelError, NotFound
from thumbwheel.core.secret_store import SecretStore
from thumbwheel.db import refreshed
from thumbwheel.db.schema import model_versions
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy import routing, switch
from thumbwheel.gateway.routing import RoutingRequest
from thumbwheel.gateway.settings import GatewayConfig
from thumbwheel.models import versions
from thumbwheel.models.types import EndpointAddress

LIVE = RoutingRequest(AGENT, "live", AGENT)
BOUND = 0.05
"""Seconds that the table may be older than the database."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A choice waits for the look that it asked for also where the machine stands still."""
    monkeypatch.setattr(refreshed, "PATIENCE", 60.0)


@pytest.fixture
def routed_ws(tmp_path: Path):
    with ScriptedUpstream() as upstream, opened_home(tmp_path / "home") as workspace:
        for model in ("large", "small"):
            serve_remote(workspace, EndpointAddress(upstream.url, model, price_in=1.0))
        yield workspace


@pytest.mark.parametrize("every", [0.04, 3600.0], ids=["by the thread", "by the choice"])
def test_the_first_choice_after_the_bound_follows_a_switch(
    routed_ws: Workspace, every: float
) -> None:
    """Another connection switches. What the table knew before is older than the bound when the
    choice is asked for, however long anything takes."""
    with RoutingTable(routed_ws, GatewayConfig(), every) as table:
        assert table.choose(LIVE).version == "v1"
        for version in ("v0", "v1") * 4:
            switch.promote(routed_ws, versions.version(routed_ws, AGENT, version))
            time.sleep(BOUND)
            assert table.choose(LIVE).version == version


def test_a_choice_says_what_answers_and_why(routed_ws: Workspace) -> None:
    config = GatewayConfig.model_validate({"agents": {AGENT: {"fallback": ["v0", "nothing"]}}})
    with RoutingTable(routed_ws, config) as table:
        choice = table.choose(LIVE)
        assert (choice.version, choice.upstream.model, choice.reason) == (
            "v1",
            "small",
            "alias live",
        )
        assert choice.upstream.price.prompt == 1.0 and choice.arm is None
        assert [upstream.version for upstream in choice.fallbacks] == ["v0"]
        assert table.names() == [AGENT, f"{AGENT}:live"]
        with pytest.raises(NotFound, match="Did you mean 'support'"):
            table.choose(RoutingRequest("suport", "live", "suport"))
        with pytest.raises(NotFound, match="the alias points at no version"):
            table.choose(RoutingRequest(AGENT, "canary", f"{AGENT}:canary"))


def test_a_version_is_a_models_name_by_its_number(routed_ws: Workspace) -> None:
    with RoutingTable(routed_ws, GatewayConfig()) as table:
        for name in ("v0", "v1"):
            choice = table.choose(RoutingRequest(AGENT, name, f"{AGENT}:{name}"))
            assert choice.version == name
            assert routing.resolve(routed_ws, f"{AGENT}:{name}").version == name
        assert table.names() == [AGENT, f"{AGENT}:live"], "clients are shown what is live"
        with pytest.raises(NotFound):
            table.choose(RoutingRequest(AGENT, "v7", f"{AGENT}:v7"))
        with pytest.raises(NotFound):
            routing.resolve(routed_ws, f"{AGENT}:v7")


def test_a_fallback_answers_where_the_live_one_cannot_be_asked(routed_ws: Workspace) -> None:
    """As where its server has died, or here where its key is gone."""
    url = routing.resolve(routed_ws, AGENT).endpoint.url
    secrets = SecretStore(routed_ws.home.secrets)
    secrets.set("LOST_KEY", "k")
    serve_remote(routed_ws, EndpointAddress(url, "locked", secret="LOST_KEY"))
    secrets.remove("LOST_KEY")
    config = GatewayConfig.model_validate({"agents": {AGENT: {"fallback": ["v0"]}}})
    with RoutingTable(routed_ws, config) as table:
        choice = table.choose(LIVE)
        assert (choice.version, choice.is_fallback, choice.fallbacks) == ("v0", True, ())
        assert "fallback from v2" in choice.reason
        # v1 is deployed, too, and may be asked for by its number
        assert {row.version for row in table.served()} == {"v0", "v1", "v2"}
    with RoutingTable(routed_ws, GatewayConfig()) as table, pytest.raises(ModelError):
        table.choose(LIVE)


def test_a_tainted_version_answers_no_more(routed_ws: Workspace) -> None:
    with RoutingTable(routed_ws, GatewayConfig()) as table:
        routed_ws.db.write(
            lambda connection: connection.execute(model_versions.update().values(tainted=True))
        )
        time.sleep(BOUND)
        with pytest.raises(Conflict, match="tainted"):
            table.choose(LIVE)


def waits_of(table: RoutingTable, monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """The seconds of every wait for a look, from now on."""
    seconds: list[float | None] = []
    looked = table._refreshed._looked
    wait = looked.wait

    def counted(timeout: float | None = None) -> bool:
        seconds.append(timeout)
        return wait(timeout)

    monkeypatch.setattr(looked, "wait", counted)
    return seconds


def test_a_database_that_hangs_holds_up_no_choice(
    routed_ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RoutingTable(routed_ws, GatewayConfig()) as table:
        hangs, released = threading.Event(), threading.Event()
        table.choose(LIVE)  # so that the thread looks often

        def hang(ws: Workspace) -> str:
            hangs.set()
            released.wait()
            return ""

        monkeypatch.setattr(refreshed, "HANGING", 0.3)
        monkeypatch.setattr(refreshed, "PATIENCE", 0.2)
        monkeypatch.setattr(routing, "routing_state", hang)
        versions.ensure_agent(routed_ws, "another")
        assert hangs.wait(60)
        until(lambda: "not answered" in str(table.problem()))
        waits = waits_of(table, monkeypatch)
        for _ in range(20):
            assert table.choose(LIVE).version == "v1"
        assert waits == []
        released.set()


def test_a_server_that_went_away_without_a_word_holds_up_the_first_choice_only(
    routed_ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RoutingTable(routed_ws, GatewayConfig(), 3600.0) as table:
        asked, released = threading.Event(), threading.Event()

        def hang() -> object:
            asked.set()
            released.wait()
            raise OSError("gone")

        monkeypatch.setattr(table._changes, "marker", hang)
        monkeypatch.setattr(refreshed, "PATIENCE", 0.2)
        time.sleep(BOUND)
        # The first one waits, and again where the thread of the table is slow to begin.
        until(lambda: table.choose(LIVE).version == "v1" and asked.is_set())
        time.sleep(refreshed.PATIENCE)
        waits = waits_of(table, monkeypatch)
        for _ in range(20):
            assert table.choose(LIVE).version == "v1"
        assert waits == []
        released.set()


def test_without_its_database_the_table_answers_as_it_did(routed_ws: Workspace) -> None:
    with RoutingTable(routed_ws, GatewayConfig()) as table:
        rename = sa.text("ALTER TABLE deployments RENAME TO deployments_away")
        routed_ws.db.write(lambda connection: connection.execute(rename))
        while table.problem() is None:
            assert table.choose(LIVE).version == "v1"
        assert table.choose(LIVE).version == "v1"
        assert "cannot be read" in str(table.problem())
