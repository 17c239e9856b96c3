"""The job `notify`: one notice to one channel."""

from __future__ import annotations

from typing import Any

from thumbwheel.core.config import Config
from thumbwheel.db.workspace import Workspace
from thumbwheel.notify.delivery import deliver
from thumbwheel.notify.types import Delivered, Notice


class NotifySpec(Config):
    """What is sent where."""

    channel: str
    """Name of the channel in the settings."""
    notice: dict[str, Any]
    """The notice."""


def run_notify(ws: Workspace, spec: NotifySpec) -> Delivered:
    """Send the notice. A receiver recognises a repeated one by its delivery id."""
    notice = Notice.of(spec.notice)
    deliver(ws, spec.channel, notice)
    return Delivered(spec.channel, notice.key)
