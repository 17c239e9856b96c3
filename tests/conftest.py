"""What every test stands on."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from command_line import Run

settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")  # no verdict depends on how busy the machine is, or on chance


def pytest_configure() -> None:
    """A shell that starts a job in the background has it ignore Ctrl-C, and children inherit that; tests of Ctrl-C need the usual way."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The `thumbwheel` command in this process, in an empty folder with a home of its own."""
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

    return command
