"""A training gives way to people who are served, and comes to the same result."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.training_rows import QUICK, frozen
from tests.worlds.sealed_calls import record_calls
from thumbwheel.capture.ingest import ingest
from thumbwheel.core import ids
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.base_check import find_base
from thumbwheel.loop.traffic_watch import TrafficWatch, train_beside_traffic
from thumbwheel.models.types import Agent
from thumbwheel.training.train import train
from thumbwheel.training.types import RunState


def serve(ws: Workspace, folder: Path, number: int, deployment: str | None) -> None:
    """A call that was answered now; an imported one is answered by no deployment."""
    step = {"kind": "llm", "output": "y"} | ({"deployment": deployment} if deployment else {})
    line = {"type": "trace", "id": f"t{number}", "input": "x", "output": "y", "steps": [step]}
    if deployment:
        record_calls(ws, [line | {"agent": "a"}])
        return
    path = folder / f"{number}.jsonl"
    path.write_text(json.dumps(line) + "\n")
    assert ingest(ws, "a", "jsonl", path).refused == 0


def test_traffic_is_what_deployments_answer(empty_ws: Workspace, tmp_path: Path) -> None:
    watch = TrafficWatch(empty_ws)
    assert not watch.is_busy()
    serve(empty_ws, tmp_path, 1, None)
    assert not watch.is_busy(), "an import is no traffic"
    serve(empty_ws, tmp_path, 2, "dep_1")
    assert watch.is_busy()
    later = TrafficWatch(empty_ws, clock=lambda: datetime.now(UTC) + timedelta(seconds=10))
    assert not later.is_busy()
    TrafficWatch(empty_ws, timedelta(seconds=5), clock=later.clock).wait_until_calm()


class OneCaller(TrafficWatch):
    """Somebody is served at the second look, and nobody afterwards."""

    looks = 0
    waited = 0

    def is_busy(self) -> bool:
        OneCaller.looks += 1
        return OneCaller.looks == 2

    def wait_until_calm(self) -> None:
        OneCaller.waited += 1


@pytest.mark.slow
def test_a_training_that_gave_way_ends_as_one_that_did_not(
    empty_ws: Workspace, tiny_model: Path
) -> None:
    dataset = frozen(empty_ws, "a", "pairs", 40, 4)
    options = {**QUICK, "num_train_epochs": 6, "require_gain": False}
    base_model = find_base(str(tiny_model), empty_ws.home.cache)

    def begin():
        return train(
            empty_ws, Agent.named("a"), "dpo", base_model, dataset=dataset, options=options
        )

    undisturbed = train_beside_traffic(empty_ws, begin, None)
    disturbed = train_beside_traffic(empty_ws, begin, OneCaller(empty_ws))
    assert OneCaller.waited == 1
    assert disturbed.state is undisturbed.state is RunState.FINISHED
    assert disturbed.metrics["resumed"] is True
    weights = [
        ids.file_hash(empty_ws.home.runs / result.run_id / "adapter" / "adapter_model.safetensors")
        for result in (undisturbed, disturbed)
    ]
    assert weights[0] == weights[1]
