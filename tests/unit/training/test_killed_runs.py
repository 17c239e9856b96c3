"""A run whose process was killed is not running for ever."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tests.models.tiny_models import record
from thumbwheel.core.config import Home
from thumbwheel.db.schema import datasets, runs
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import ensure_agent
from thumbwheel.training import train
from thumbwheel.training.killed_runs import settle_killed
from thumbwheel.training.rundir import RunDir
from thumbwheel.training.types import RunState

HOLD = "import sys, time; from pathlib import Path; from thumbwheel.training.rundir import RunDir\n"
HOLD += "handle = RunDir(Path(sys.argv[1])).lock(); print(flush=True); time.sleep(600)"


def started(ws: Workspace, run_id: str) -> Path:
    ensure_agent(ws, "support")
    dataset = record(ws, datasets, "support", shape="pairs")
    record(
        ws,
        runs,
        "support",
        id=run_id,
        algorithm="dpo",
        dataset_id=dataset,
        base="base",
        state="running",
    )
    folder = ws.home.runs / run_id
    RunDir(folder).path.mkdir(parents=True)
    return folder


def test_a_run_is_running_while_a_process_holds_it_and_stopped_once_that_was_killed(
    tmp_path: Path,
) -> None:
    with Workspace.open(Home.at(tmp_path)) as ws:
        folder = started(ws, "run_a")
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE
        )
        assert process.stdout and process.stdout.readline()
        assert settle_killed(ws) == []
        process.send_signal(signal.SIGKILL)
        process.wait()
        (line,) = settle_killed(ws)
        assert line.endswith("go on with: thumbwheel train dpo --agent support --resume run_a")
        (run,) = train.runs(ws, Agent.named("support"))
        assert (run.state, run.reason) == (RunState.STOPPED, "its process was killed")
        assert settle_killed(ws) == []


def test_a_run_without_a_folder_has_failed(tmp_path: Path) -> None:
    with Workspace.open(Home.at(tmp_path)) as ws:
        started(ws, "run_a").rmdir()
        assert len(settle_killed(ws)) == 1
        assert train.runs(ws, Agent.named("support"))[0].state is RunState.FAILED
