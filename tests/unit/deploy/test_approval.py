"""Who can edit the database can write any state into it; what goes live is what a signed decision
of the gate says."""

import json
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.approvals import approve, evaluation_of
from tests.worlds.deploy_world import World
from thumbwheel.core.errors import Conflict, ThumbwheelError
from thumbwheel.db import schema
from thumbwheel.deploy import deploy, routing, switch
from thumbwheel.evaluation import store
from thumbwheel.evaluation.approval import require_approval
from thumbwheel.evaluation.evaluate import evaluations
from thumbwheel.evaluation.gate import gate, replay
from thumbwheel.evaluation.policy import GatePolicy
from thumbwheel.export.package import exports
from thumbwheel.models import versions
from thumbwheel.models.types import Basis, VersionState


def edit(world: World, table: sa.Table, row_id: str, **values: object) -> None:
    """What `sqlite3 thumbwheel.db "UPDATE ..."` does."""
    done = world.ws.db.write(
        lambda c: c.execute(table.update().where(table.c.id == row_id).values(**values))
    )
    assert done.rowcount == 1


@pytest.mark.slow
def test_a_state_that_was_written_by_hand_lets_nothing_go_live(world: World) -> None:
    version = world.version(0, basis=None)
    edit(world, schema.model_versions, version.id, state="approved", basis="gold")
    forged = versions.by_id(world.ws, version.id)
    assert (forged.state, forged.basis) == (VersionState.APPROVED, Basis.GOLD)
    with pytest.raises(
        Conflict,
        match=r"no decision of the gate with a fitting signature.*thumbwheel evaluate v1 --agent",
    ):
        world.deploy(version)
    world.deploy(version, alias=None)  # kept warm, as any candidate may be
    for alias in ("live", "canary"):
        with pytest.raises(Conflict, match="no decision of the gate"):
            switch.promote(world.ws, version, alias)
    assert world.live() is None


def test_evaluating_again_decides_anew_about_a_forged_state(world: World) -> None:
    version = world.version(0, basis=None)
    edit(world, schema.model_versions, version.id, state="approved", basis="gold")
    gate(world.ws, evaluation_of(world.ws, version, Basis.GOLD, gains=0), GatePolicy())
    assert versions.by_id(world.ws, version.id).state is VersionState.REJECTED
    other = world.version(1, basis=None)
    edit(world, schema.model_versions, other.id, state="approved", basis="gold")
    assert approve(world.ws, other, Basis.FEEDBACK).basis is Basis.FEEDBACK


@pytest.mark.slow
def test_a_canary_is_not_made_live_by_its_row(world: World) -> None:
    version = world.version(0, Basis.FEEDBACK)
    world.deploy(version, "canary")
    edit(world, schema.model_versions, version.id, basis="gold")
    with pytest.raises(Conflict, match="marked approved on gold, and no decision"):
        switch.promote(world.ws, version)


def test_an_edited_decision_lets_nothing_go_live(world: World) -> None:
    version = world.version(0, Basis.FEEDBACK)
    with world.ws.db.read() as connection:
        (decision,) = store.find_decisions(connection, version_id=version.id)
    edit(world, schema.decisions, decision.id, decision="approved")
    edit(world, schema.model_versions, version.id, basis="gold")
    with pytest.raises(Conflict, match="no decision of the gate with a fitting signature"):
        world.deploy(version)
    with pytest.raises(Conflict, match=r"its signature does not fit.*evaluate the version again"):
        replay(world.ws, decision.id)
    edit(world, schema.decisions, decision.id, inputs=["nonsense"])
    with pytest.raises(Conflict, match="no decision of the gate with a fitting signature"):
        world.deploy(version)


def test_the_decision_of_another_version_or_of_other_weights_is_none(world: World) -> None:
    good, bad = world.version(0), world.version(1, basis=None)
    with world.ws.db.read() as connection:
        (decision,) = store.find_decisions(connection, version_id=good.id)
    edit(world, schema.model_versions, bad.id, state="approved", basis="gold")
    edit(world, schema.decisions, decision.id, version_id=bad.id)
    with pytest.raises(Conflict, match="no decision of the gate"):
        require_approval(world.ws, versions.by_id(world.ws, bad.id), "live")
    edit(world, schema.decisions, decision.id, version_id=good.id)
    require_approval(world.ws, versions.by_id(world.ws, good.id), "live")
    edit(
        world, schema.model_versions, good.id, adapter=bad.adapter
    )  # the row that was approved now names other files
    with pytest.raises(Conflict, match="no decision of the gate"):
        require_approval(world.ws, versions.by_id(world.ws, good.id), "live")


@pytest.mark.slow
def test_the_door_refuses_an_alias_that_was_bent_in_the_database(world: World) -> None:
    good, bad = world.version(0), world.version(1, basis=None)
    world.deploy(good)
    world.deploy(bad, alias=None)
    assert world.text()
    edit(world, schema.model_versions, bad.id, state="approved", basis="gold")
    world.ws.db.write(
        lambda c: c.execute(
            schema.aliases.update()
            .where(schema.aliases.c.agent_id == world.learner.id)
            .values(version_id=bad.id)
        )
    )
    reply = world.ask()
    assert (
        reply.status_code == 503 and "no decision of the gate" in reply.json()["error"]["message"]
    )
    switch.promote(world.ws, good)
    assert world.text()


def test_an_edited_evaluation_is_refused_and_not_signed_over(world: World) -> None:
    version = world.version(0, basis=None)
    evaluation = evaluation_of(world.ws, version, Basis.GOLD, gains=0)
    with world.ws.db.read() as connection:
        results = dict(
            connection.execute(
                sa.select(schema.evaluations.c.results).where(
                    schema.evaluations.c.id == evaluation.id
                )
            ).scalar_one()
        )
    primary = results["primary"] | {"after": 0.9, "gain": 0.9, "low": 0.8}
    edit(
        world,
        schema.evaluations,
        evaluation.id,
        results=json.loads(json.dumps(results | {"primary": primary})),
    )
    (forged,) = evaluations(world.ws, version)
    with pytest.raises(
        Conflict,
        match=rf"its signature does not fit.*Evaluate again.*thumbwheel evaluate {version.name}",
    ):
        gate(world.ws, forged)
    assert versions.by_id(world.ws, version.id).state is VersionState.CANDIDATE
    edit(world, schema.evaluations, evaluation.id, results=results | {"signature": None})
    with pytest.raises(Conflict, match="its signature does not fit"):
        gate(world.ws, evaluations(world.ws, version)[0])


def test_the_alias_command_asks_for_the_decision_too(
    world: World, command_line, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    version = world.version(0, basis=None)
    edit(world, schema.model_versions, version.id, state="approved", basis="gold")
    monkeypatch.setenv("THUMBWHEEL_HOME", str(world.ws.home.path))
    code, _, err = command_line("models", "alias", "live", version.name, "--agent", world.agent)
    assert code == 3 and "no decision of the gate" in err
    assert versions.aliases_of(world.ws, world.learner) == {}
    with pytest.raises(ThumbwheelError):
        deploy.plan(world.ws, version, "embedded", "live")


def test_nothing_is_exported_for_a_target_that_is_not_there(world: World) -> None:
    version = world.version(0)
    with pytest.raises(ThumbwheelError, match="nothing answers there"):
        deploy.deploy(world.ws, version, "ollama", settings={"host": "127.0.0.1:9"})
    assert exports(world.ws, version) == [] == routing.deployments(world.ws, world.learner)
