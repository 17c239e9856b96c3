"""From canary to live by a server in a process of its own: exposures that the gateway recorded, a
signed verdict, the basis `traffic`, the switch, and the verdict computed again without the server.

On the way the server is killed at each border, and goes on where it was."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path

import httpx2
import pytest

from tests.approvals import approve
from tests.command_line import Run
from tests.servers.scripted_upstream import ScriptedUpstream
from tests.servers.thumbwheel_server import running
from tests.worlds.experiment_world import ask_over_http, rate_over_http
from tests.worlds.gateway_world import AGENT, opened_home, serve_remote
from thumbwheel.db.schema import model_versions
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation.approval import check_traffic_verdict, require_approval
from thumbwheel.experiments import controller
from thumbwheel.experiments.row_seals import SealCheck, check_seals
from thumbwheel.experiments.types import ENDS, Experiment
from thumbwheel.loop.canary_experiment import begin_experiment
from thumbwheel.loop.cycle_types import CycleConfig, CycleReport
from thumbwheel.models import versions
from thumbwheel.models.types import LIVE, Agent, Basis, EndpointAddress, VersionState

pytestmark = pytest.mark.slow

KILLED = """
import importlib, os, signal
module = importlib.import_module({module!r})
original = getattr(module, {name!r})

def killed(*arguments, **options):
    if {is_done!r}:
        original(*arguments, **options)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(module, {name!r}, killed)
"""
EXPERIMENT = {"min_hours": 0.0, "min_senders": 1, "rater_units": 100_000}
"""One client speaks for everybody, within seconds."""
CONTROLLER, VERSIONS = "thumbwheel.experiments.controller", "thumbwheel.models.versions"
BORDERS = (
    (CONTROLLER, "_finish", False, "v0", Basis.FEEDBACK),  # the verdict is signed
    (VERSIONS, "confirm", False, "v0", Basis.FEEDBACK),
    (VERSIONS, "confirm", True, "v0", Basis.TRAFFIC),
    (VERSIONS, "point", False, "v0", Basis.TRAFFIC),
    (VERSIONS, "point", True, "v1", Basis.TRAFFIC),  # in the middle of the switch
    (CONTROLLER, "_moved", False, "v1", Basis.TRAFFIC),  # the experiment is to be ended
)
"""Where the server is killed, in order; what is live then, and the basis of v1."""


def test_a_canary_goes_live_by_traffic_over_a_kill_at_each_border(
    tmp_path: Path, command_line: Run
) -> None:
    home = tmp_path / "home"
    with ScriptedUpstream() as upstream, opened_home(home, experiment=EXPERIMENT) as ws:
        experiment = canary_experiment(ws, upstream)
        module, name, is_done, _, _ = BORDERS[0]
        prelude = KILLED.format(module=module, name=name, is_done=is_done)
        with running(home, prelude=prelude) as server:
            asked = serve_people_until_killed(server.url)
            assert server.process.wait(90) == -signal.SIGKILL
        assert (live(ws), basis(ws)) == ("v0", Basis.FEEDBACK)
        (verdict,) = controller.verdicts_of(ws, experiment)
        check_traffic_verdict(ws, verdict)

        for module, name, is_done, live_then, basis_then in BORDERS[1:]:
            prelude = KILLED.format(module=module, name=name, is_done=is_done)
            with running(home, prelude=prelude) as server:
                assert server.process.wait(90) == -signal.SIGKILL
            assert (live(ws), basis(ws)) == (live_then, basis_then), name
        with running(home) as server, httpx2.Client(base_url=server.url, timeout=120) as client:
            ended = await_end(ws, experiment)
            await_version(client, "v1")

        assert (str(ended.state), len(controller.verdicts_of(ws, ended))) == ("won", 1)
        assert len(versions.switches(ws, Agent.named(AGENT), LIVE)) == 2
        require_approval(ws, versions.version(ws, AGENT, "v1"), LIVE)
        assert 100 < ended.collected.calls <= asked  # those after the verdict count for nobody
        assert check_seals(ws, ended) == SealCheck((), 0)
        code, out, error = command_line(
            "--home", str(home), "experiment", "replay", experiment.id, "--json"
        )
        (replayed,) = json.loads(out)
        assert code == 0, error
        assert (replayed["was"], replayed["is"], replayed["same_units"]) == ("won", "won", True)


def canary_experiment(ws: Workspace, upstream: ScriptedUpstream) -> Experiment:
    """v0 is live; v1 was approved on feedback, and a turn of the wheel begins its experiment."""
    serve_remote(ws, EndpointAddress(upstream.url, "large"))
    serve_remote(ws, EndpointAddress(upstream.url, "small"), alias=None)
    # v1 as if it had been trained here: it has an adapter, so it needs a decision of the gate
    trained = {"adapter": {"weights": "0" * 64}, "state": VersionState.CANDIDATE, "basis": None}
    is_second = model_versions.c.number == 1
    edited = model_versions.update().where(is_second).values(**trained)
    ws.db.write(lambda connection: connection.execute(edited))
    version = approve(ws, versions.version(ws, AGENT, "v1"), Basis.FEEDBACK)
    config = CycleConfig(experiment="thumb", deploy="embedded", auto_promote="on")
    report = CycleReport(AGENT, version="v1")
    experiment = begin_experiment(ws, version, config, report)
    assert experiment is not None, report.reasons
    return experiment


def serve_people_until_killed(url: str) -> int:
    """People ask and rate until the server is gone; how many asked."""
    draw = random.Random(3)
    with httpx2.Client(base_url=url, timeout=120) as client:
        for number in range(3000):
            try:
                trace_id, version = ask_over_http(client, f"user-{number}")
                rate_over_http(client, trace_id, draw.random() < {"v0": 0.1, "v1": 0.9}[version])
            except (httpx2.NetworkError, httpx2.RemoteProtocolError):
                return number + 1
    raise AssertionError("3,000 people decided nothing")


def await_end(ws: Workspace, experiment: Experiment) -> Experiment:
    deadline = time.monotonic() + 60
    while (current := controller.find(ws, experiment.id)).state not in ENDS:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return current


def await_version(client: httpx2.Client, version: str) -> None:
    """Everybody is answered by this version, as soon as the table of routes has followed."""
    deadline = time.monotonic() + 60
    while {ask_over_http(client, f"late-{number}")[1] for number in range(8)} != {version}:
        assert time.monotonic() < deadline


def live(ws: Workspace) -> str:
    return versions.by_id(ws, versions.aliases_of(ws, Agent.named(AGENT))[LIVE]).name


def basis(ws: Workspace) -> Basis | None:
    return versions.version(ws, AGENT, "v1").basis
