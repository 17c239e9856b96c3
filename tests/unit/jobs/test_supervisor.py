"""Workers are started again when they end, and stopped with whoever started them."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from thumbwheel.jobs import supervisor
from thumbwheel.jobs.supervisor import Supervisor

PROGRAM = """
import os, sys, time
open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
if sys.argv[2] == "short":
    sys.exit(3)
time.sleep(60)
"""


def supervised(folder: Path, life: str, n_workers: int) -> Supervisor:
    command = [sys.executable, "-c", PROGRAM, str(folder / "started"), life]
    return Supervisor(command, n_workers, grace=5)


def starts(folder: Path) -> list[int]:
    path = folder / "started"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def until(number: int, folder: Path) -> None:
    deadline = time.monotonic() + 20
    while len(starts(folder)) < number:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_workers_that_run_are_left_alone_and_end_with_the_supervisor(tmp_path: Path) -> None:
    with supervised(tmp_path, "long", 2) as workers:
        until(2, tmp_path)
        assert workers.problem() is None
    assert not [pid for pid in starts(tmp_path) if Path(f"/proc/{pid}").exists()]


def test_a_worker_that_ends_is_started_again_after_a_pause(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(supervisor, "LOOK_EVERY", 0.05)
    monkeypatch.setattr(supervisor, "LONGEST_PAUSE", 0.1)
    with supervised(tmp_path, "short", 1) as workers:
        until(1, tmp_path)
        deadline = time.monotonic() + 20
        while "1 of 1 workers" not in (workers.problem() or ""):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        until(3, tmp_path)


def test_no_workers_are_none(tmp_path: Path) -> None:
    with supervised(tmp_path, "long", 0) as workers:
        assert workers.problem() is None
    assert starts(tmp_path) == []
