"""What a person's yes does to real deployments: a canary first, and then the step to live."""

from __future__ import annotations

import pytest

from tests.worlds.deploy_world import DeployWorld
from thumbwheel.core.errors import Conflict, InputError
from thumbwheel.evaluation.policy import GateVerdict
from thumbwheel.loop.approval import approve
from thumbwheel.loop.cycle import is_allowed
from thumbwheel.loop.cycle_types import CycleConfig, CycleReport
from thumbwheel.loop.inbox import decisions
from thumbwheel.loop.trigger_types import Wish, WishState
from thumbwheel.models import versions
from thumbwheel.models.types import Basis

pytestmark = pytest.mark.slow  # it starts servers


def test_yes_deploys_a_canary_and_a_second_yes_makes_it_live(deployed: DeployWorld) -> None:
    version = deployed.version(0)
    deployed.deploy("v0")
    config = CycleConfig(deploy="embedded", auto_deploy="ask", auto_promote="ask")
    cycle = CycleReport(deployed.agent, version=version.name, verdict=GateVerdict.APPROVED)
    assert not is_allowed(deployed.ws, version, cycle, config, Wish.DEPLOY)
    (pending,) = decisions(deployed.ws, deployed.learner)

    result = approve(deployed.ws, deployed.learner, pending.id, "anna")
    assert result.deployment
    assert result.next_question == "make v1 live (basis gold: approved on cases that you reviewed)?"
    assert deployed.live() == "v0"
    assert versions.aliases_of(deployed.ws, deployed.learner)["canary"] == version.id

    (promotion,) = decisions(deployed.ws, deployed.learner)
    assert promotion.kind is Wish.PROMOTE
    assert approve(deployed.ws, deployed.learner, promotion.id, "anna").live == "v1"
    assert deployed.live() == "v1"
    switch = versions.switches(deployed.ws, deployed.learner, "live")[-1]
    assert switch.reason == "approved by anna"
    states = [pending.state for pending in decisions(deployed.ws, deployed.learner, every=True)]
    assert states == [WishState.APPROVED] * 2


def test_whoever_decides_chooses_live_or_canary_and_says_why(deployed: DeployWorld) -> None:
    version = deployed.version(0)
    deployed.deploy("v0")
    config = CycleConfig(deploy="embedded", auto_deploy="ask", auto_promote="on")
    cycle = CycleReport(deployed.agent, version=version.name, verdict=GateVerdict.APPROVED)
    is_allowed(deployed.ws, version, cycle, config, Wish.DEPLOY)
    (pending,) = decisions(deployed.ws, deployed.learner)
    with pytest.raises(InputError, match="only live and canary"):
        approve(deployed.ws, deployed.learner, pending.id, "lea", alias="beta")

    approve(deployed.ws, deployed.learner, pending.id, "lea", "the tone is new", "canary")
    assert deployed.live() == "v0"
    (promotion,) = decisions(deployed.ws, deployed.learner)
    assert promotion.kind is Wish.PROMOTE
    again = approve(deployed.ws, deployed.learner, promotion.id, "lea", alias="canary")
    assert again.state is WishState.WAITING
    assert decisions(deployed.ws, deployed.learner) == [promotion], "live is still a question"

    approve(deployed.ws, deployed.learner, promotion.id, "lea", "nobody complained", "live")
    assert deployed.live() == "v1"
    answered = decisions(deployed.ws, deployed.learner, every=True)
    assert [row.reason for row in answered] == ["the tone is new", "nobody complained"]
    switch = versions.switches(deployed.ws, deployed.learner, "live")[-1]
    assert switch.reason == "approved by lea: nobody complained"


def test_what_was_approved_for_a_canary_does_not_go_live_by_an_answer(
    deployed: DeployWorld,
) -> None:
    version = deployed.version(0, basis=Basis.FEEDBACK)
    config = CycleConfig(deploy="embedded", auto_deploy="ask")
    cycle = CycleReport(deployed.agent, version=version.name, verdict=GateVerdict.CANARY)
    is_allowed(deployed.ws, version, cycle, config, Wish.DEPLOY)
    (pending,) = decisions(deployed.ws, deployed.learner)
    with pytest.raises(Conflict, match="approved it for a canary only"):
        approve(deployed.ws, deployed.learner, pending.id, "lea", alias="live")
    assert decisions(deployed.ws, deployed.learner) == [pending]
