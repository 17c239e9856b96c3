"""A recorded run is trained again: the same adapter comes out, and what is missing or different is
said."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from safetensors.numpy import save_file

from tests.training_rows import QUICK, frozen
from thumbwheel.core.errors import Conflict
from thumbwheel.db import schema
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.base_check import find_base
from thumbwheel.models.artifacts import Artifacts
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import versions
from thumbwheel.training.reproduce import Sameness, adapter_distance, reproduce
from thumbwheel.training.rundir import RunDir
from thumbwheel.training.train import find_run, runs, train
from thumbwheel.training.types import RunState


@pytest.mark.slow
def test_the_same_run_gives_the_same_adapter_and_what_is_different_is_said(
    empty_ws: Workspace, tiny_model: Path
) -> None:
    dataset = frozen(empty_ws, "a", "pairs", 20, 4)
    agent = Agent.named("a")
    options = {**QUICK, "require_gain": False}
    base_model = find_base(str(tiny_model), empty_ws.home.cache)
    result = train(empty_ws, agent, "dpo", base_model, dataset=dataset, options=options)
    assert result.state is RunState.FINISHED
    run = find_run(empty_ws, result.run_id)

    # the same machine and packages: bit by bit, and nothing is recorded
    again = reproduce(empty_ws, run)
    assert again.sameness is Sameness.BITWISE
    assert (again.weights_distance, again.loss_distance, again.differences) == (0.0, 0.0, [])
    assert len(runs(empty_ws, agent)) == 1
    assert len(versions(empty_ws, agent)) == 2, "the base and the candidate"

    # other packages and another processor are named; another seed is another adapter
    def change(connection: sa.Connection) -> None:
        environment = connection.execute(sa.select(schema.runs.c.environment)).scalar_one()
        changed = environment | {"torch": "1.0", "machine": environment["machine"] | {"cpu": "x"}}
        connection.execute(schema.runs.update().values(environment=changed))

    empty_ws.db.write(change)
    spec_file = empty_ws.home.runs / run.id / "spec.json"
    spec = json.loads(spec_file.read_text())
    spec["config"]["seed"] += 1
    spec_file.write_text(json.dumps(spec))
    other = reproduce(empty_ws, run, tolerance=1e-6)
    assert other.sameness is Sameness.DIFFERENT
    assert [difference.name for difference in other.differences] == ["torch", "cpu"]
    assert other.weights_distance > 1e-6
    assert other.reasons

    # rows that are gone make it impossible, and all that is missing is named at once
    blob = Artifacts.of(empty_ws).path(spec["files"]["train"])
    blob.unlink()
    (tiny_model / "config.json").touch()
    with pytest.raises(Conflict, match="rows of split 'train'"):
        reproduce(empty_ws, run)


def test_a_run_that_did_not_end_has_nothing_to_compare_with(empty_ws: Workspace) -> None:
    dataset = frozen(empty_ws, "a", "pairs", 4)
    values = {
        "id": "run_1",
        "agent_id": Agent.named("a").id,
        "algorithm": "dpo",
        "dataset_id": dataset.id,
        "base": "b",
        "config": {},
        "environment": {},
        "seed": 1,
    }

    def add(connection: sa.Connection) -> None:
        now = dataset.recorded_at
        row = schema.runs.insert().values(state="stopped", recorded_at=now, **values)
        connection.execute(row)

    empty_ws.db.write(add)
    with pytest.raises(Conflict, match="it is stopped"):
        reproduce(empty_ws, find_run(empty_ws, "run_1"))
    assert not RunDir(empty_ws.home.runs / "run_1").path.exists()


def test_the_distance_of_adapters(tmp_path: Path) -> None:
    first, second, third = (tmp_path / f"{name}.safetensors" for name in "abc")
    save_file({"w": np.full((3, 4), 2.0, np.float32)}, first)
    save_file({"w": np.full((3, 4), 2.2, np.float32)}, second)
    save_file({"w": np.full((4, 3), 2.0, np.float32)}, third)
    assert adapter_distance(first, first) == 0
    assert adapter_distance(first, second) == pytest.approx(0.1, rel=1e-4)
    assert adapter_distance(first, third) == float("inf")
