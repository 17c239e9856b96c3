"""The list of where reports, and copies of reward models, were written outside the home, so that an
erasure finds them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from thumbwheel.db.workspace import Workspace

REPORTS = "reports.jsonl"
"""File of the home that lists where reports, and copies of reward models, were written."""


def note_report(ws: Workspace, version_id: str, path: Path, content: str) -> None:
    """Record that a report of a version will be written to `path`, so that an erasure finds it."""
    _note(ws, {"version": version_id, "path": str(path.absolute()), "sha256": _hash(content)})


def note_copy(ws: Workspace, version_id: str, folder: Path) -> None:
    """Record that the reward model which judged a version will be copied to `folder`, so that an
    erasure marks the copy as it marks exports."""
    _note(ws, {"version": version_id, "folder": str(folder.absolute())})


def _note(ws: Workspace, line: Mapping[str, str]) -> None:
    with (ws.home.path / REPORTS).open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")
        out.flush()
        os.fsync(out.fileno())


def _hash(content: str) -> str:
    return hashlib.sha256(content.encode("utf-8", "backslashreplace")).hexdigest()


def noted_lines(ws: Workspace) -> list[dict[str, Any]]:
    """Return what was noted, oldest first: {version, path, sha256} of a report, {version, folder}
    of a copy."""
    path = ws.home.path / REPORTS
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    # A kill may have left half a line.
    return [json.loads(line) for line in lines if line.endswith("}")]
