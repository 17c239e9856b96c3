"""The process that drains the inbox beside a server whose own drainer is late."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest

from tests.waiting import until
from thumbwheel.app import drain_process
from thumbwheel.app.drain_process import drain_while_needed
from thumbwheel.capture import inbox
from thumbwheel.capture.inbox import Drainer
from thumbwheel.capture.traces import count_traces
from thumbwheel.db.workspace import Workspace
from thumbwheel.sdk.segment import Segment


def record(ws: Workspace, *names: str) -> None:
    segment = Segment(ws.home.inbox)
    lines = [
        {"agent": "a", "type": "trace", "id": name, "input": "hi", "output": "ho"} for name in names
    ]
    for stored in [segment.append(json.dumps(line).encode()) for line in lines]:
        stored.result(60)
    segment.close()


@pytest.fixture
def late_drainer(empty_ws: Workspace, monkeypatch: pytest.MonkeyPatch) -> Drainer:
    """A drainer whose thread is always late and takes no file itself."""
    monkeypatch.setattr(inbox, "LATE", -1.0)
    monkeypatch.setattr(inbox, "take_files", lambda folder: [])
    command = [sys.executable, "-P", "-m", drain_process.__name__, "--home"]
    return Drainer(empty_ws, 0.01, [*command, str(empty_ws.home.path)])


def test_a_late_drainer_has_a_process_drain_until_it_ends(
    empty_ws: Workspace, late_drainer: Drainer
) -> None:
    with late_drainer:
        record(empty_ws, "t1", "t2")
        until(lambda: count_traces(empty_ws, "a") == 2)
        until(lambda: late_drainer.counts["stored"] == 2)
        process = late_drainer._process
        assert process is not None and process.poll() is None
    assert process.poll() is not None


def test_a_process_that_is_killed_is_started_again(
    empty_ws: Workspace, late_drainer: Drainer
) -> None:
    with late_drainer:
        record(empty_ws, "t1")
        until(lambda: late_drainer.counts["stored"] == 1)
        first = late_drainer._process
        assert first is not None
        os.kill(first.pid, signal.SIGKILL)
        record(empty_ws, "t2")
        until(lambda: late_drainer.counts["stored"] == 2)
    assert count_traces(empty_ws, "a") == 2


def test_it_ends_with_its_parent_and_where_there_is_little_to_do(
    empty_ws: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(drain_process, "WINDOW", 1)
    record(empty_ws, "t1")
    drain_while_needed(empty_ws, parent=-1)
    assert capsys.readouterr().out == ""
    record(empty_ws, "t2")
    monkeypatch.setattr(drain_process, "LITTLE", 10.0)
    drain_while_needed(empty_ws, os.getppid())
    assert count_traces(empty_ws, "a") == 2
    assert capsys.readouterr().out.startswith("{")
