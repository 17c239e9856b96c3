"""`run list`: the runs of an agent, with what each gave or does now."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.opened_home import invoked
from tests.training_rows import SHORT_TRAINING, frozen
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.base_check import find_base
from thumbwheel.models.versions import require_agent
from thumbwheel.training.activity import ActivityFile
from thumbwheel.training.run_commands import run as group
from thumbwheel.training.train import activity_of, find_run, run_dir, train
from thumbwheel.training.types import RunState


@pytest.mark.slow
def test_runs_are_listed_with_their_versions(empty_ws: Workspace, tiny_model: Path) -> None:
    dataset = frozen(empty_ws, "a", "chats", 12, 2)
    agent = require_agent(empty_ws, "a")
    base = find_base(str(tiny_model), empty_ws.home.cache)
    result = train(empty_ws, agent, "sft", base, dataset=dataset, options=SHORT_TRAINING)
    listed = json.loads(invoked(empty_ws, group, "list", "--agent", "a", "--json").stdout)
    assert [(row["id"], row["version"]) for row in listed] == [(result.run_id, result.version)]
    shown = invoked(empty_ws, group, "list", "--agent", "a", columns=200).stdout
    assert "sft" in shown and result.run_id in shown and str(result.state) in shown

    recorded = find_run(empty_ws, result.run_id)
    assert activity_of(empty_ws, recorded) is None
    going_on = replace(recorded, state=RunState.RUNNING, ended_at=None)
    ActivityFile(run_dir(empty_ws, recorded)).progress("measuring the base", 3, 12, "dev rows", "")
    words = activity_of(empty_ws, going_on)
    assert words is not None and words.startswith("measuring the base: 3 of 12 dev rows")
