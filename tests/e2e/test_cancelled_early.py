"""Trainings that are cancelled in their first seconds, while torch is loaded: whatever an interrupt
broke in the worker's process, the next training works."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

import pytest

from tests import waiting
from tests.models.tiny_models import tiny_base
from tests.servers import thumbwheel_server
from tests.training_rows import SHORT_TRAINING, frozen
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace
from thumbwheel.jobs import queue
from thumbwheel.jobs.types import Job, JobState

FEW = [0.0, 0.2, 0.5, 0.9, 1.4, 2.2]
MANY = [3 * number / 39 for number in range(40)]
"""Seconds after its claim at which a training is cancelled."""
until = partial(waiting.until, seconds=180.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "moments",
    [pytest.param(FEW, id="few"), pytest.param(MANY, id="many", marks=pytest.mark.repeat)],
)
def test_a_training_works_whenever_those_before_it_were_cancelled(
    tmp_path: Path, moments: list[float]
) -> None:
    home = tmp_path / "home"
    base = tiny_base(tmp_path / "base")
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    with (
        Workspace.open(Home(home), Sources({}, "", {})) as ws,
        thumbwheel_server.running(home, environment, workers=1) as server,
    ):
        dataset = frozen(ws, "a", "labels", 32, 6)

        def asked() -> Job:
            spec = {"method": "kto", "agent": "a", "base": str(base), "dataset": dataset.id}
            return queue.enqueue(ws, "train", spec | {"options": SHORT_TRAINING}, agent="a")

        def is_held(job: Job) -> bool:
            return queue.job(ws, job.id).state is not JobState.QUEUED

        ends = []
        for moment in moments:
            job = asked()
            until(lambda job=job: is_held(job))
            time.sleep(moment)
            queue.cancel(ws, job.id)
            until(lambda job=job: queue.job(ws, job.id).has_ended)
            ends.append(queue.job(ws, job.id).state)
        assert ends == [JobState.CANCELLED] * len(moments)

        last = asked()
        until(lambda: queue.job(ws, last.id).has_ended)
        ended = queue.job(ws, last.id)
        assert ended.state is JobState.SUCCEEDED, ended.error
        until(lambda: server.health()["status"] == "green")
