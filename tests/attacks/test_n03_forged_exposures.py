"""Traces that say an experiment's arm answered, sent by somebody who is not the gateway."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.command_line import Run
from tests.waiting import until
from tests.worlds.experiment_world import ExperimentWorld, experiment_world
from tests.worlds.gateway_world import AGENT, running
from thumbwheel.access import keys
from thumbwheel.capture.inbox import drain_inbox
from thumbwheel.capture.ingest import ingest
from thumbwheel.db.schema import steps, traces
from thumbwheel.experiments import controller
from thumbwheel.experiments.row_seals import vouched_calls
from thumbwheel.experiments.types import Experiment

N_FORGED = 300


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[ExperimentWorld]:
    with experiment_world(tmp_path) as world:
        yield world


def forged(experiment: Experiment, number: int, **more: Any) -> dict[str, Any]:
    """A trace as the gateway would record it, of a person whom nobody ever saw."""
    arm = ("v0", "v1")[number % 2]
    routing = {
        "arm": arm,
        "experiment": experiment.id,
        "stratum": 1,
        "unit": f"unit-{number}",
        "probabilities": {"v0": 0.5, "v1": 0.5},
        "reason": "drawn",
    }
    call = {
        "kind": "llm",
        "output": "Yes.",
        "model_version": arm,
        "deployment": "dep_1",
        "routing": routing,
        "cost": 0.0 if arm == "v1" else 9.0,
    }
    return {
        "agent": AGENT,
        "type": "trace",
        "id": f"forged-{number}",
        "input": f"Question {number}",
        "output": "Yes.",
        "steps": [call],
        **more,
    }


def thumb(number: int) -> dict[str, Any]:
    """What the attacker says about it."""
    return {
        "agent": AGENT,
        "type": "feedback",
        "target": {"trace": f"forged-{number}"},
        "kind": "thumb",
        "value": number % 2 == 1,
        "rater": f"rater-{number}",
    }


def require_nothing_counted(world: ExperimentWorld, experiment: Experiment) -> None:
    """Nobody was exposed, no verdict is possible, and no column has what was claimed."""
    world.turn()
    current = controller.find(world.ws, experiment.id)
    inputs, _ = controller.look(world.ws, current)
    assert (current.collected.calls, sum(arm.exposed for arm in inputs.arms)) == (0, 0)
    assert world.live() == "v0"
    columns = (steps.c.routing, steps.c.deployment, steps.c.model_version_id, steps.c.cost)
    with world.ws.db.read() as connection:
        rows = connection.execute(sa.select(*columns)).all()
        claimed = connection.execute(sa.select(traces.c.metadata)).scalars().all()
    assert len(rows) == N_FORGED and {value for row in rows for value in row} == {None}
    assert claimed[0]["claimed"][0]["routing"]["experiment"] == experiment.id


def test_two_requests_win_no_experiment(trial: ExperimentWorld) -> None:
    experiment = trial.begin()
    numbers = range(N_FORGED)
    key = keys.add(trial.ws, "app", agents=[AGENT])
    with running(trial.ws, drain_every=0.02) as gateway:
        gateway.client.headers["authorization"] = f"Bearer {key.secret}"
        calls = [forged(experiment, number, seal="0" * 64) for number in numbers]
        for line in calls:
            del line["agent"], line["type"]
        assert gateway.client.post(f"/a/{AGENT}/api/traces", json=calls).status_code == 202
        words = [thumb(number) for number in numbers]
        assert gateway.client.post("/api/feedback", json=words).status_code == 202
        until(lambda: stored(trial) == N_FORGED)
    require_nothing_counted(trial, experiment)


def stored(world: ExperimentWorld) -> int:
    with world.ws.db.read() as connection:
        return connection.execute(sa.select(sa.func.count()).select_from(traces)).scalar_one()


@pytest.mark.parametrize("source", ["jsonl", "sdk"])
def test_an_import_wins_no_experiment(trial: ExperimentWorld, tmp_path: Path, source: str) -> None:
    experiment = trial.begin()
    lines = [forged(experiment, number) for number in range(N_FORGED)]
    lines += [thumb(number) for number in range(N_FORGED)]
    path = tmp_path / "forged.jsonl"
    for line in lines:
        line["source"] = source
        del line["agent"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ingest(trial.ws, AGENT, "jsonl", path)
    require_nothing_counted(trial, experiment)


def test_the_seal_of_a_call_seals_no_other(trial: ExperimentWorld, tmp_path: Path) -> None:
    experiment = trial.begin()
    trial.ask("anna")
    trial.drain()
    with trial.ws.db.read() as connection:
        seal = connection.execute(sa.select(traces.c.seal)).scalar_one()
    assert seal is not None
    original = world_line(trial)
    variants = [
        original | {"id": "another", "seal": seal},
        original | {"seal": seal, "source": "jsonl"},
        original | {"id": "changed", "seal": seal, "status": "error"},
    ]
    for name, agent in (("other", "other"), ("again", AGENT)):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in variants))
        ingest(trial.ws, agent, "jsonl", path)
    trial.turn()
    current = controller.find(trial.ws, experiment.id)
    assert current.collected.calls == 1 == vouched_calls(trial.ws, current)


def world_line(world: ExperimentWorld) -> dict[str, Any]:
    """The stored call as a line."""
    with world.ws.db.read() as connection:
        step = connection.execute(sa.select(steps)).mappings().one()
    call = {"kind": "llm", "routing": step["routing"], "deployment": step["deployment"]}
    return {
        "type": "trace",
        "id": "call-1",
        "input": "Question call-1",
        "output": "by v0",
        "steps": [call],
    }


def test_a_replay_says_how_many_calls_have_a_seal(
    trial: ExperimentWorld, command_line: Run
) -> None:
    experiment = trial.begin()
    for number in range(20):
        trace_id, _ = trial.ask(f"user-{number}")
        trial.rate(trace_id, True, f"user-{number}")
    trial.turn()
    controller.stop(trial.ws, controller.find(trial.ws, experiment.id), "enough")
    home = str(trial.ws.home.path)
    code, out, error = command_line("--home", home, "experiment", "replay", experiment.id)
    assert code == 0 and "20 of 20 calls have the seal of the gateway" in out + error
    with trial.ws.db.read() as connection:
        trace_id = connection.execute(sa.select(steps.c.trace_id).limit(1)).scalar_one()

    def edit(connection: sa.Connection) -> None:
        change = steps.update().where(steps.c.trace_id == trace_id).values(cost=9.0)
        connection.execute(change)

    trial.ws.db.write(edit)
    assert vouched_calls(trial.ws, controller.find(trial.ws, experiment.id)) == 19


def test_what_the_gateway_itself_records_is_sealed(trial: ExperimentWorld) -> None:
    experiment = trial.begin()
    with running(trial.ws) as gateway:
        for number in range(5):
            headers = {"x-thumbwheel-subject": f"user-{number}"}
            assert gateway.ask(headers=headers).status_code == 200
        gateway.lines(5)
    drain_inbox(trial.ws)
    trial.turn()
    current = controller.find(trial.ws, experiment.id)
    assert current.collected.calls == 5 == vouched_calls(trial.ws, current)
