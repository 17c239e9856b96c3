"""Trainings as jobs: cancelled, killed on every level, and in the end the same curve and one
version, as if nothing had disturbed them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import waiting
from tests.held_runs import hold_after, is_held
from tests.models.tiny_models import tiny_base
from tests.training_rows import SHORT_TRAINING, frozen
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.base_check import find_base
from thumbwheel.jobs import queue
from thumbwheel.jobs.types import Job, JobState
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import versions
from thumbwheel.training.rundir import RunDir
from thumbwheel.training.train import runs, train

STEPS = 24
HELD = {"callbacks": ["training_callbacks:Held"]}
until = partial(waiting.until, seconds=120.0)
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(empty_ws: Workspace, tmp_path: Path) -> Iterator[Start]:
    """Start a worker of the home."""
    workers = []

    def start(**environment: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "thumbwheel", "--home", str(empty_ws.home.path), "worker"]
        variables = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(sys.path),
            **environment,
        }
        with (tmp_path / "workers.log").open("ab") as log:
            worker = subprocess.Popen(command, stderr=log, env=variables, process_group=0)
        workers.append(worker)
        return worker

    yield start
    for worker in workers:
        worker.kill()
        worker.wait()


def asked(ws: Workspace, method: str, base: Path, dataset: str, options: dict[str, Any]) -> Job:
    spec = {"method": method, "agent": "a", "base": str(base), "dataset": dataset}
    return queue.enqueue(ws, "train", spec | {"options": options}, agent="a")


def curve(run: RunDir) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in line.items() if key != "step_seconds"}
        for line in run.read_metrics()
    ]


@pytest.mark.slow
def test_a_training_that_is_cancelled_and_killed_on_every_level_keeps_its_curve(
    empty_ws: Workspace, start: Start, tmp_path: Path
) -> None:
    base = tiny_base(tmp_path / "base")
    dataset = frozen(empty_ws, "a", "labels", 32, 6)
    learner, weights = Agent.named("a"), find_base(str(base), empty_ws.home.cache)
    whole = train(empty_ws, learner, "kto", weights, dataset=dataset, options=SHORT_TRAINING)

    job = asked(empty_ws, "kto", base, dataset.id, SHORT_TRAINING | HELD)

    def state() -> JobState:
        return queue.job(empty_ws, job.id).state

    folder = tmp_path / "holds"
    hold_after(folder, 5, 10, 15)
    worker = start(HOLDS=str(folder))
    until(lambda: is_held(folder, 5))
    queue.cancel(empty_ws, job.id)
    until(lambda: state() is JobState.CANCELLED)
    run = RunDir(empty_ws.home.runs / queue.job(empty_ws, job.id).notes["run"])
    assert curve(run)[-1]["step"] < STEPS

    queue.resume(empty_ws, job.id)
    until(lambda: is_held(folder, 10))
    (child,) = [
        process
        for process in psutil.Process(worker.pid).children()
        if "thumbwheel.training.process" in process.cmdline()
    ]
    child.kill()  # as the kernel does where memory runs out
    until(lambda: state() is JobState.FAILED)
    error = queue.job(empty_ws, job.id).error
    assert error is not None and "out of memory?" in error["why"]

    queue.retry(empty_ws, job.id)
    until(lambda: is_held(folder, 15))
    worker.kill()
    start()
    until(lambda: state() is JobState.SUCCEEDED)
    ended = queue.job(empty_ws, job.id)
    assert (ended.result["version"], ended.result["run_id"]) == ("v2", run.path.name)
    assert curve(run) == curve(RunDir(empty_ws.home.runs / whole.run_id))
    v1, v2 = versions(empty_ws, learner)[1:]
    assert v1.adapter == v2.adapter and len(runs(empty_ws, learner)) == 2
    texts = [event.content.get("text", "") for event in queue.events(empty_ws, job.id)]
    assert any("stopping at a checkpoint" in line for line in texts)


@pytest.mark.repeat
def test_a_full_disk_in_a_checkpoint_fails_the_job_and_a_retry_goes_on(
    empty_ws: Workspace, start: Start, tmp_path: Path
) -> None:
    base = tiny_base(tmp_path / "base")
    dataset = frozen(empty_ws, "a", "chats", 32, 4)
    options = SHORT_TRAINING | {"num_train_epochs": 1, "callbacks": ["training_callbacks:FullDisk"]}
    job = asked(empty_ws, "sft", base, dataset.id, options)
    worker = start(FULL_DISK="1")
    until(lambda: queue.job(empty_ws, job.id).has_ended)
    error = queue.job(empty_ws, job.id).error
    assert error is not None and error["kind"] == "StorageError"
    worker.send_signal(signal.SIGTERM)
    # A process that replaces itself after a training may not listen yet.
    assert worker.wait(120) in (0, -signal.SIGTERM)
    start()
    queue.retry(empty_ws, job.id)
    until(lambda: queue.job(empty_ws, job.id).has_ended)
    ended = queue.job(empty_ws, job.id)
    assert (ended.state, ended.result["version"]) == (JobState.SUCCEEDED, "v1")


@pytest.mark.slow
def test_an_agent_that_is_gone_fails_its_job_with_what_to_do(
    empty_ws: Workspace, start: Start
) -> None:
    job = queue.enqueue(empty_ws, "reward run", {"agent": "gone"}, agent="gone")
    start()
    until(lambda: queue.job(empty_ws, job.id).has_ended)
    error = queue.job(empty_ws, job.id).error
    assert error is not None and error["kind"] == "NotFound" and "Import something" in error["fix"]
