"""Every road that ends at `live`, and what it needs: gold cases, or a won experiment, or a version
that was not trained here. None ends there by held-out feedback alone."""

from __future__ import annotations

import ast
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.approvals import approve
from tests.command_line import Run
from tests.distributions import source_files
from tests.servers.scripted_upstream import ScriptedUpstream
from tests.servers.thumbwheel_server import LOOPBACK
from tests.worlds.experiment_world import ExperimentWorld
from tests.worlds.gateway_world import AGENT, GatewayWorld, opened_home, running, serve_remote
from thumbwheel.app.routing_table import RoutingTable
from thumbwheel.compat.isaa.agent_tools import KEY, RLTrainingManager
from thumbwheel.core import ids
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import Conflict, ThumbwheelError
from thumbwheel.db.schema import (
    aliases,
    deployments,
    job_events,
    jobs,
    loop_decisions,
    model_versions,
    switches,
)
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy import deploy, switch
from thumbwheel.evaluation.approval import add_traffic_verdicts, require_approval
from thumbwheel.evaluation.policy import GateVerdict
from thumbwheel.evaluation.signing import signed_verdict
from thumbwheel.evaluation.traffic import WON, TrafficVerdict
from thumbwheel.experiments import controller
from thumbwheel.gateway.settings import GatewayConfig
from thumbwheel.jobs import queue
from thumbwheel.loop import approval, inbox
from thumbwheel.loop.canary_experiment import begin_experiment
from thumbwheel.loop.cycle_types import CycleConfig, CycleReport
from thumbwheel.loop.experiment import AliasEffects, waiting_winner
from thumbwheel.loop.trigger_types import Wish
from thumbwheel.models import versions
from thumbwheel.models.types import BASIS, CANARY, LIVE, Agent, Basis, EndpointAddress, VersionState

SUPPORT = Agent.named(AGENT)


class Roads:
    """A home in which v0, which was not trained here, is live, and v1 as if it had been trained:
    it has an adapter, so it needs a decision of the gate."""

    def __init__(self, ws: Workspace, upstream: ScriptedUpstream, run: Run) -> None:
        self.ws, self.upstream, self.run = ws, upstream, run
        self.server: GatewayWorld | None = None
        self.experiments: list[str] = []
        serve_remote(ws, EndpointAddress(upstream.url, "large"))
        self.train("small")

    def train(self, model: str) -> str:
        """Another version that is deployed and decided on by nobody."""
        name = serve_remote(self.ws, EndpointAddress(self.upstream.url, model), alias=None)
        number = versions.version(self.ws, AGENT, name).number
        trained = {"adapter": {"weights": f"{number}" * 64}, "state": VersionState.CANDIDATE}
        self.edit(model_versions, model_versions.c.number == number, **trained, basis=None)
        return name

    def edit(self, table: sa.Table, where: Any, **values: Any) -> None:
        """What `sqlite3 thumbwheel.db "UPDATE ..."` does."""
        self.ws.db.write(lambda c: c.execute(table.update().where(where).values(**values)))

    @property
    def version(self) -> Any:
        return versions.version(self.ws, AGENT, "v1")

    def approved_on(self, basis: Basis) -> None:
        """Have v1 approved on gold, on feedback, or on feedback and by a won experiment."""
        if basis is not Basis.TRAFFIC:
            approve(self.ws, self.version, basis)
            return
        approve(self.ws, self.version, Basis.FEEDBACK)
        self.win(LIVE)
        versions.confirm(self.ws, self.version, Basis.TRAFFIC)

    def win(self, alias: str) -> None:
        """Store a signed verdict of an experiment on the traffic of this alias."""
        verdict = signed_verdict(
            self.ws,
            TrafficVerdict(
                id=ids.new("tvd"),
                agent=AGENT,
                alias=alias,
                version_id=self.version.id,
                experiment_id=self.begun(),
                verdict=WON,
                weights=self.version.weights,
                reasons=("v1 is better",),
                plan={},
                inputs={},
            ),
        )
        self.ws.db.write(lambda c: add_traffic_verdicts(c, SUPPORT.id, [verdict]))

    def begun(self) -> str:
        """An experiment that is over."""
        if self.experiments:
            return self.experiments[0]
        config = CycleConfig(experiment="thumb", deploy="remote")
        experiment = begin_experiment(self.ws, self.version, config, CycleReport(AGENT))
        assert experiment is not None
        controller.stop(self.ws, experiment, "over")
        self.experiments.append(experiment.id)
        return experiment.id

    def command(self, *words: str) -> tuple[int, str, str]:
        return self.run("--home", str(self.ws.home.path), *words)

    def begin_anew(self) -> None:
        """v0 is live as at first, and nothing waits for anybody."""
        for table in (aliases, switches, loop_decisions, job_events, jobs):
            self.ws.db.write(lambda c, table=table: c.execute(table.delete()))
        self.edit(deployments, deployments.c.state == "ended", state="warm")
        versions.point(self.ws, versions.version(self.ws, AGENT, "v0"), LIVE)

    def live(self) -> str:
        return versions.by_id(self.ws, versions.aliases_of(self.ws, SUPPORT)[LIVE]).name

    def last_basis(self) -> str | None:
        """The basis that the newest move of `live` names."""
        return versions.switches(self.ws, SUPPORT, LIVE)[-1].evidence.get(BASIS)


