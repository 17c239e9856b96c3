"""N7: whoever sends requests that no model answers ends no experiment by them.

An upstream's 400, 401, 413 or 422 of one client counted as failures of the arm, and five of them in
a row ended it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.servers.scripted_upstream import RESET, Received, ScriptedUpstream, chat_reply, reply
from tests.worlds.gateway_world import AGENT, GatewayWorld, opened_home, running, serve_remote
from thumbwheel.capture.inbox import drain_inbox
from thumbwheel.core.seal import make_seal
from thumbwheel.experiments import controller
from thumbwheel.experiments.analysis import DEAD
from thumbwheel.experiments.exposures import collect
from thumbwheel.experiments.types import Decision, Experiment
from thumbwheel.loop import experiment as verbs
from thumbwheel.models.types import Agent, EndpointAddress

STATUSES = {400: "Bad Request", 401: "Unauthorized", 413: "Too Large", 422: "Unprocessable"}


@dataclass
class Trial:
    """A server whose agent is in an experiment of v0 and v1."""

    gateway: GatewayWorld
    experiment: Experiment
    control: ScriptedUpstream
    treatment: ScriptedUpstream
    calls: int = 0

    def ask(self, user: str, text: str = "hello") -> int:
        self.calls += 1
        headers = {"x-thumbwheel-subject": user}
        messages = [{"role": "user", "content": text}]
        body = {"model": AGENT, "messages": messages}
        answer = self.gateway.client.post("/v1/chat/completions", json=body, headers=headers)
        return int(answer.status_code)

    def decision(self) -> Decision:
        """What would be decided by all calls, once each is a row."""
        ws = self.gateway.ws
        self.gateway.lines(self.calls)
        drain_inbox(ws, everything=True)
        assert not (ws.home.inbox / "rejected.jsonl").exists()
        current = controller.find(ws, self.experiment.id)
        collect(ws, current, current.recorded_at)
        return controller.look(ws, current)[1]


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    with begun(tmp_path) as world:
        yield world


@contextmanager
def begun(folder: Path) -> Iterator[Trial]:
    with ExitStack() as stack:
        control = stack.enter_context(ScriptedUpstream())
        treatment = stack.enter_context(ScriptedUpstream())
        ws = stack.enter_context(opened_home(folder))
        serve_remote(ws, EndpointAddress(control.url, "large"))
        serve_remote(ws, EndpointAddress(treatment.url, "small"), alias=None)
        agent = Agent.named(AGENT)
        plan, forecast = verbs.draft(ws, agent, "live", ["v0", "v1"], [], {})
        # The same people get the same arms in every run.
        experiment = verbs.start(ws, agent, "live", plan, forecast, salt="n07")
        gateway = stack.enter_context(running(ws))
        yield Trial(gateway, experiment, control, treatment)


def refusing(status: int, text: str = "") -> Callable[[Received], Iterator[bytes]]:
    """A script that refuses calls with this text, and answers others."""

    def script(request: Received) -> Iterator[bytes]:
        if text in json.loads(request.body)["messages"][-1]["content"]:
            error = {"error": {"message": "no"}}
            yield reply(error, f"{status} {STATUSES.get(status, 'No')}")
        else:
            yield reply(chat_reply())

    return script


@pytest.mark.parametrize("status", STATUSES)
def test_bad_requests_end_no_arm(trial: Trial, status: int) -> None:
    trial.control.script = trial.treatment.script = refusing(status, "nonsense")
    answers = {trial.ask(f"user-{number}", "nonsense") for number in range(4 * DEAD)}
    assert answers == {status}
    decision = trial.decision()
    assert decision.verdict == "undecided", decision.reasons
    figures = controller.look(trial.gateway.ws, trial.experiment)[0].arms
    assert not any(arm.dead for arm in figures)


@pytest.mark.parametrize("status", STATUSES)
def test_an_arm_that_refuses_what_the_control_answers_is_stopped(trial: Trial, status: int) -> None:
    """And nobody notices: the control answers."""
    trial.treatment.script = refusing(status)
    assert {trial.ask(f"user-{number}") for number in range(4 * DEAD)} == {200}
    decision = trial.decision()
    assert decision.verdict == "lost"
    assert "different units" in decision.reasons[0]


def test_one_user_alone_ends_no_arm(trial: Trial) -> None:
    trial.treatment.script = lambda request: [RESET]
    for number in range(6):
        for _ in range(DEAD):
            trial.ask(f"user-{number % 2}")
    assert trial.decision().verdict == "undecided"


def test_a_request_that_breaks_every_server_ends_no_arm(trial: Trial) -> None:
    trial.control.script = trial.treatment.script = refusing(500, "poison")
    assert {trial.ask(f"user-{number}", "poison") for number in range(4 * DEAD)} == {500}
    assert trial.decision().verdict == "undecided"


def test_threads_that_make_one_secret_at_once_agree(tmp_path: Path) -> None:
    """The temporary file had the name of the process, which its threads share."""
    for number in range(20):
        path = tmp_path / f"key-{number}"
        with ThreadPoolExecutor(8) as threads:
            seals = list(threads.map(make_seal, [path] * 8))
        assert len({seal.of("a", "b") for seal in seals}) == 1
