"""Asks every quarter of a minute for the delivery of what people are not told yet, where channels
are set up."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from thumbwheel.core import log
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy.watch import DeploymentWatch
from thumbwheel.notify.settings import NotifyConfig

if TYPE_CHECKING:
    from thumbwheel.loop.attention import Down

EVERY = 15.0
"""Seconds between two looks."""
DEAD_SECONDS = 60.0
"""A deployment that is silent for less may be starting again."""


class Notifier:
    """Use as a context manager. Without channels it does nothing."""

    def __init__(self, ws: Workspace, watch: DeploymentWatch, every: float = EVERY) -> None:
        self._ws, self._watch, self._every = ws, watch, every
        self._is_on = bool(ws.settings(NotifyConfig, "notify").channels)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="notifier", daemon=True)
        self._problem: str | None = None

    def __enter__(self) -> Notifier:
        if self._is_on:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._is_on:
            self._thread.join()

    def problem(self) -> str | None:
        """Return why the last look failed; None if it did not."""
        return self._problem

    def _run(self) -> None:
        # What sends notices has no place in a server that sends none.
        from thumbwheel.notify.delivery import dispatch

        while not self._ended.wait(self._every):
            try:
                dispatch(self._ws, long_dead(self._watch), datetime.now(UTC))
                self._problem = None
            except Exception as error:  # noqa: BLE001 - the next look may succeed
                if self._problem is None:
                    log.logger.exception("notices cannot be sent")
                self._problem = f"notices cannot be sent: {type(error).__name__}"


def long_dead(watch: DeploymentWatch, seconds: float = DEAD_SECONDS) -> Down:
    """Return (agent, version) -> why, for deployments that have not answered for `seconds` and were
    not stopped."""
    now = time.monotonic()
    dead = [watched for watched in watch.down() if not watched.is_stopped]
    return {
        (watched.deployment.agent, watched.deployment.version): watched.health.why
        for watched in dead
        if now - watched.changed_at >= seconds
    }
