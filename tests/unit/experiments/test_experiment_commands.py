"""`thumbwheel experiment`, as it is typed."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.approvals import approve
from tests.command_line import Run
from tests.worlds.experiment_world import ExperimentWorld, experiment_world
from tests.worlds.gateway_world import AGENT
from thumbwheel.core.errors import Conflict
from thumbwheel.db.schema import exposures, model_versions
from thumbwheel.evaluation.approval import require_approval
from thumbwheel.experiments import controller
from thumbwheel.models import versions
from thumbwheel.models.types import LIVE, Basis, VersionState


def serve_people(world: ExperimentWorld, count: int, rates: dict[str, float]) -> None:
    draw = random.Random(2)
    for number in range(count):
        trace_id, choice = world.ask(f"user-{number}")
        world.rate(trace_id, draw.random() < rates[choice.version])


def test_from_a_dry_run_to_a_replay(tmp_path: Path, command_line: Run) -> None:
    with experiment_world(tmp_path) as world:
        home = ("--home", str(world.ws.home.path))

        def run(*arguments: str, code: int = 0) -> str:
            exit_code, out, error = command_line(*home, "experiment", *arguments)
            assert exit_code == code, error
            return out + error

        def read(*arguments: str) -> Any:
            return json.loads(command_line(*home, "experiment", *arguments, "--json")[1])

        arms = ("start", "--agent", AGENT, "--arm", "v0", "--arm", "v1")
        text = " ".join(run(*arms, "--effect", "0.2", "--dry-run").split())
        assert "dry run: nothing was started" in text and "(power 80 %)" in text
        assert read("list") == []
        assert "none of thumb, rating" in run(*arms, "--metric", "thumbs", code=2)
        options = ("--guard", "error_rate", "--effect", "0.2", "--min-hours", "0")
        started = read(*arms, *options)
        experiment_id = started["experiment"]
        assert started["forecast"]["spend"] == 1
        assert "running experiments cannot be changed" in run(*arms, code=3)
        assert "is paused" in run("pause", experiment_id, "--reason", "lunch")
        assert "is running" in run("pause", experiment_id, "--reason", "back", "--resume")
        world.refresh()
        serve_people(world, 500, {"v0": 0.3, "v1": 0.8})
        world.turn()
        shown = read("show", experiment_id)
        assert (shown["state"], shown["collected"]["calls"]) == ("won", 500)
        assert [event["kind"] for event in shown["events"]] == ["paused", "running", "won"]
        assert "error_rate holds" in run("show", experiment_id)
        assert [row["state"] for row in read("list", "--agent", AGENT)] == ["won"]
        (result,) = read("replay", experiment_id)
        assert (result["was"], result["is"], result["same_units"]) == ("won", "won", True)
        assert "the same" in run("replay", experiment_id)
        assert "cannot become stopped" in run("stop", experiment_id, "--reason", "late", code=3)
        with world.ws.db.read() as connection:
            unit = connection.execute(sa.select(exposures.c.unit).limit(1)).scalar_one()
        edited = exposures.update().where(exposures.c.unit == unit).values(stratum=1)
        world.ws.db.write(lambda connection: connection.execute(edited))
        code, out, _ = command_line(*home, "experiment", "replay", experiment_id, "--json")
        (result,) = json.loads(out)
        assert code == 4
        assert result["changed_rows"] == [f"exposure of unit {unit}"]
        assert unit in run("replay", experiment_id, code=4)
        swapped = (*arms[:-4], "--arm", "v1", "--arm", "v0")
        assert "earlier experiments value v0 at 0" in run(*swapped, code=3)
        again = read(*swapped, "--despite", "v0 has another prompt now")
        assert again["plan"]["spend"] == 2
        assert "is stopped" in run("stop", again["experiment"], "--reason", "enough")


def test_a_version_on_feedback_goes_live_by_winning_and_by_nothing_else(tmp_path: Path) -> None:
    with experiment_world(tmp_path) as world:
        # v1 as if it had been trained here: it has an adapter, so it needs a decision of the gate
        world.ws.db.write(
            lambda connection: connection.execute(
                model_versions.update()
                .where(model_versions.c.number == 1)
                .values(adapter={"weights": "0" * 64}, state=VersionState.CANDIDATE, basis=None)
            )
        )
        version = approve(world.ws, versions.version(world.ws, AGENT, "v1"), Basis.FEEDBACK)
        with pytest.raises(Conflict, match="permits a canary only"):
            require_approval(world.ws, version, LIVE)
        # a column that somebody edits is not enough
        versions.confirm(world.ws, version, Basis.TRAFFIC)
        with pytest.raises(Conflict, match="no decision"):
            require_approval(world.ws, versions.by_id(world.ws, version.id), LIVE)
        versions.confirm(world.ws, version, Basis.FEEDBACK)

        experiment = world.begin(ask_first=False)
        assert experiment.plan.spend == 2  # the gate looked once before
        serve_people(world, 600, {"v0": 0.3, "v1": 0.8})
        world.drain()

        class Killed:
            def promote(self, *_: object) -> None:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            controller.turn(world.ws, experiment, Killed())
        assert world.turn()[experiment.id].verdict == "won"
        won = versions.by_id(world.ws, version.id)
        assert won.basis is Basis.TRAFFIC
        require_approval(world.ws, won, LIVE)
        assert world.live() == "v1"
        # other files under the same name were never tried
        tampered = {"weights": "1" * 64}
        world.ws.db.write(
            lambda connection: connection.execute(
                model_versions.update().where(model_versions.c.number == 1).values(adapter=tampered)
            )
        )
        with pytest.raises(Conflict):
            require_approval(world.ws, versions.by_id(world.ws, version.id), LIVE)


def test_an_agents_experiments_are_its_own(tmp_path: Path) -> None:
    with experiment_world(tmp_path) as world:
        world.begin()
        versions.ensure_agent(world.ws, "other")
        other = versions.require_agent(world.ws, "other")
        assert controller.experiments_of(world.ws, other) == []
        assert len(controller.experiments_of(world.ws)) == 1
