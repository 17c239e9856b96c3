"""Whether anybody has written, on both databases."""

from __future__ import annotations

from pathlib import Path

from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace
from thumbwheel.models import versions


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
