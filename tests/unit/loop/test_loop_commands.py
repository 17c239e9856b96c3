"""`models` and `report` as typed: JSON on standard output and nothing else, errors with their exit
codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.types import ModelVersion


@pytest.fixture
def turned_home(empty_ws: Workspace, turn: ModelVersion, recorded: None) -> Path:
    empty_ws.db.close()
    return empty_ws.home.path


def thumbwheel(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "160"}
    command = [sys.executable, "-m", "thumbwheel", "--home", str(home), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=home)


@pytest.mark.slow
def test_models_list_show_lineage(turned_home: Path) -> None:
    listed = json.loads(
        thumbwheel(turned_home, "models", "list", "--agent", "support", "--json").stdout
    )
    assert [(item["name"], item["state"], item["aliases"]) for item in listed] == [
        ("v0", "approved", []),
        ("v1", "approved", []),
    ]
    assert (
        "approved (gold)" in thumbwheel(turned_home, "models", "list", "--agent", "support").stdout
    )
    shown = thumbwheel(turned_home, "models", "show", "v1", "--agent", "support").stdout
    assert "61.2 % -> 80.1 %, +18.9 points [+14.8, +23.0], basis gold" in shown
    assert (
        json.loads(
            thumbwheel(turned_home, "models", "show", "v1", "--agent", "support", "--json").stdout
        )["summary"]["after"]
        == 0.801
    )
    tree = thumbwheel(turned_home, "models", "lineage", "v1", "--agent", "support").stdout
    assert "dataset dst_pairs" in tree
    assert tree.splitlines()[0].startswith("v1 approved")
    backwards = json.loads(
        thumbwheel(
            turned_home, "models", "lineage", "--of", "fbk_1", "--agent", "support", "--json"
        ).stdout
    )
    assert [(item["version"], item["role"]) for item in backwards] == [("v1", "learned")]


@pytest.mark.slow
def test_alias_and_its_refusals(turned_home: Path) -> None:
    assert (
        thumbwheel(turned_home, "models", "alias", "live", "v0", "--agent", "support").returncode
        == 0
    )
    with Workspace.open(Home(turned_home), Sources({}, "", {})) as ws:
        from thumbwheel.models import versions

        assert versions.version(ws, "support", "live").name == "v0"
    unsigned = thumbwheel(turned_home, "models", "alias", "live", "v1", "--agent", "support")
    assert (unsigned.returncode, "no decision of the gate" in unsigned.stderr) == (3, True)
    assert (
        thumbwheel(turned_home, "models", "alias", "v9", "v1", "--agent", "support").returncode == 2
    )
    unknown = thumbwheel(turned_home, "models", "alias", "live", "v7", "--agent", "support")
    assert (unknown.returncode, "there is no such version" in unknown.stderr) == (2, True)
    assert thumbwheel(turned_home, "models", "lineage", "--agent", "support").returncode == 2
    assert thumbwheel(turned_home, "models", "list", "--agent", "../x").returncode == 2


@pytest.mark.slow
def test_report_writes_html_and_json(turned_home: Path, tmp_path: Path) -> None:
    done = thumbwheel(
        turned_home, "report", "v1", "--agent", "support", "--json", str(tmp_path / "r.json")
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert (turned_home / "support-v1.html").read_text().startswith("<!doctype html>")
    assert json.loads((tmp_path / "r.json").read_text())["version"] == "v1"
