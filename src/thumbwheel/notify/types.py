"""The nouns of notices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from thumbwheel.notify.settings import NoticeKind


@dataclass(frozen=True)
class Notice:
    """One thing that people are told."""

    key: str
    """The same for the same thing, so that it is told once."""
    kind: NoticeKind
    """What it is about; channels choose by it."""
    agent: str
    """Agent that it is about."""
    title: str
    """Title in one line."""
    text: str
    """What happened, in a few sentences."""
    path: str
    """Of the page where it is settled."""
    occurred_at: datetime
    """When it happened (UTC)."""

    def to_json(self) -> dict[str, Any]:
        """Return the notice as a JSON value."""
        return vars(self) | {"occurred_at": self.occurred_at.isoformat()}

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Notice:
        """Read a notice from the value of `to_json`."""
        occurred_at = datetime.fromisoformat(value["occurred_at"])
        return cls(**{**value, "occurred_at": occurred_at})


@dataclass(frozen=True)
class Delivered:
    """A notice that a channel took."""

    channel: str
    """Channel that took it."""
    notice: str
    """Its key."""


@dataclass(frozen=True)
class AskedDelivery:
    """A notice that a worker sends."""

    job: str
    """Id of the job that sends it."""
    channel: str
    """Channel that it goes to."""
    title: str
    """Title of the notice."""


@dataclass(frozen=True)
class ListedChannel:
    """A channel of the settings."""

    name: str
    """Name of the channel in the settings."""
    kind: str
    """webhook, slack or email."""
    kinds: list[str]
    """Of the notices that go there."""
    agents: list[str]
    """Whose notices go there; all where it is empty."""
    missing_secrets: list[str]
    """Named in the settings, and not stored."""
