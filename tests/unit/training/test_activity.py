"""What a run does is said from its first second, until its next line of metrics."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from thumbwheel.core import log
from thumbwheel.training.activity import Activity, ActivityFile, activity
from thumbwheel.training.launch import _follow
from thumbwheel.training.rundir import RunDir
from thumbwheel.training.types import RunState, Status


class Heard:
    """A sink that keeps notes of progress."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def line(self, text: str) -> None:
        pass

    def progress(self, what: str, done: float, total: float | None, unit: str, note: str) -> None:
        self.notes.append(note)


class Child:
    """A process that ends once it was looked at a few times."""

    looks = 0

    def poll(self) -> int | None:
        self.looks += 1
        return 0 if self.looks > 3 else None


def test_the_measuring_of_the_base_is_counted_before_the_first_step(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.write_status(Status(RunState.RUNNING, result={"planned_steps": 6}))
    with (
        log.sent_to(ActivityFile(run)),
        log.progress("measuring the base", 114, "dev rows") as advance,
    ):
        assert activity(run) == Activity("measuring the base", 0, 114, "dev rows", 0.0)
        advance(114)
    heard = Heard()
    with log.sent_to(heard):
        _follow(Child(), run)  # type: ignore[arg-type]
    assert "measuring the base: 114 of 114 dev rows" in heard.notes


def test_the_base_that_is_loaded_is_named_before_the_steps_are_planned(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.write_status(Status(RunState.RUNNING))
    heard = Heard()
    with log.sent_to(ActivityFile(run)), log.progress("loading qwen3", None):
        pass
    with log.sent_to(heard):
        _follow(Child(), run)  # type: ignore[arg-type]
    assert "loading qwen3" in heard.notes


def test_metrics_that_came_since_end_it(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert activity(run) is None
    ActivityFile(run).progress("measuring the base", 0, 114, "dev rows", "")
    assert activity(run) is not None
    run.metrics.write_text(json.dumps({"step": 0, "eval_loss": 1.0}) + "\n")
    later = time.time() + 5
    os.utime(run.metrics, (later, later))
    assert activity(run) is None


def test_the_time_left_follows_the_pace() -> None:
    half = Activity("measuring the base", 57, 114, "dev rows", 30.0)
    assert half.seconds_left == pytest.approx(30.0)
    assert half.in_words() == "measuring the base: 57 of 114 dev rows, about 30 s left"
