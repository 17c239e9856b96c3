"""Repeated work goes on after a failure, and says why while it fails."""

from __future__ import annotations

import threading

import pytest

from thumbwheel.core.errors import StorageError
from thumbwheel.core.repeated import Repeated


class Scripted(Repeated):
    """Fails with each given error in turn; None succeeds, and so does every time after them."""

    def __init__(self, *errors: Exception | None) -> None:
        super().__init__("scripted", every=0.0, failing="old files stay")
        self._errors = list(errors)
        self.problems: list[str | None] = []
        self.ended = threading.Event()

    def _once(self) -> None:
        self.problems.append(self.problem())
        if not self._errors:
            self.ended.set()
            return
        if error := self._errors.pop(0):
            raise error


def test_a_failure_is_the_problem_until_a_time_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    full = StorageError("home", "the disk is full", "Free some space")
    work = Scripted(full, RuntimeError("at 10.1.2.3"), None)
    with work:
        assert work.ended.wait(60)
    assert work.problems[:4] == [
        None,
        "old files stay: StorageError; see the log",
        "old files stay: RuntimeError; see the log",
        None,
    ]
    assert work.problem() is None
    assert len(caplog.records) == 1, "a failure that goes on is logged once"


def test_leaving_waits_for_the_time_that_runs() -> None:
    begun, may_end = threading.Event(), threading.Event()
    has_ended = False

    class Slow(Repeated):
        def _once(self) -> None:
            nonlocal has_ended
            begun.set()
            may_end.wait(60)
            has_ended = True

    with Slow("slow", every=60.0, failing="nothing happens"):
        assert begun.wait(60)
        may_end.set()
    assert has_ended


def test_work_that_was_never_begun_can_be_left() -> None:
    Scripted().__exit__()
