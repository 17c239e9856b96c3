"""What every test stands on."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from command_line import Run
from required import unexcused

settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")  # no verdict depends on how busy the machine is, or on chance


def pytest_configure() -> None:
    """A shell that starts a job in the background has it ignore Ctrl-C, and children inherit that; tests of Ctrl-C need the usual way."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that CI leaves out for want of something that CI should have is a failed one."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and isinstance(report.longrepr, tuple):
        reason = str(report.longrepr[2])
        if unexcused(reason):
            report.outcome, report.longrepr = "failed", f"skipped, and THUMBWHEEL_REQUIRE_ALL is set: {reason}"
    return report


@pytest.fixture
def command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """The `thumbwheel` command in this process, in an empty folder with a home of its own; its umask ends with the test."""
    from thumbwheel.cli.main import main
    from thumbwheel.core import log

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("THUMBWHEEL_HOME", str(tmp_path / "home"))

    def command(*arguments: str) -> tuple[int, str, str]:
        log.console.cache_clear()
        monkeypatch.setattr(sys, "argv", ["thumbwheel", *arguments])
        with pytest.raises(SystemExit) as done:
            main()
        out, err = capsys.readouterr()
        return int(done.value.code or 0), out, err

    umask = os.umask(0o022)
    os.umask(umask)
    yield command
    os.umask(umask)
