"""The sdk: a call returns when its line is on disk, and no line spoils another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import thumbwheel
from thumbwheel import sdk


@pytest.fixture
def inbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("THUMBWHEEL_HOME", str(tmp_path))
    return tmp_path / "inbox"


def lines(inbox: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (inbox / "spool.jsonl").read_text(encoding="utf-8").splitlines()]


def test_a_trace_and_what_was_thought_of_it(inbox: Path) -> None:
    answer = thumbwheel.trace("support", input="hi", output="ho", session="s", model="m", metadata={"k": 1})
    given = thumbwheel.feedback("support", answer, thumb=False, rater="ann", comment="meh")
    first, second = lines(inbox)
    assert first.pop("occurred_at").endswith("+00:00")
    assert first == {
        "agent": "support", "type": "trace", "id": answer, "session": "s", "input": [{"role": "user", "content": "hi"}], "output": "ho",
        "model": "m", "metadata": {"k": 1},
    }  # fmt: skip
    assert second.pop("occurred_at")
    assert second == {
        "agent": "support", "type": "feedback", "id": given, "kind": "thumb", "value": False, "targets": [{"trace": answer}],
        "rater": "ann", "comment": "meh",
    }  # fmt: skip


@pytest.mark.parametrize(
    "signal", [{"rating": 4}, {"score": 0.5}, {"correction": "x"}, {"label": "spam"}, {"outcome": 1.0}, {"comment": "x"}]
)
def test_every_signal(inbox: Path, signal: dict[str, Any]) -> None:
    thumbwheel.feedback("a", "t", **signal)
    ((kind, value),) = signal.items()
    assert (lines(inbox)[0]["kind"], lines(inbox)[0]["value"]) == (kind, value)


def test_a_tie_is_a_value(inbox: Path) -> None:
    thumbwheel.feedback("a", ["t1", "t2"], preference=None)
    assert lines(inbox)[0]["value"] is None
    assert lines(inbox)[0]["targets"] == [{"trace": "t1"}, {"trace": "t2"}]


def test_none_or_two_signals_are_a_type_error(inbox: Path) -> None:
    for signal in ({}, {"thumb": True, "rating": 3}, {"thumb": True, "rating": 3, "comment": "x"}):
        with pytest.raises(TypeError, match="exactly one"):
            thumbwheel.feedback("a", "t", **signal)
    assert not inbox.exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), "\ud800"])
def test_what_is_no_json_raises_here_and_writes_nothing(inbox: Path, value: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        thumbwheel.trace("a", input="x", output="y", metadata={"v": value})
    assert not (inbox / "spool.jsonl").exists()


def test_a_line_that_was_torn_by_a_kill_does_not_swallow_the_next(inbox: Path) -> None:
    thumbwheel.trace("a", input="x", output="y", id="t1")
    with (inbox / "spool.jsonl").open("a") as file:
        file.write('{"agent": "a", "type": "tra')
    thumbwheel.trace("a", input="x", output="y", id="t2")
    first, torn, second = (inbox / "spool.jsonl").read_text().splitlines()
    assert (json.loads(first)["id"], json.loads(second)["id"]) == ("t1", "t2")
    assert torn.startswith('{"agent"')


def test_a_failed_write_leaves_no_half_line(inbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    thumbwheel.trace("a", input="x", output="y", id="t1")
    before = (inbox / "spool.jsonl").read_bytes()
    real = os.write

    def full(handle: int, data: Any) -> int:
        if len(data) < 40:
            raise OSError(28, "No space left on device")
        return real(handle, data[:30])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            thumbwheel.trace("a", input="x", output="y", id="t2")
    assert (inbox / "spool.jsonl").read_bytes() == before


def test_threads_and_processes_write_whole_lines(inbox: Path) -> None:
    code = "import thumbwheel, sys\nfor i in range(40): thumbwheel.trace('a', input='x' * 9000, output='y', id=f'{sys.argv[1]}-{i}')"
    processes = [subprocess.Popen([sys.executable, "-c", code, str(n)]) for n in range(3)]
    threads = [
        threading.Thread(target=lambda n=n: [thumbwheel.trace("a", input="z", output="y", id=f"t{n}-{i}") for i in range(40)])
        for n in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert len({line["id"] for line in lines(inbox)}) == 240


def test_the_home_is_the_named_one_or_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("THUMBWHEEL_HOME", str(tmp_path / "x"))
    assert sdk.home() == tmp_path / "x"
    monkeypatch.delenv("THUMBWHEEL_HOME")
    assert sdk.home().name == "thumbwheel"
