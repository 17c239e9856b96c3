"""When the recorder says that calls are not recorded."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from tests.waiting import until
from thumbwheel.gateway import recorder as recorder_module
from thumbwheel.gateway.recorder import PendingCall, Recorder


class SlowDisk:
    """Takes every line, and has none on disk before it is told."""

    def __init__(self) -> None:
        self.written: list[Future[None]] = []

    def append(self, line: bytes) -> Future[None]:
        self.written.append(Future())
        return self.written[-1]

    def close(self) -> None:
        pass


def refused() -> bytes:
    raise ValueError("beyond a quota")


def test_a_line_from_before_a_loss_does_not_end_it_and_one_from_after_does() -> None:
    disk = SlowDisk()
    with Recorder(lambda: disk) as recorder:
        recorder.add(PendingCall(lambda: b"before", 6))
        recorder.add(PendingCall(refused, 6))
        recorder.add(PendingCall(lambda: b"after", 5))
        until(lambda: len(disk.written) == 2)
        before, after = disk.written
        before.set_result(None)
        assert "ValueError" in (recorder.problem() or "")
        after.set_result(None)
        assert recorder.problem() is None and recorder.losses.count == 1


def test_a_call_that_is_lost_for_a_full_queue_is_charged_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recorder_module, "MOST_CALLS", 0)
    charged: list[str] = []

    def line(name: str) -> bytes:
        charged.append(name)
        return name.encode()

    with Recorder(SlowDisk) as recorder:
        recorder.add(PendingCall(lambda: line("budget"), 6, charge=lambda: line("budget")))
        recorder.add(PendingCall(lambda: line("no budget"), 9))
    assert charged == ["budget"]
    assert recorder.losses.count == 2 and "more calls wait" in recorder.losses.last
