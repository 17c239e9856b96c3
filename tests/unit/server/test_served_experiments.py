"""The running server shares traffic, records who saw what, and ends an experiment by itself."""

from __future__ import annotations

from pathlib import Path

from tests.servers.scripted_upstream import RESET, ScriptedUpstream
from tests.waiting import until
from tests.worlds.gateway_world import AGENT, call_of, opened_home, running, serve_remote
from thumbwheel.capture.inbox import drain_inbox
from thumbwheel.db.workspace import Workspace
from thumbwheel.experiments import controller
from thumbwheel.experiments.types import Experiment, State
from thumbwheel.loop import experiment as verbs
from thumbwheel.models.types import Agent, EndpointAddress


def begun(ws: Workspace) -> Experiment:
    agent = Agent.named(AGENT)
    plan, forecast = verbs.draft(ws, agent, "live", ["v0", "v1"], [], {})
    return verbs.start(ws, agent, "live", plan, forecast)


def test_a_dead_arm_is_ended_by_the_server_and_no_client_notices(tmp_path: Path) -> None:
    with ScriptedUpstream() as good, ScriptedUpstream() as bad, opened_home(tmp_path) as ws:
        serve_remote(ws, EndpointAddress(good.url, "large"))
        serve_remote(ws, EndpointAddress(bad.url, "small"), alias=None)
        experiment = begun(ws)
        bad.script = lambda request: [RESET]
        with running(ws) as gateway:
            answers = []
            for number in range(30):
                headers = {"x-thumbwheel-subject": f"user-{number}"}
                answers.append(gateway.ask(headers=headers))
            assert {answer.status_code for answer in answers} == {200}
            assert {answer.headers["x-thumbwheel-version"] for answer in answers} == {"v0"}
            routings = [call_of(line)["routing"] for line in gateway.lines(30)]
            assert {routing["experiment"] for routing in routings} == {experiment.id}
            failed = [routing for routing in routings if routing.get("assigned") == "v1"]
            assert len(failed) >= 5
            assert all("arm" not in routing for routing in failed)
            counted = [routing for routing in routings if routing.get("arm") == "v0"]
            assert all(routing["probabilities"] == {"v0": 0.5, "v1": 0.5} for routing in counted)
            drain_inbox(ws, everything=True)
            until(lambda: controller.find(ws, experiment.id).state is not State.RUNNING)
            reason = controller.find(ws, experiment.id).reason
            assert "failed to answer 5 different units in a row" in reason
            health = gateway.client.get("/health").json()
            assert "experiments" not in health["problems"]
