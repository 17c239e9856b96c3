"""The thread of a server that looks at running experiments."""

from __future__ import annotations

import time

import pytest

from tests.waiting import until
from thumbwheel.core.errors import StorageError
from thumbwheel.db.leadership import Leadership
from thumbwheel.db.workspace import Workspace
from thumbwheel.loop.experiment_runner import ExperimentRunner

WAITED = 1.0
"""Seconds that a database which is away lets a look wait."""


def test_a_database_that_comes_back_is_looked_at_at_once(
    empty_ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait for it does not count as work, after which there would be a pause ten times as
    long."""
    n_looks = 0

    def look(_: ExperimentRunner) -> None:
        nonlocal n_looks
        n_looks += 1
        if n_looks == 1:
            time.sleep(WAITED)
            raise StorageError("database", "it does not answer", "Start it")

    monkeypatch.setattr(ExperimentRunner, "_once", look)
    runner = ExperimentRunner(empty_ws, Leadership(empty_ws.db), every=0.05)
    pauses: list[float] = []
    wait = runner._ended.wait

    def paused(seconds: float) -> bool:
        pauses.append(seconds)
        return wait(seconds)

    monkeypatch.setattr(runner._ended, "wait", paused)
    with runner:
        until(lambda: n_looks >= 3)
        assert max(pauses) < WAITED
        assert runner.problem() is None
