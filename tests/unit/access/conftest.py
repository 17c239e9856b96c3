"""An open home without anybody in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from thumbwheel.access.gate import AccessGate, opened_gate
from thumbwheel.access.settings import AccessConfig
from thumbwheel.db.workspace import Workspace


@pytest.fixture
def gate(empty_ws: Workspace) -> Iterator[AccessGate]:
    """Of a server that others can reach."""
    with opened_gate(empty_ws, AccessConfig(), local=False, apps=False) as gate:
        yield gate
