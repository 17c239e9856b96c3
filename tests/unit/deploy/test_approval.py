"""Who can edit the database can write any state into it; what goes live is what a signed decision
of the gate says."""

import json
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.approvals import approve, evaluation_of
from tests.worlds.deploy_world import DeployWorld
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


def edit(world: DeployWorld, table: sa.Table, row_id: str, **values: object) -> None:
    """What `sqlite3 thumbwheel.db "UPDATE ..."` does."""
    done = world.ws.db.write(
        lambda c: c.execute(table.update().where(table.c.id == row_id).values(**values))
    )
    assert done.rowcount == 1


@pytest.mark.slow
def test_a_state_that_was_written_by_hand_lets_nothing_go_live(deployed: DeployWorld) -> None:
    version = deployed.version(0, basis=None)
    edit(deployed, schema.model_versions, version.id, state="approved", basis="gold")
    forged = versions.by_id(deployed.ws, version.id)
    assert (forged.state, forged.basis) == (VersionState.APPROVED, Basis.GOLD)
    with pytest.raises(
        Conflict,
        match=r"no decision of the gate with a fitting signature.*thumbwheel evaluate v1 --agent",
    ):
        deployed.deploy(version)
    deployed.deploy(version, alias=None)  # kept warm, as any candidate may be
    for alias in ("live", "canary"):
        with pytest.raises(Conflict, match="no decision of the gate"):
            switch.promote(deployed.ws, version, alias)
    assert deployed.live() is None


def test_evaluating_again_decides_anew_about_a_forged_state(deployed: DeployWorld) -> None:
    version = deployed.version(0, basis=None)
    edit(deployed, schema.model_versions, version.id, state="approved", basis="gold")
    gate(deployed.ws, evaluation_of(deployed.ws, version, Basis.GOLD, gains=0), GatePolicy())
    assert versions.by_id(deployed.ws, version.id).state is VersionState.REJECTED
    other = deployed.version(1, basis=None)
    edit(deployed, schema.model_versions, other.id, state="approved", basis="gold")
    assert approve(deployed.ws, other, Basis.FEEDBACK).basis is Basis.FEEDBACK


@pytest.mark.slow
def test_a_canary_is_not_made_live_by_its_row(deployed: DeployWorld) -> None:
    version = deployed.version(0, Basis.FEEDBACK)
    deployed.deploy(version, "canary")
    edit(deployed, schema.model_versions, version.id, basis="gold")
    with pytest.raises(Conflict, match="marked approved on gold, but no decision"):
        switch.promote(deployed.ws, version)


def test_an_edited_decision_lets_nothing_go_live(deployed: DeployWorld) -> None:
    version = deployed.version(0, Basis.FEEDBACK)
    with deployed.ws.db.read() as connection:
        (decision,) = store.find_decisions(connection, version_id=version.id)
    edit(deployed, schema.decisions, decision.id, decision="approved")
    edit(deployed, schema.model_versions, version.id, basis="gold")
    with pytest.raises(Conflict, match="no decision of the gate with a fitting signature"):
        deployed.deploy(version)
    with pytest.raises(Conflict, match=r"its signature does not fit.*evaluate the version again"):
        replay(deployed.ws, decision.id)
    edit(deployed, schema.decisions, decision.id, inputs=["nonsense"])
    with pytest.raises(Conflict, match="no decision of the gate with a fitting signature"):
        deployed.deploy(version)


def test_the_decision_of_another_version_or_of_other_weights_is_none(deployed: DeployWorld) -> None:
    good, bad = deployed.version(0), deployed.version(1, basis=None)
    with deployed.ws.db.read() as connection:
        (decision,) = store.find_decisions(connection, version_id=good.id)
    edit(deployed, schema.model_versions, bad.id, state="approved", basis="gold")
    edit(deployed, schema.decisions, decision.id, version_id=bad.id)
    with pytest.raises(Conflict, match="no decision of the gate"):
        require_approval(deployed.ws, versions.by_id(deployed.ws, bad.id), "live")
    edit(deployed, schema.decisions, decision.id, version_id=good.id)
    require_approval(deployed.ws, versions.by_id(deployed.ws, good.id), "live")
    edit(
        deployed, schema.model_versions, good.id, adapter=bad.adapter
    )  # the row that was approved now names other files
    with pytest.raises(Conflict, match="no decision of the gate"):
        require_approval(deployed.ws, versions.by_id(deployed.ws, good.id), "live")


@pytest.mark.slow
def test_the_door_refuses_an_alias_that_was_bent_in_the_database(deployed: DeployWorld) -> None:
    good, bad = deployed.version(0), deployed.version(1, basis=None)
    deployed.deploy(good)
    deployed.deploy(bad, alias=None)
    assert deployed.text()
    edit(deployed, schema.model_versions, bad.id, state="approved", basis="gold")
    deployed.ws.db.write(
        lambda c: c.execute(
            schema.aliases.update()
            .where(schema.aliases.c.agent_id == deployed.learner.id)
            .values(version_id=bad.id)
        )
    )
    reply = deployed.ask()
    assert (
        reply.status_code == 503 and "no decision of the gate" in reply.json()["error"]["message"]
    )
    switch.promote(deployed.ws, good)
    assert deployed.text()


def test_an_edited_evaluation_is_refused_and_not_signed_over(deployed: DeployWorld) -> None:
    version = deployed.version(0, basis=None)
    evaluation = evaluation_of(deployed.ws, version, Basis.GOLD, gains=0)
    with deployed.ws.db.read() as connection:
        results = dict(
            connection.execute(
                sa.select(schema.evaluations.c.results).where(
                    schema.evaluations.c.id == evaluation.id
                )
            ).scalar_one()
        )
    primary = results["primary"] | {"after": 0.9, "gain": 0.9, "low": 0.8}
    edit(
        deployed,
        schema.evaluations,
        evaluation.id,
        results=json.loads(json.dumps(results | {"primary": primary})),
    )
    (forged,) = evaluations(deployed.ws, version)
    with pytest.raises(
        Conflict,
        match=rf"its signature does not fit.*Evaluate again.*thumbwheel evaluate {version.name}",
    ):
        gate(deployed.ws, forged)
    assert versions.by_id(deployed.ws, version.id).state is VersionState.CANDIDATE
    edit(deployed, schema.evaluations, evaluation.id, results=results | {"signature": None})
    with pytest.raises(Conflict, match="its signature does not fit"):
        gate(deployed.ws, evaluations(deployed.ws, version)[0])


def test_the_alias_command_asks_for_the_decision_too(
    deployed: DeployWorld, command_line, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    version = deployed.version(0, basis=None)
    edit(deployed, schema.model_versions, version.id, state="approved", basis="gold")
    monkeypatch.setenv("THUMBWHEEL_HOME", str(deployed.ws.home.path))
    code, _, err = command_line("models", "alias", "live", version.name, "--agent", deployed.agent)
    assert code == 3 and "no decision of the gate" in err
    assert versions.aliases_of(deployed.ws, deployed.learner) == {}
    with pytest.raises(ThumbwheelError):
        deploy.plan(deployed.ws, version, "embedded", "live")


def test_nothing_is_exported_for_a_target_that_is_not_there(deployed: DeployWorld) -> None:
    version = deployed.version(0)
    with pytest.raises(ThumbwheelError, match="nothing answers there"):
        deploy.deploy(deployed.ws, version, "ollama", settings={"host": "127.0.0.1:9"})
    assert exports(deployed.ws, version) == [] == routing.deployments(deployed.ws, deployed.learner)
