"""An open home without anybody in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from thumbwheel.access.gate import AccessGate, opened_gate
from thumbwheel.access.settings import AccessConfig
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace


@pytest.fixture
def ws(tmp_path: Path) -> Iterator[Workspace]:
    with Workspace.open(Home(tmp_path / "home"), Sources({}, "none", {})) as ws:
        yield ws


@pytest.fixture
def gate(ws: Workspace) -> Iterator[AccessGate]:
    """Of a server that others can reach."""
    with opened_gate(ws, AccessConfig(), local=False, apps=False) as gate:
        yield gate
