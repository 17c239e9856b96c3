"""What the demo does to folders and processes, and to a run that was interrupted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import Conflict
from thumbwheel.db.workspace import Workspace
from thumbwheel.demo import run as demo
from thumbwheel.demo.emit import EmitOptions
from thumbwheel.deploy import processes
from thumbwheel.training import train as training
from thumbwheel.training.types import RunResult, RunState


def test_a_folder_with_something_else_is_not_written_into(tmp_path: Path) -> None:
    model = tmp_path / "base" / "model.safetensors"
    model.parent.mkdir()
    model.write_text("mine")
    with pytest.raises(Conflict, match="something else than a world"):
        demo.write_world(tmp_path, EmitOptions())
    assert model.read_text() == "mine"


def test_a_new_demo_ends_the_server_of_the_old_one(tmp_path: Path) -> None:
    home, options = tmp_path / "home", EmitOptions()
    demo._afresh(home, options)
    place = home / "deployments" / "filer"
    place.mkdir(parents=True)
    server = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    record = {"pid": server.pid, "started": processes._started(server.pid), "port": 1, "token": "t", "place": str(place.resolve())}
    (place / processes.RECORD).write_text(json.dumps(record))
    demo._afresh(home, options)
    assert processes._started(server.pid) is None
    assert os.listdir(home) == [demo.MARK]


def test_an_interrupted_run_ends_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def stopped(_: Workspace, agent: str, method: str, base: str) -> RunResult:
        asked.append(method)
        return RunResult("run_1", RunState.STOPPED, "interrupted", {})

    monkeypatch.setattr(training, "train", stopped)
    with Workspace.open(Home.at(tmp_path / "home").prepare(), Sources({}, "", {})) as ws, pytest.raises(KeyboardInterrupt):
        demo.best_candidate(ws, ["kto", "dpo"], tmp_path, [])
    assert asked == ["kto"]
