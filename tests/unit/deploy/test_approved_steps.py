"""What a person's yes does to real deployments: a canary first, and then the step to live."""

from __future__ import annotations

import pytest

from tests.worlds.deploy_world import World
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


def test_yes_deploys_a_canary_and_a_second_yes_makes_it_live(world: World) -> None:
    version = world.version(0)
    world.deploy("v0")
    config = CycleConfig(deploy="embedded", auto_deploy="ask", auto_promote="ask")
    cycle = CycleReport(world.agent, version=version.name, verdict=GateVerdict.APPROVED)
    assert not is_allowed(world.ws, version, cycle, config, Wish.DEPLOY)
    (pending,) = decisions(world.ws, world.learner)

    result = approve(world.ws, world.learner, pending.id, "anna")
    assert result.deployment
    assert result.next_question == "make v1 live (basis gold: approved on cases that you reviewed)?"
    assert world.live() == "v0"
    assert versions.aliases_of(world.ws, world.learner)["canary"] == version.id

    (promotion,) = decisions(world.ws, world.learner)
    assert promotion.kind is Wish.PROMOTE
    assert approve(world.ws, world.learner, promotion.id, "anna").live == "v1"
    assert world.live() == "v1"
    switch = versions.switches(world.ws, world.learner, "live")[-1]
    assert switch.reason == "approved by anna"
    states = [pending.state for pending in decisions(world.ws, world.learner, every=True)]
    assert states == [WishState.APPROVED] * 2


def test_whoever_decides_chooses_live_or_canary_and_says_why(world: World) -> None:
    version = world.version(0)
    world.deploy("v0")
    config = CycleConfig(deploy="embedded", auto_deploy="ask", auto_promote="on")
    cycle = CycleReport(world.agent, version=version.name, verdict=GateVerdict.APPROVED)
    is_allowed(world.ws, version, cycle, config, Wish.DEPLOY)
    (pending,) = decisions(world.ws, world.learner)
    with pytest.raises(InputError, match="for live or canary"):
        approve(world.ws, world.learner, pending.id, "lea", alias="beta")

    approve(world.ws, world.learner, pending.id, "lea", "the tone is new", "canary")
    assert world.live() == "v0"
    (promotion,) = decisions(world.ws, world.learner)
    assert promotion.kind is Wish.PROMOTE
    again = approve(world.ws, world.learner, promotion.id, "lea", alias="canary")
    assert again.state is WishState.WAITING
    assert decisions(world.ws, world.learner) == [promotion], "live is still a question"

    approve(world.ws, world.learner, promotion.id, "lea", "nobody complained", "live")
    assert world.live() == "v1"
    answered = decisions(world.ws, world.learner, every=True)
    assert [row.reason for row in answered] == ["the tone is new", "nobody complained"]
    switch = versions.switches(world.ws, world.learner, "live")[-1]
    assert switch.reason == "approved by lea: nobody complained"


def test_what_was_approved_for_a_canary_does_not_go_live_by_an_answer(world: World) -> None:
    version = world.version(0, basis=Basis.FEEDBACK)
    config = CycleConfig(deploy="embedded", auto_deploy="ask")
    cycle = CycleReport(world.agent, version=version.name, verdict=GateVerdict.CANARY)
    is_allowed(world.ws, version, cycle, config, Wish.DEPLOY)
    (pending,) = decisions(world.ws, world.learner)
    with pytest.raises(Conflict, match="approved it for a canary only"):
        approve(world.ws, world.learner, pending.id, "lea", alias="live")
    assert decisions(world.ws, world.learner) == [pending]
