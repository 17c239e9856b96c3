"""The inbox of a loop: what is asked, once, and what an answer does and does not do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from thumbwheel.core.clock import utc_now
from thumbwheel.core.errors import Conflict, NotFound, ThumbwheelError
from thumbwheel.db.schema import loop_decisions, model_versions
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation.policy import GateVerdict
from thumbwheel.loop import approval
from thumbwheel.loop.approval import approve
from thumbwheel.loop.cycle import is_allowed
from thumbwheel.loop.cycle_types import CycleConfig, CycleReport
from thumbwheel.loop.inbox import answer, decisions, refuse
from thumbwheel.loop.loops import cycle_config, enable, status
from thumbwheel.loop.trigger_types import Wish, WishState
from thumbwheel.models import versions
from thumbwheel.models.types import Agent, ModelVersion

AGENT = Agent.named("support")
CONFIG = CycleConfig(
    export=("merged",),
    deploy="embedded",
    auto_export="ask",
    auto_deploy="ask",
    auto_promote="ask",
)


@pytest.fixture
def approved(empty_ws: Workspace, turn: ModelVersion) -> Iterator[ModelVersion]:
    yield turn


def put(ws: Workspace, version: ModelVersion, wish: Wish, config: CycleConfig = CONFIG) -> bool:
    cycle = CycleReport("support", version=version.name, verdict=GateVerdict.APPROVED)
    return is_allowed(ws, version, cycle, config, wish)


@pytest.mark.parametrize(("consent", "allowed"), [("on", True), ("ask", False), ("off", False)])
def test_a_switch_lets_a_step_happen_asks_or_leaves_it(
    empty_ws: Workspace, approved: ModelVersion, consent: str, allowed: bool
) -> None:
    config = CycleConfig(export=("merged",), auto_export=consent)
    assert put(empty_ws, approved, Wish.EXPORT, config) is allowed
    questions = [pending.question for pending in decisions(empty_ws, AGENT)]
    assert questions == (["export v1 as merged?"] if consent == "ask" else [])


def test_a_turn_asks_once_for_each_version_and_step(
    empty_ws: Workspace, approved: ModelVersion
) -> None:
    for _ in range(2):
        for wish in Wish:
            assert put(empty_ws, approved, wish) is False
    waiting = decisions(empty_ws, AGENT)
    assert [pending.question for pending in waiting] == [
        "export v1 as merged?",
        "deploy v1 on embedded?",
        "make v1 live (basis gold: approved on cases that you reviewed)?",
    ]
    assert [pending.question for pending in status(empty_ws, AGENT).waiting] == [
        pending.question for pending in waiting
    ]
    # a refusal is an answer too: the question does not come back
    refuse(empty_ws, AGENT, waiting[0].id, "anna", "too large")
    put(empty_ws, approved, Wish.EXPORT)
    assert len(decisions(empty_ws, AGENT)) == 2
    refused = decisions(empty_ws, AGENT, every=True)[0]
    assert (refused.state, refused.answered_by, refused.reason) == (
        WishState.REFUSED,
        "anna",
        "too large",
    )
    with pytest.raises(Conflict, match="it is refused by anna"):
        approve(empty_ws, AGENT, refused.id, "ben")
    with pytest.raises(NotFound, match="Waiting: dec_"):
        refuse(empty_ws, AGENT, "dec_nothing", "anna")


def test_a_step_that_fails_goes_on_waiting(empty_ws: Workspace, approved: ModelVersion) -> None:
    """The base of this version is nowhere, and it is not deployed."""
    put(empty_ws, approved, Wish.EXPORT)
    put(empty_ws, approved, Wish.PROMOTE)
    export, promote = decisions(empty_ws, AGENT)
    with pytest.raises(ThumbwheelError):
        approve(empty_ws, AGENT, export.id, "anna")
    with pytest.raises(ThumbwheelError):
        approve(empty_ws, AGENT, promote.id, "anna")
    assert [pending.state for pending in decisions(empty_ws, AGENT)] == [WishState.WAITING] * 2


def test_nobody_refuses_what_is_approved_at_this_moment(
    empty_ws: Workspace, approved: ModelVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step of an approval takes minutes: a refusal that was taken meanwhile would stop nothing,
    and the version would be live though it was refused."""
    put(empty_ws, approved, Wish.PROMOTE)
    (pending,) = decisions(empty_ws, AGENT)
    steps: list[str] = []

    def promote_slowly(*arguments: Any, **options: Any) -> None:
        for decide in (refuse, approve):
            with pytest.raises(Conflict, match="answers it at this moment"):
                decide(empty_ws, AGENT, pending.id, "ben")
        steps.append("promoted")

    monkeypatch.setattr(approval, "promote", promote_slowly)
    approve(empty_ws, AGENT, pending.id, "anna")
    (answered,) = decisions(empty_ws, AGENT, every=True)
    assert steps == ["promoted"]
    assert (answered.state, answered.answered_by) == (WishState.APPROVED, "anna")


