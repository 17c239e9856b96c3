"""What others on the machine can read of a home: nothing, whatever the user's own mask is."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from thumbwheel import sdk
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import ConfigError
from thumbwheel.db.workspace import Workspace
from thumbwheel.models import versions

LINE = '{"type": "trace", "id": "t1", "input": "Where is it?", "output": "There."}\n'


@pytest.fixture(autouse=True)
def careless():
    """The mask that systems have: everybody may read."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def readable(folder: Path) -> list[str]:
    """What is not its owner's alone."""
    return [
        str(path)
        for path in [folder, *folder.rglob("*")]
        if not path.is_symlink() and path.stat().st_mode & 0o077
    ]


def thumbwheel(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "thumbwheel", "--home", str(home), *arguments]
    return subprocess.run(command, cwd=home.parent, capture_output=True, text=True, check=True)


@pytest.mark.slow
def test_a_command_writes_for_its_owner_only(tmp_path: Path) -> None:
    (tmp_path / "asked.jsonl").write_text(LINE)
    thumbwheel(tmp_path / "home", "import", "jsonl", "asked.jsonl", "--agent", "support")
    assert readable(tmp_path / "home") == []


def test_a_program_that_opens_a_home_and_an_app_that_records_do_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Workspace.open(Home(tmp_path / "home"), Sources({}, "", {})) as ws:
        versions.ensure_agent(ws, "support")
        assert readable(tmp_path / "home") == []
    monkeypatch.setenv("THUMBWHEEL_HOME", str(tmp_path / "app"))
    sdk.trace("support", input="Where?", output="There.")
    assert readable(tmp_path / "app") == []


@pytest.mark.slow
def test_an_old_home_is_closed_with_one_word(tmp_path: Path) -> None:
    home, outside = tmp_path / "home", tmp_path / "mine.txt"
    with Workspace.open(Home(home), Sources({}, "", {})) as ws:
        versions.ensure_agent(ws, "support")
    outside.write_text("mine")
    (home / "runs" / "run_1").mkdir()
    (home / "runs" / "run_1" / "spec.json").write_text("{}")
    (home / "runs" / "tool").write_text("#!/bin/sh\n")
    (home / "runs" / "tool").chmod(0o755)
    (home / "runs" / "link").symlink_to(outside)
    (home / "notes.txt").write_text("Thumbwheel did not create it")
    for path in (home, home / "runs", home / "runs" / "run_1", home / "thumbwheel.db"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    output = thumbwheel(home, "feedback", "stats", "--agent", "support").stderr
    assert output.count("was open to others on this machine") == 1
    assert readable(home) == [str(home / "notes.txt")]  # out of reach, for the folder is closed
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert stat.S_IMODE((home / "runs" / "tool").stat().st_mode) == 0o700
    assert stat.S_IMODE(outside.stat().st_mode) == 0o644
    assert "was open" not in thumbwheel(home, "feedback", "stats", "--agent", "support").stderr


def test_a_folder_for_everybody_is_no_home(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "somebody.sock").touch()
    with pytest.raises(ConfigError, match="folder for everybody"):
        Home(shared).prepare()
    assert stat.S_IMODE(shared.stat().st_mode) == 0o1777
    (shared / "somebody.sock").unlink()
    assert stat.S_IMODE(Home(shared).prepare().path.stat().st_mode) == 0o700
