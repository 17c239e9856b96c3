"""Ctrl-C while a run's process is watched."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from thumbwheel.training import launch
from thumbwheel.training.children import Children, _ended
from thumbwheel.training.rundir import RunDir
from thumbwheel.training.types import RunState, Status

DEAF = (
    "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print(flush=True); "
    "time.sleep(600)"
)


def test_a_second_ctrl_c_kills_and_the_run_is_stopped_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(tmp_path)
    run.write_status(Status(RunState.RUNNING, 7))
    process = subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE)
    assert process.stdout and process.stdout.readline()
    children = Children([process])
    presses = iter((True, True, False))

    def follow(_: Children, __: RunDir) -> None:
        if next(presses):
            raise KeyboardInterrupt
        process.wait(60)

    monkeypatch.setattr(launch, "_follow", follow)
    asked = launch._until_done(children, run)
    status = _ended(run, children.end(), asked, was_asked=True)
    assert (status.state, status.reason, status.step) == (
        RunState.STOPPED,
        "killed by a second Ctrl-C",
        7,
    )
    assert _ended(run, process.returncode, 0, was_asked=False).state is RunState.FAILED


@pytest.mark.parametrize(
    ("code", "was_asked", "planned", "state"),
    [
        (-signal.SIGINT, True, {}, RunState.STOPPED),
        (1, True, {}, RunState.STOPPED),  # Python itself was starting
        (1, True, {"planned_steps": 5}, RunState.FAILED),  # it could listen
        (1, False, {}, RunState.FAILED),
        (-signal.SIGSEGV, True, {}, RunState.FAILED),
    ],
)
def test_a_child_that_was_interrupted_before_it_could_listen_is_stopped(
    tmp_path: Path, code: int, was_asked: bool, planned: dict[str, int], state: RunState
) -> None:
    run = RunDir(tmp_path)
    run.write_status(Status(RunState.RUNNING, result=planned))
    assert _ended(run, code, 0, was_asked=was_asked).state is state