def test_of_two_answers_in_one_moment_one_is_told_so(
    empty_ws: Workspace, approved: ModelVersion
) -> None:
    put(empty_ws, approved, Wish.EXPORT)
    (pending,) = decisions(empty_ws, AGENT)
    refuse(empty_ws, AGENT, pending.id, "anna")
    with pytest.raises(Conflict, match="in the same moment"):
        answer(empty_ws, pending, WishState.APPROVED, "ben", None, utc_now)
    (answered,) = decisions(empty_ws, AGENT, every=True)
    assert (answered.state, answered.answered_by) == (WishState.REFUSED, "anna")


def test_a_decision_about_a_tainted_version_is_moot(
    empty_ws: Workspace, approved: ModelVersion
) -> None:
    put(empty_ws, approved, Wish.PROMOTE)
    (pending,) = decisions(empty_ws, AGENT)

    def taint(connection: sa.Connection) -> None:
        connection.execute(model_versions.update().values(tainted=True))

    empty_ws.db.write(taint)
    with pytest.raises(Conflict, match="erased since"):
        approve(empty_ws, AGENT, pending.id, "anna")
    (moot,) = decisions(empty_ws, AGENT, every=True)
    assert moot.state is WishState.MOOT


def make_newer_live(ws: Workspace, approved: ModelVersion) -> None:
    """Put v9 live."""

    def work(connection: sa.Connection) -> None:
        row = connection.execute(
            sa.select(model_versions).where(model_versions.c.id == approved.id)
        ).one()
        newer = {**row._mapping, "id": "ver_newer", "number": 9, "run_id": None}
        connection.execute(model_versions.insert().values(**newer))
        from thumbwheel.db.schema import aliases

        connection.execute(
            aliases.insert().values(
                agent_id=AGENT.id,
                name="live",
                version_id="ver_newer",
                recorded_at=row.recorded_at,
            )
        )

    ws.db.write(work)
    assert versions.aliases_of(ws, AGENT)["live"] == "ver_newer"


def test_a_decision_that_a_newer_live_version_has_overtaken_is_moot(
    empty_ws: Workspace, approved: ModelVersion
) -> None:
    put(empty_ws, approved, Wish.PROMOTE)
    (pending,) = decisions(empty_ws, AGENT)
    make_newer_live(empty_ws, approved)
    with pytest.raises(Conflict, match="v9, which is newer, is live"):
        approve(empty_ws, AGENT, pending.id, "anna")


@pytest.mark.parametrize("wish", [Wish.PROMOTE, Wish.DEPLOY])
def test_an_approval_does_not_replace_a_newer_version_that_goes_live_in_the_same_moment(
    empty_ws: Workspace, approved: ModelVersion, monkeypatch: pytest.MonkeyPatch, wish: Wish
) -> None:
    put(empty_ws, approved, wish)
    (pending,) = decisions(empty_ws, AGENT)
    # after the look at what is live, and before the step
    monkeypatch.setattr(
        approval, "_require_permitted", lambda *_: make_newer_live(empty_ws, approved)
    )
    alias = "live" if wish is Wish.DEPLOY else None
    with pytest.raises(Conflict, match="v9, which is newer, is live"):
        approve(empty_ws, AGENT, pending.id, "anna", alias=alias)
    assert versions.aliases_of(empty_ws, AGENT)["live"] == "ver_newer"
    monkeypatch.undo()
    with pytest.raises(Conflict, match="the question is closed"):
        approve(empty_ws, AGENT, pending.id, "anna", alias=alias)
    (moot,) = decisions(empty_ws, AGENT, every=True)
    assert moot.state is WishState.MOOT


def test_an_enabled_loop_asks_before_it_deploys_unless_its_owner_says_otherwise(
    empty_ws: Workspace, approved: ModelVersion
) -> None:
    enable(empty_ws, AGENT, {"export": ["merged"]})
    config = cycle_config(empty_ws, AGENT)
    assert (config.auto_export, config.auto_deploy, config.auto_promote) == ("on", "ask", "ask")
    enable(empty_ws, AGENT, {"auto_deploy": "on"})
    config = cycle_config(empty_ws, AGENT)
    assert (config.export, config.auto_deploy, config.auto_promote) == (("merged",), "on", "ask")
    assert CycleConfig().auto_deploy == "on", "a turn by hand does what it is told"


def test_the_commands(empty_ws: Workspace, approved: ModelVersion, command_line) -> None:
    put(empty_ws, approved, Wish.EXPORT)
    empty_ws.db.close()
    code, out, err = command_line(
        "--home", str(empty_ws.home.path), "loop", "decisions", "--agent", "support", "--json"
    )
    assert code == 0, err
    (pending,) = json.loads(out)
    assert pending["question"] == "export v1 as merged?"
    home = ("--home", str(empty_ws.home.path), "loop")
    agent = ("--agent", "support", "--json")
    code, out, _ = command_line(*home, "refuse", pending["id"], *agent, "--reason", "no")
    assert json.loads(out)["state"] == "refused"
    code, _, err = command_line(*home, "approve", pending["id"], *agent)
    assert code != 0
    assert "it is refused by owner" in err
    with Workspace.open(empty_ws.home, empty_ws.sources) as again, again.db.read() as connection:
        count = connection.execute(sa.select(sa.func.count()).select_from(loop_decisions))
        assert count.scalar_one() == 1
