"""Whether anybody has written, on both databases."""

from __future__ import annotations

from pathlib import Path

import pytest

from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import of_agent
from thumbwheel.models import store, versions


def test_a_marker_changes_with_each_commit_and_not_without(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    with Workspace.open(home, Sources({}, "", {})) as ws:
        changes = ws.db.changes()
        markers = [changes.marker(), changes.marker()]
        assert markers[0] == markers[1]
        versions.ensure_agent(ws, "support")
        markers.append(changes.marker())
        with Workspace.open(home, Sources({}, "", {})) as other:
            versions.ensure_agent(other, "sales")
        markers.append(changes.marker())
        assert len(set(map(str, markers))) == 3
        assert changes.marker() == markers[-1]
        changes.close()
        assert changes.marker() is not None
        changes.close()


@pytest.mark.parametrize("is_quiet", [False, True])
def test_a_quiet_write_is_not_announced_where_writes_are(tmp_path: Path, is_quiet: bool) -> None:
    home = Home(tmp_path / "home")
    with Workspace.open(home, Sources({}, "", {})) as ws:
        changes = ws.db.changes()
        before = changes.marker()
        with Workspace.open(home, Sources({}, "", {})) as other:
            other.db.write(
                lambda connection: store.ensure_agent(connection, "support"),
                of_agent("agt_x", is_quiet=is_quiet),
            )
        is_announced = not (is_quiet and ws.db.backend.has_many_writers)
        assert (changes.marker() != before) == is_announced
        changes.close()


def test_a_commit_is_known_to_whoever_asks_after_it(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    with (
        Workspace.open(home, Sources({}, "", {})) as ws,
        Workspace.open(home, Sources({}, "", {})) as other,
    ):
        changes = ws.db.changes()
        markers = [changes.marker()]
        for number in range(200):
            versions.ensure_agent(other, f"agent-{number}")
            markers.append(changes.marker())
        assert len(set(map(str, markers))) == 201
        changes.close()
