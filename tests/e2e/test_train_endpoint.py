"""`train grpo` with the answers of a server: a child process, real HTTP on loopback, a key that is
stored nowhere."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.models.tiny_models import tiny_base
from tests.servers.rollout_server import Uniform
from tests.training_rows import QUICK, frozen
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.base_check import find_base
from thumbwheel.llm.fake import FakeServer
from thumbwheel.models.types import Agent
from thumbwheel.training.train import run_dir, runs, train
from thumbwheel.training.types import RunState


@pytest.mark.slow
def test_two_steps_over_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("THUMBWHEEL_ENDPOINT_KEY", "sesame")
    base = tiny_base(tmp_path / "base")
    options = QUICK | {
        "num_generations": 4,
        "max_completion_length": 8,
        "max_steps": 2,
        "reward_workers": 1,
        "batch_size": 3,
        "rollouts": "endpoint",
        "endpoint_model": "theirs",
        "importance_cap": 2.0,
    }
    with (
        FakeServer(Uniform()) as fake,
        Workspace.open(Home.at(tmp_path / "home").prepare(), Sources({}, "", {})) as ws,
    ):
        options["endpoint_url"] = fake.url
        dataset = frozen(ws, "a", "prompts", 12, 3)
        done = train(
            ws,
            Agent.named("a"),
            "grpo",
            find_base(str(base), ws.home.cache),
            dataset=dataset,
            options=options,
        )
        assert (done.state, done.metrics["steps"]) == (RunState.FINISHED, 2)
        answered = [
            request
            for request in fake.requests
            if request.path == "completions" and request.body["n"] == 4
        ]
        assert len(answered) == 2 * 3 == len(fake.requests)  # dev answers are the policy's own
        assert {request.headers["Authorization"] for request in answered} == {"Bearer sesame"}
        folder = run_dir(ws, runs(ws, Agent.named("a"))[0])
        lines = [line for line in folder.read_metrics() if "loss" in line]
        assert all(
            0
            < line["sampling/importance_sampling_ratio/mean"]
            <= line["sampling/importance_sampling_ratio/max"]
            <= 2
            for line in lines
        )
        assert not [
            file
            for file in tmp_path.rglob("*")
            if file.is_file() and b"sesame" in file.read_bytes()
        ]
