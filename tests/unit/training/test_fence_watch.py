"""A host that cannot ask for its fence stops by itself, and so does one that lost it."""

from __future__ import annotations

import threading
import time

import pytest

from thumbwheel.training.fence_watch import FenceWatch

LEASE = 0.4


class Fence:
    """Answers as a test says, and notes when it was lost."""

    def __init__(self) -> None:
        self.answer = True
        self.is_away = False
        self.hangs = threading.Event()
        self.stopped = threading.Event()
        self.reasons: list[str] = []

    def has_fence(self) -> bool:
        if self.is_away:
            raise OSError("no route to host")
        if self.hangs.is_set():
            threading.Event().wait()
        return self.answer

    def stop(self, reason: str) -> None:
        self.reasons.append(reason)
        self.stopped.set()


@pytest.fixture
def fence() -> Fence:
    return Fence()


def test_nothing_is_stopped_while_the_fence_is_there(fence: Fence) -> None:
    watch = FenceWatch(fence.has_fence, LEASE, fence.stop)
    watch.start()
    assert not fence.stopped.wait(4 * LEASE)
    watch.end()
    fence.answer = False
    assert not fence.stopped.wait(2 * LEASE)


def test_a_lost_fence_stops_at_the_next_question(fence: Fence) -> None:
    FenceWatch(fence.has_fence, LEASE, fence.stop).start()
    fence.answer = False
    assert fence.stopped.wait(10)
    assert fence.reasons == ["another process goes on with the run"]


@pytest.mark.parametrize("trouble", ["fails", "hangs"])
def test_a_lease_without_an_answer_stops_once(fence: Fence, trouble: str) -> None:
    began = time.monotonic()
    FenceWatch(fence.has_fence, LEASE, fence.stop).start()
    if trouble == "fails":
        fence.is_away = True
    else:
        fence.hangs.set()
    assert fence.stopped.wait(10)
    assert time.monotonic() - began > LEASE
    time.sleep(LEASE)
    assert fence.reasons == ["nobody said for 0.4 s that the run still has its fence"]


def test_a_pause_in_the_answers_that_is_shorter_than_a_lease_stops_nothing(fence: Fence) -> None:
    watch = FenceWatch(fence.has_fence, 10 * LEASE, fence.stop)
    watch.start()
    fence.is_away = True
    time.sleep(4 * LEASE)
    fence.is_away = False
    assert not fence.stopped.wait(10 * LEASE)
    watch.end()