@pytest.fixture
def roads(tmp_path: Path, command_line: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[Roads]:
    options = {"min_hours": 0.0}  # these people come within seconds
    for name, value in LOOPBACK.items():  # for the commands; the open home says it for itself
        monkeypatch.setenv(name, value)
    home = opened_home(tmp_path / "home", experiment=options)
    with ScriptedUpstream() as upstream, home as ws:
        yield Roads(ws, upstream, command_line)


@pytest.fixture
def served_roads(roads: Roads) -> Iterator[Roads]:
    """The same with a server of the home."""
    with running(roads.ws) as server:
        roads.server = server
        yield roads


def by_command(*words: str) -> Callable[[Roads], None]:
    def go(roads: Roads) -> None:
        code, _, error = roads.command(*words, "--agent", AGENT)
        if code:
            raise Conflict("the command", error, "")

    return go


def by_request(method: str, path: str, body: dict[str, Any]) -> Callable[[Roads], None]:
    def go(roads: Roads) -> None:
        server = roads.server
        assert server is not None
        url = f"/api/agents/{AGENT}{path}"
        reply = server.client.request(method, url, json=body, headers=server.owner)
        if reply.status_code >= 400:
            raise Conflict("the request", reply.text, "")

    return go


def by_alias_command_without_deployments(roads: Roads) -> None:
    roads.edit(deployments, sa.true(), state="ended")
    by_command("models", "alias", "live", "v1")(roads)


def by_question(wish: Wish) -> Callable[[Roads], None]:
    def go(roads: Roads) -> None:
        config = CycleConfig(deploy="remote")
        report = CycleReport(AGENT, version="v1", verdict=GateVerdict.APPROVED)
        inbox.ask(roads.ws, roads.version, wish, config, report)
        (pending,) = inbox.decisions(roads.ws, SUPPORT)
        approval.approve(roads.ws, SUPPORT, pending.id, "anna")

    return go


def by_question_over_http(roads: Roads) -> None:
    report = CycleReport(AGENT, version="v1", verdict=GateVerdict.APPROVED)
    inbox.ask(roads.ws, roads.version, Wish.PROMOTE, CycleConfig(), report)
    (pending,) = inbox.decisions(roads.ws, SUPPORT)
    by_request("POST", f"/loop/decisions/{pending.id}/approval", {"by": "anna"})(roads)


def by_rollback(roads: Roads) -> None:
    """v1 was live before v0, as a history says that somebody wrote."""
    (begun,) = versions.switches(roads.ws, SUPPORT, LIVE)
    v0 = versions.version(roads.ws, AGENT, "v0")
    row = {**vars(begun), "id": ids.new("swi"), "agent_id": SUPPORT.id}
    row |= {"from_id": roads.version.id, "to_id": v0.id}
    roads.ws.db.write(lambda c: c.execute(switches.insert().values(**row)))
    switch.rollback(roads.ws, SUPPORT)


def by_tools_of_another_system(roads: Roads) -> None:
    """`rl_switch_model` of isaa: the version that a training of these tools gave, by its name."""
    spec = {"method": "kto", "agent": AGENT, "base": "b"}
    job = queue.enqueue(roads.ws, "train", spec, agent=AGENT, key=f"{KEY}mine")
    roads.edit(jobs, jobs.c.id == job.id, state="succeeded", result={"version": "v1"})
    RLTrainingManager(roads.ws.home.path, target="remote").switch("mine")


ROADS: dict[str, Callable[[Roads], None]] = {
    "promote": by_command("promote", "v1"),
    "deploy": by_command("deploy", "v1", "--target", "remote"),
    "models alias": by_command("models", "alias", "live", "v1"),
    "models alias where nothing is deployed": by_alias_command_without_deployments,
    "a rollback": by_rollback,
    "yes to a promotion": by_question(Wish.PROMOTE),
    "yes to a deployment": by_question(Wish.DEPLOY),
    "POST promotions": by_request("POST", "/promotions", {"version": "v1"}),
    "POST deployments": by_request("POST", "/deployments", {"version": "v1", "target": "remote"}),
    "PUT aliases": by_request("PUT", "/aliases/live", {"version": "v1"}),
    "POST approval": by_question_over_http,
    "isaa's tools": by_tools_of_another_system,
    "Python: promote": lambda roads: switch.promote(roads.ws, roads.version) and None,
    "Python: deploy": lambda roads: deploy.deploy(roads.ws, roads.version, "remote") and None,
    "Python: point": lambda roads: versions.point(roads.ws, roads.version, LIVE) and None,
}


def test_no_road_ends_live_by_feedback_alone(served_roads: Roads) -> None:
    roads = served_roads
    roads.approved_on(Basis.FEEDBACK)
    for road, go in ROADS.items():
        with pytest.raises(ThumbwheelError, match=r"canary only|no earlier version"):
            go(roads)
        assert roads.live() == "v0", road
        roads.begin_anew()
    switch.promote(roads.ws, roads.version, CANARY)  # that much it permits


@pytest.mark.parametrize("basis", [Basis.GOLD, Basis.TRAFFIC])
def test_gold_or_a_won_experiment_opens_every_road_and_the_switch_says_which(
    served_roads: Roads, basis: Basis
) -> None:
    roads = served_roads
    roads.approved_on(basis)
    for road, go in ROADS.items():
        go(roads)
        assert (roads.live(), roads.last_basis()) == ("v1", basis), road
        roads.begin_anew()
    switch.promote(roads.ws, roads.version)
    code, out, error = roads.command("deployments", "--agent", AGENT, "--history", "--json")
    assert code == 0, error
    assert json.loads(out)["switches"][-1]["evidence"][BASIS] == basis


@pytest.mark.parametrize("basis", [Basis.GOLD, Basis.TRAFFIC])
def test_a_basis_that_somebody_wrote_opens_no_road(served_roads: Roads, basis: Basis) -> None:
    """`versions.point` alone looks at the column; whoever calls it has asked for the decision."""
    roads = served_roads
    approve(roads.ws, roads.version, Basis.FEEDBACK)
    roads.edit(model_versions, model_versions.c.number == 1, basis=basis)
    for road, go in ROADS.items():
        if road == "Python: point":
            continue
        with pytest.raises(ThumbwheelError, match=r"no decision of the gate|no earlier version"):
            go(roads)
        assert roads.live() == "v0", road
        roads.begin_anew()


def test_what_was_not_trained_here_needs_no_decision_and_has_no_basis(roads: Roads) -> None:
    serve_remote(roads.ws, EndpointAddress(roads.upstream.url, "medium"), alias=None)
    by_command("promote", "v2")(roads)
    assert (roads.live(), roads.last_basis()) == ("v2", None)


def test_who_won_on_the_traffic_of_another_alias_is_no_better_than_what_is_live(
    roads: Roads,
) -> None:
    approve(roads.ws, roads.version, Basis.FEEDBACK)
    roads.win("beta")
    versions.confirm(roads.ws, roads.version, Basis.TRAFFIC)
    with pytest.raises(Conflict, match="no decision of the gate"):
        switch.promote(roads.ws, roads.version)
    roads.win(LIVE)
    assert switch.promote(roads.ws, roads.version).evidence[BASIS] == "traffic"


def test_a_restored_home_serves_what_it_could_prove_and_no_more(
    roads: Roads, tmp_path: Path
) -> None:
    """A backup has the home's keys, so its signatures hold; a bent alias is refused at the door."""
    roads.approved_on(Basis.TRAFFIC)
    switch.promote(roads.ws, roads.version)
    restored(roads, tmp_path / "proved", "v1")

    other = roads.train("medium")
    approve(roads.ws, versions.version(roads.ws, AGENT, other), Basis.FEEDBACK)
    bent = versions.version(roads.ws, AGENT, other).id
    roads.edit(aliases, aliases.c.name == LIVE, version_id=bent)
    with pytest.raises(Conflict, match="canary only"):
        restored(roads, tmp_path / "bent", other)


def restored(roads: Roads, folder: Path, live: str) -> None:
    """The home of `roads`, from a backup, with this version at its door."""
    source = folder.with_name(f"{folder.name}.backup")
    code, _, error = roads.command("backup", str(source))
    assert code == 0, error
    code, _, error = roads.run("--home", str(folder), "restore", str(source))
    assert code == 0, error
    with Workspace.open(Home(folder), Sources({}, "none", {})) as ws:
        version = versions.by_id(ws, versions.aliases_of(ws, SUPPORT)[LIVE])
        assert version.name == live
        require_approval(ws, version, LIVE)


def win_by_people(roads: Roads, name: str, **settings: Any) -> Any:
    """What becomes of the experiment of this version, whom people like better."""
    version = versions.version(roads.ws, AGENT, name)
    config = CycleConfig(experiment="thumb", deploy="remote", **settings)
    report = CycleReport(AGENT, version=name)
    experiment = begin_experiment(roads.ws, version, config, report)
    assert experiment is not None, report.reasons
    with RoutingTable(roads.ws, GatewayConfig(), 3600.0) as table:
        world = ExperimentWorld(roads.ws, table, number=1000 * version.number)
        world.refresh()
        draw = random.Random(2)
        for person in range(700):
            trace_id, choice = world.ask(f"user-{person}")
            world.rate(trace_id, draw.random() < (0.9 if choice.version == name else 0.1))
        assert world.turn()[experiment.id].verdict == "won"
    return controller.find(roads.ws, experiment.id)


def test_the_first_version_that_only_an_experiment_speaks_for_waits_for_a_person_once(
    roads: Roads,
) -> None:
    approve(roads.ws, roads.version, Basis.FEEDBACK)
    first = win_by_people(roads, "v1")
    assert roads.live() == "v0"
    assert roads.version.basis is Basis.TRAFFIC
    pending = waiting_winner(roads.ws, first)
    assert pending is not None
    assert pending.question.startswith("make v1 live (basis traffic: won an experiment")
    _, out, _ = roads.command("experiment", "show", first.id, "--json")
    assert json.loads(out)["waiting"] == pending.id
    by_command("loop", "approve", pending.id, "--by", "anna")(roads)
    assert (roads.live(), roads.last_basis()) == ("v1", "traffic")
    assert waiting_winner(roads.ws, first) is None

    name = roads.train("medium")
    approve(roads.ws, versions.version(roads.ws, AGENT, name), Basis.FEEDBACK)
    second = win_by_people(roads, name)
    assert (roads.live(), roads.last_basis()) == (name, "traffic")
    assert waiting_winner(roads.ws, second) is None


def test_nobody_is_asked_where_gold_cases_speak_for_the_winner_or_the_owner_said_on(
    roads: Roads,
) -> None:
    approve(roads.ws, roads.version, Basis.GOLD)
    win_by_people(roads, "v1")
    assert (roads.live(), roads.last_basis()) == ("v1", "gold")
    name = roads.train("medium")
    approve(roads.ws, versions.version(roads.ws, AGENT, name), Basis.FEEDBACK)
    win_by_people(roads, name, auto_promote="on")
    assert (roads.live(), roads.last_basis()) == (name, "traffic")


def test_an_alias_that_was_moved_meanwhile_stays_where_it_is(roads: Roads) -> None:
    """The winner was compared with what was live then, not with what is live now."""
    approve(roads.ws, roads.version, Basis.FEEDBACK)
    serve_remote(roads.ws, EndpointAddress(roads.upstream.url, "medium"), alias=None)
    control = versions.version(roads.ws, AGENT, "v0")
    roads.win(LIVE)
    versions.confirm(roads.ws, roads.version, Basis.TRAFFIC)
    by_command("promote", "v2")(roads)
    AliasEffects(roads.ws).promote(roads.version, control.id, LIVE, "won", False)
    assert roads.live() == "v2"


def test_an_arm_that_could_win_without_being_compared_with_what_is_live_is_refused(
    roads: Roads,
) -> None:
    approve(roads.ws, roads.version, Basis.FEEDBACK)
    serve_remote(roads.ws, EndpointAddress(roads.upstream.url, "medium"), alias=None)
    begin = by_command("experiment", "start", "--arm", "v2", "--arm", "v0", "--arm", "v1")
    with pytest.raises(Conflict, match="need not be better than v0"):
        begin(roads)
    by_command("experiment", "start", "--arm", "v0", "--arm", "v2", "--arm", "v1")(roads)


MOVERS = {"switch.promote", "promote", "versions.point", "store.add_switch", "set_alias"}
WHO_MOVES = {
    "compat/isaa/agent_tools.py": {"switch.promote"},
    "demo/ship.py": {"promote"},
    "deploy/commands.py": {"switch.promote"},
    "deploy/deploy.py": {"promote"},
    "deploy/jobs.py": {"promote"},
    "deploy/switch.py": {"versions.point"},
    "loop/approval.py": {"promote"},
    "loop/commands.py": {"promote", "versions.point"},
    "loop/experiment.py": {"switch.promote"},
    "models/store.py": {"set_alias"},
    "models/versions.py": {"store.add_switch"},
}


def test_there_is_no_other_road() -> None:
    """Who moves an alias is in this list, and in a test above. `deploy` calls `promote`, jobs and
    the wheel call `deploy`; routes, pages and MCP tools run the commands."""
    callers: dict[str, set[str]] = {}
    for path in source_files():
        source = path.read_text(encoding="utf-8")
        if not any(f"{mover}(" in source for mover in MOVERS):
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in MOVERS:
                name = path.as_posix().rpartition("/thumbwheel/")[2]
                callers.setdefault(name, set()).add(ast.unparse(node.func))
    assert callers == WHO_MOVES
