"""What every test stands on."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import uuid
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.command_line import Run
from tests.required import unexcused

settings.register_profile(
    "steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")  # no verdict depends on how busy the machine is, or on chance


def pytest_configure() -> None:
    """A shell that starts a job in the background has it ignore Ctrl-C, and children inherit that;
    tests of Ctrl-C need the usual way."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that CI leaves out for want of something that CI should have is a failed one."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and isinstance(report.longrepr, tuple):
        reason = str(report.longrepr[2])
        if unexcused(reason):
            report.outcome, report.longrepr = (
                "failed",
                f"skipped, and THUMBWHEEL_REQUIRE_ALL is set: {reason}",
            )
    return report


@pytest.fixture(scope="session", autouse=True)
def migrated_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A new home of this process begins with a copy of a database that was migrated once: tests
    open more than a thousand homes."""
    from thumbwheel.db import migrate, workspace

    folder = tmp_path_factory.mktemp("migrated")
    template = folder / "template.db"
    migrate.upgrade(template, folder / "writer.lock")

    def upgrade(path: Path, lock: Path) -> None:
        if not path.exists():
            _copy_whole(template, path)
        migrate.upgrade(path, lock)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workspace, "upgrade", upgrade)
        yield


def _copy_whole(source: Path, target: Path) -> None:
    """Nobody sees half a copy. Where nothing can be written, who opens the database says so."""
    copy = target.with_name(f"{uuid.uuid4().hex}.db")
    with suppress(OSError):
        shutil.copy(source, copy)
        copy.chmod(0o600)
        os.link(copy, target)
    with suppress(OSError):
        copy.unlink()


@pytest.fixture
def command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Run]:
    """The `thumbwheel` command in this process, in an empty folder with a home of its own; its
    umask ends with the test."""
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
