"""Asks every quarter of a minute for the delivery of what people are not told yet, where channels
are set up."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from thumbwheel.core.repeated import Repeated
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy.watch import DeploymentWatch
from thumbwheel.notify.settings import NotifyConfig

if TYPE_CHECKING:
    from thumbwheel.loop.attention import Down

EVERY = 15.0
"""Seconds between two looks."""
DEAD_SECONDS = 60.0
"""A deployment that is silent for less may be starting again."""


class Notifier(Repeated):
    """Use as a context manager. Without channels it does nothing."""

    def __init__(self, ws: Workspace, watch: DeploymentWatch, every: float = EVERY) -> None:
        self._ws, self._watch = ws, watch
        self._is_on = bool(ws.settings(NotifyConfig, "notify").channels)
        super().__init__("notifier", every=every, first=every, failing="notices cannot be sent")

    def __enter__(self) -> Notifier:
        return super().__enter__() if self._is_on else self

    def _once(self) -> None:
        # What sends notices has no place in a server that sends none.
        from thumbwheel.notify.delivery import dispatch

        dispatch(self._ws, long_dead(self._watch), datetime.now(UTC))


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
