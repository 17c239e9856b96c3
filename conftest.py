"""What every test stands on, those of packages/ too."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.command_line import Run
from tests.required import unexcused
from tests.servers.postgres_server import Databases
from tests.servers.s3_server import S3Server

if TYPE_CHECKING:
    from thumbwheel.db.workspace import Workspace

EVERYWHERE = "THUMBWHEEL_TEST_DATABASE"
"""Set to postgresql, it gives every home of every test a PostgreSQL database."""

FRESH_SEEDS = "THUMBWHEEL_FRESH_SEEDS"
"""Set to 1, it gives the property tests examples that no earlier run had."""

# No verdict depends on how busy the machine is; nor on chance, unless fresh seeds are asked for.
settings.register_profile(
    "steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "fresh", settings.get_profile("steady"), derandomize=False, print_blob=True
)
settings.load_profile("fresh" if os.environ.get(FRESH_SEEDS) == "1" else "steady")


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
    from thumbwheel.db.dialects import Backend, Sqlite

    folder = tmp_path_factory.mktemp("migrated")
    template = folder / "template.db"
    migrate.upgrade(Sqlite(template, folder / "writer.lock"))

    def upgrade(backend: Backend) -> None:
        if isinstance(backend, Sqlite) and not backend.exists:
            _copy_whole(template, backend.path)
        migrate.upgrade(backend)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workspace, "upgrade", upgrade)
        yield


@pytest.fixture(scope="session")
def databases() -> Iterator[Databases]:
    """Databases of a PostgreSQL server: of the one that THUMBWHEEL_TEST_POSTGRES names, else of an
    embedded one."""
    from tests.servers.postgres_server import VARIABLE, PostgresServer

    if url := os.environ.get(VARIABLE):
        yield Databases(url, os.environ.get(f"{VARIABLE}_COLLATION"))
        return
    server = PostgresServer()
    try:
        yield Databases(server.create().start().url())
    finally:
        server.close()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """An object storage on this machine."""
    server = S3Server()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a new bucket, which processes of the test reach by their environment."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return s3_server.bucket()


@pytest.fixture
def homes_in_postgresql(databases: Databases) -> Iterator[dict[Path, str]]:
    """Every home that the test opens has a PostgreSQL database of its own: home -> URL."""
    with _in_postgresql(databases) as urls:
        yield urls


@pytest.fixture(scope="session", autouse=bool(os.environ.get(EVERYWHERE)))
def postgresql_everywhere(databases: Databases) -> Iterator[dict[Path, str]]:
    """With THUMBWHEEL_TEST_DATABASE=postgresql all homes of all tests have one."""
    with _in_postgresql(databases) as urls:
        yield urls


@pytest.fixture(scope="module", autouse=bool(os.environ.get(EVERYWHERE)))
def dropped_databases(
    postgresql_everywhere: dict[Path, str], databases: Databases
) -> Iterator[None]:
    """Databases of homes in the folders of single tests go with their module."""
    yield
    for home in list(postgresql_everywhere):
        if any(part.startswith("test_") for part in home.parts):
            databases.drop(postgresql_everywhere.pop(home))


@contextmanager
def _in_postgresql(databases: Databases) -> Iterator[dict[Path, str]]:
    """Processes that a test starts use the database of the home that it opened last."""
    from thumbwheel.core.config import Home
    from thumbwheel.db import workspace
    from thumbwheel.db.dialects import VARIABLE, Postgresql

    urls: dict[Path, str] = {}
    with pytest.MonkeyPatch.context() as patch:

        def backend_of(home: Home, environment: object) -> Postgresql:
            if home.path not in urls:
                urls[home.path] = databases.migrated()
            patch.setenv(VARIABLE, urls[home.path])
            return Postgresql.from_url(urls[home.path], "test")

        patch.setattr(workspace, "backend_of", backend_of)
        yield urls
    for url in urls.values():
        databases.drop(url)


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


@pytest.fixture
def empty_ws(tmp_path: Path) -> Iterator[Workspace]:
    """An open home in which nothing was recorded, with default settings."""
    from thumbwheel.core.config import Home, Sources
    from thumbwheel.db.workspace import Workspace

    with Workspace.open(Home.at(tmp_path / "home").prepare(), Sources({}, "", {})) as opened:
        yield opened
