"""A server in a thread, with an open home."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worlds.gateway_world import GatewayWorld, opened_home, running


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[GatewayWorld]:
    """A server of a new home."""
    with opened_home(tmp_path / "home") as ws, running(ws) as world:
        yield world
