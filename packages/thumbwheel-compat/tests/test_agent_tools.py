"""The tools by which an agent of theirs trains its own model: jobs of the home."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from thumbwheel.capture.ingest import ingest
from thumbwheel.compat.isaa import (
    RLTrainingManager,
    TrainingSession,
    TrainingState,
    agent_tools,
    get_rl_training_tools,
    register_rl_tools,
)
from thumbwheel.core.config import Home
from thumbwheel.db.workspace import Workspace
from thumbwheel.jobs import queue

Call = Callable[..., str]


class FlowAgent:
    """Takes tools as theirs does, and calls them by name as a model would."""

    def __init__(self) -> None:
        self.tools: dict[str, Any] = {}

    async def add_tool(self, function: Any, *, name: str, description: str) -> None:
        assert description
        self.tools[name] = function

    def call(self, name: str, **arguments: Any) -> str:
        return str(asyncio.run(self.tools[name](**arguments)))


@pytest.fixture
def scripts_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("THUMBWHEEL_HOME", str(tmp_path / "home"))
    return Home(tmp_path / "home")


@pytest.fixture
def call(scripts_home: Home) -> Call:
    agent = FlowAgent()
    asyncio.run(register_rl_tools(agent))
    assert set(agent.tools) == {name for _, name, _ in get_rl_training_tools()}
    return agent.call


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines of workers that would have been started."""
    commands: list[list[str]] = []
    monkeypatch.setattr(
        agent_tools.subprocess, "Popen", lambda command, **_: commands.append(command)
    )
    return commands


def test_a_training_is_started_stopped_and_gone_on_with(
    scripts_home: Home, call: Call, workers: list[list[str]]
) -> None:
    assert call("check_training_status") == "No training sessions found."
    assert call("list_rl_models").startswith("No trained models found.")
    assert "none runs" in call("stop_rl_training")

    started = call("start_rl_training", model_name="mine-v1", base_model="b", method="kto")
    assert started.startswith("✓ Training started!\nSession ID: job_")
    assert workers[0][-2:] == ["worker", "--until-idle"] and str(scripts_home.path) in workers[0]
    assert "State: starting" in call("check_training_status")
    assert "mine-v1 trains already" in call("start_rl_training", model_name="other")

    stopped = call("stop_rl_training")
    assert stopped.startswith("✓ Training stopped") and "Not deployed" in stopped
    assert "State: stopped" in call("list_rl_models")
    again = call("start_rl_training", model_name="mine-v1", base_model="b", method="kto")
    assert again == started  # it goes on: the same job
    assert "with a different request" in call("start_rl_training", model_name="mine-v1")
    with Workspace.open(scripts_home) as ws:
        (job,), _ = queue.jobs(ws)
    assert (job.kind, job.spec["method"], job.asked_by) == ("train", "kto", "local")
    assert job.spec["options"]["num_train_epochs"] == 3


def test_what_cannot_be_is_said_as_a_text(call: Call, workers: list[list[str]]) -> None:
    assert "there is no such method" in call("start_rl_training", model_name="m", method="ppo")
    assert "none of that name is trained" in call("switch_rl_model", model_name="m")
    assert workers == []


def test_the_managers_own_answers(scripts_home: Home, workers: list[list[str]]) -> None:
    """The dictionaries that a script without an agent reads."""
    manager = RLTrainingManager()
    assert manager.check_training_status()["message"] == "No training sessions found."
    assert manager.stop_training() == {"success": False, "error": ANY}
    assert manager.start_training("m", method="ppo")["success"] is False

    started = manager.start_training("mine-v1", base_model="b", method="kto")
    assert started["success"] and started["session_id"].startswith("job_")
    assert started["message"] == "Training started for mine-v1 using b"
    status = manager.check_training_status()
    assert (status["has_active_session"], status["is_running"]) == (True, False)
    assert status["session"]["state"] == TrainingState.STARTING.value
    assert status["progress_percent"] == 0.0
    assert "trains already" in manager.start_training("other")["error"]

    stopped = manager.stop_training(deploy=True)
    assert stopped["success"] and "deployed_model" not in stopped
    listed = manager.list_models()
    (model,) = listed["models"]
    assert (model["name"], model["state"], model["deployed"]) == ("mine-v1", "stopped", False)
    assert (listed["active_models"], listed["total"]) == ({}, 1)
    switched = manager.switch_model("mine-v1")
    assert (switched["success"], switched["available_models"]) == (False, [])
    (session,) = manager.sessions()
    assert TrainingSession(**{**session.to_dict(), "state": session.state}) == session


@pytest.mark.slow
def test_a_worker_that_is_started_for_it_trains_the_model(
    scripts_home: Home,
    call: Call,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    lines = []
    for number in range(24):
        name = f"t{number}"
        words = f"question {number} about parcels"
        lines.append({"type": "trace", "id": name, "input": words, "output": f"answer {number}"})
        thumb = {"kind": "thumb", "value": number % 2 == 0, "rater": f"r{number}"}
        lines.append({"type": "feedback", "target": {"trace": name}, **thumb})
    file = tmp_path / "ratings.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in lines))
    with Workspace.open(scripts_home) as ws:
        ingest(ws, "mine", "jsonl", file)
    arguments = {
        "base_model": str(tiny_model),
        "method": "kto",
        "agent_name": "mine",
        "num_epochs": 1,
    }
    assert "✓" in call("start_rl_training", model_name="first", **arguments)
    deadline = time.monotonic() + 120
    while "State: completed" not in (status := call("check_training_status")):
        assert "State: failed" not in status and time.monotonic() < deadline, status
        time.sleep(0.2)
    listed = call("list_rl_models")
    assert "Model: first" in listed and "Total: 1 models" in listed
    if "Version: v1" in listed:
        assert "is trained" in call("start_rl_training", model_name="first", **arguments)
        switched = call("switch_rl_model", model_name="first")
        # a tiny model that learned from 24 thumbs is not let through
        assert switched.startswith("✗ Not switched"), switched
    else:
        assert "Note:" in listed, listed  # why it learned nothing
