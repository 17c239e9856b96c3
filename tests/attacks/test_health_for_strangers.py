"""/health, /ready and /live answer without a key, so no part of the server quotes there what an
error says: paths, addresses and users of the database, names of agents, texts of calls."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.servers.scripted_upstream import ScriptedUpstream
from tests.waiting import until
from tests.worlds.gateway_world import GatewayWorld, opened_home, running, serve_remote
from thumbwheel.capture import inbox
from thumbwheel.core import log
from thumbwheel.core.errors import Conflict, StorageError
from thumbwheel.core.repeated import Repeated
from thumbwheel.db.refreshed import Refreshed
from thumbwheel.db.workspace import Workspace
from thumbwheel.gateway.recorder import PendingCall, Recorder
from thumbwheel.models.types import EndpointAddress
from thumbwheel.server.serve import _standstill

SECRETS = ("10.2.3.4", "wheel_admin", "acme-legal", "My diagnosis is", "/srv/hidden")
TEXT = " ".join(SECRETS)
ERRORS: list[Exception] = [
    RuntimeError(TEXT),
    OSError(28, TEXT, "/srv/hidden/inbox"),
    Conflict(TEXT, TEXT, TEXT),
    StorageError(TEXT, TEXT, TEXT),
    ValueError(TEXT),
]


def require_public(problem: str | None) -> None:
    assert problem is not None
    assert not [secret for secret in SECRETS if secret in problem], problem


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
class TestNoPartQuotesAnError:
    def test_one_that_reads_rows(self, error: Exception, caplog: pytest.LogCaptureFixture) -> None:
        def look() -> None:
            raise error

        refreshed = Refreshed(look, "routes")
        with caplog.at_level(logging.ERROR, log.logger.name):
            refreshed.refresh()
        require_public(refreshed.problem)
        assert type(error).__name__ in str(refreshed.problem)
        assert SECRETS[0] in caplog.text, "the log has the reason"

    def test_one_that_works_again_and_again(self, error: Exception) -> None:
        class Failing(Repeated):
            def _once(self) -> None:
                raise error

        with Failing("failing", every=3600.0, failing="old files stay") as failing:
            until(failing.problem)
            require_public(failing.problem())
            assert str(failing.problem()).startswith("old files stay: ")

    def test_the_drainer(
        self, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def take_files(folder: Path) -> list[Path]:
            raise error

        monkeypatch.setattr(inbox, "take_files", take_files)
        monkeypatch.setattr(inbox.Drainer, "stands_still", lambda self: True)
        with opened_home(tmp_path / "home") as ws, inbox.Drainer(ws, every=0.01) as drainer:
            until(lambda: drainer.failure)
            require_public(_standstill(drainer))

    def test_the_recorder_of_a_line(self, error: Exception) -> None:
        def line() -> bytes:
            raise error

        with Recorder(lambda: pytest.fail("nothing is written")) as recorder:
            recorder.add(PendingCall(line, 1))
            until(recorder.problem)
            require_public(recorder.problem())

    def test_the_recorder_of_a_write(self, error: Exception) -> None:
        class FailingSpool:
            def append(self, line: bytes) -> Future[None]:
                future: Future[None] = Future()
                future.set_exception(error)
                return future

            def close(self) -> None:
                pass

        with Recorder(FailingSpool) as recorder:
            recorder.add(PendingCall(lambda: b"{}\n", 1))
            until(recorder.problem)
            require_public(recorder.problem())


def test_a_stranger_does_not_learn_the_folder_of_the_home(tmp_path: Path) -> None:
    with ScriptedUpstream() as upstream, opened_home(tmp_path / "home") as ws:
        serve_remote(ws, EndpointAddress(upstream.url, "large"))
        with running(ws) as gateway:
            answers = broken_inbox(ws, gateway)
    assert "not recorded" in answers
    assert str(tmp_path) not in answers


def broken_inbox(ws: Workspace, gateway: GatewayWorld) -> Any:
    """Return what a stranger reads while no call can be recorded."""
    folder = ws.home.inbox
    folder.rename(folder.with_name("elsewhere"))
    folder.write_text("no folder")
    try:
        assert gateway.ask().status_code == 200
        until(gateway.application.gateway.recorder.problem)
        return gateway.client.get("/health").text + gateway.client.get("/ready").text
    finally:
        folder.unlink()
        folder.with_name("elsewhere").rename(folder)
