"""The job `models fetch`."""

from __future__ import annotations

from thumbwheel.core.config import Config
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.fetch import FetchedBase, fetch, known_base


class FetchSpec(Config):
    """Which base to download."""

    base: str
    """Its id."""


def run_fetch(ws: Workspace, spec: FetchSpec) -> FetchedBase:
    """Download the base into the cache of this user. A later attempt goes on where it broke off."""
    return fetch(known_base(spec.base))
