"""The command line: what it prints, writes, decides and refuses."""

import json

import pytest
import sqlalchemy as sa
import typer

from tests.opened_home import invoked
from tests.worlds.feedback_world import AGENT
from thumbwheel.core.errors import Conflict, InputError, NotFound
from thumbwheel.db import schema
from thumbwheel.evaluation.commands import evaluate
from thumbwheel.models import versions
from thumbwheel.models.types import VersionState


def call(ws, *arguments, raises=None):
    app = typer.Typer()
    app.command()(evaluate)
    if raises is not None:
        with pytest.raises(raises) as raised:
            invoked(ws, app, *arguments)
        return str(raised.value)
    result = invoked(ws, app, *arguments)
    assert result.exit_code == 0, result.stdout
    return result.stdout


@pytest.mark.slow
def test_json_output_file_and_replay(home_with_feedback, tmp_path):
    ws, add = home_with_feedback(cases=34)
    common = ("latest", "--agent", AGENT, "--compare-base", "--max-new-tokens", "14")
    add("good")
    results = json.loads(call(ws, *common, "--json", "--output", str(tmp_path / "results.json")))
    assert results == json.loads((tmp_path / "results.json").read_text())
    assert (results["primary"]["before"], results["primary"]["after"]) == (0.0, 1.0)
    assert results["decision"]["verdict"] == "approved" and results["basis"] == "gold"
    again = json.loads(call(ws, "--replay", results["decision"]["id"], "--json"))
    assert (again["verdict"], again["identical"], again["reasons"]) == (
        "approved",
        True,
        results["decision"]["reasons"],
    )
    text = call(ws, *common)
    for word in ("success", "approved", "95%", "gold", "animal=fox", "eos_rate", "preference"):
        assert word in text
    assert results["decision"]["id"] in text  # the stored evaluation and decision, not new ones


def test_no_gate_decides_nothing(home_with_feedback):
    ws, add = home_with_feedback(cases=34)
    add("good")
    results = json.loads(
        call(ws, "latest", "--agent", AGENT, "--no-gate", "--max-new-tokens", "14", "--json")
    )
    assert results["decision"] is None
    assert versions.version(ws, AGENT, "latest").state is VersionState.CANDIDATE


def test_bad_arguments_are_said(home_with_feedback, tmp_path):
    ws, add = home_with_feedback(cases=2)
    add("good")
    assert "needs a version" in call(ws, raises=InputError)
    assert "dec_none" in call(ws, "--replay", "dec_none", raises=NotFound)
    assert "v9" in call(ws, "v9", "--agent", AGENT, raises=NotFound)
    target = str(tmp_path / "no" / "file")
    assert "written" in call(ws, "latest", "--agent", AGENT, "--output", target, raises=InputError)
    with ws.db.read() as connection:
        assert (
            connection.execute(sa.select(sa.func.count()).select_from(schema.evaluations)).scalar()
            == 0
        )


@pytest.mark.parametrize("changed", ["rejected"])
def test_a_decision_that_does_not_replay_is_an_error(home_with_feedback, changed):
    ws, add = home_with_feedback(cases=34)
    add("good")
    results = json.loads(call(ws, "latest", "--agent", AGENT, "--max-new-tokens", "14", "--json"))
    ws.db.write(
        lambda connection: connection.execute(sa.update(schema.decisions).values(decision=changed))
    )
    assert "signature" in call(ws, "--replay", results["decision"]["id"], raises=Conflict)
