"""Workers are started again when they end, and stopped with whoever started them."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.waiting import until
from thumbwheel.jobs import supervisor
from thumbwheel.jobs.supervisor import Supervisor

PROGRAM = """
import os, sys, time
open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
if sys.argv[2] == "short":
    sys.exit(3)
if sys.argv[2] == "spent":
    sys.exit(76)
time.sleep(60)
"""


def supervised(folder: Path, life: str, n_workers: int) -> Supervisor:
    command = [sys.executable, "-c", PROGRAM, str(folder / "started"), life]
    return Supervisor(command, n_workers, grace=5)


def starts(folder: Path) -> list[int]:
    path = folder / "started"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def test_workers_that_run_are_left_alone_and_end_with_the_supervisor(tmp_path: Path) -> None:
    with supervised(tmp_path, "long", 2) as workers:
        until(lambda: len(starts(tmp_path)) >= 2)
        assert workers.problem() is None
    assert not [pid for pid in starts(tmp_path) if Path(f"/proc/{pid}").exists()]


def test_a_worker_that_ends_is_started_again_after_a_pause(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(supervisor, "LOOK_EVERY", 0.05)
    monkeypatch.setattr(supervisor, "LONGEST_PAUSE", 0.1)
    with supervised(tmp_path, "short", 1) as workers:
        until(lambda: "1 of 1 workers" in (workers.problem() or ""))
        until(lambda: len(starts(tmp_path)) >= 5)
        # also while it runs: the next one may end as well
        until(lambda: "times in a row" in (workers.problem() or ""))


def test_a_worker_that_asks_for_a_fresh_process_gets_it_at_once(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(supervisor, "LOOK_EVERY", 0.05)
    with supervised(tmp_path, "spent", 1) as workers:
        until(lambda: len(starts(tmp_path)) >= 3)
        assert workers.problem() is None


def test_no_workers_are_none(tmp_path: Path) -> None:
    with supervised(tmp_path, "long", 0) as workers:
        assert workers.problem() is None
    assert starts(tmp_path) == []
