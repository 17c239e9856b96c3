"""`doctor` names what is wrong, with a way to mend it, and changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from thumbwheel.app.doctor import DoctorFinding, FindingState, examine
from thumbwheel.app.open import Opener
from thumbwheel.core.config import Home
from thumbwheel.db.workspace import Workspace


def findings(folder: Path, config: Path | None = None) -> dict[str, DoctorFinding]:
    return {finding.name: finding for finding in examine(Opener(folder, config))}


def test_a_home_that_is_not_there_stays_so(tmp_path: Path) -> None:
    examined = findings(tmp_path / "home")
    assert examined["home"].state is FindingState.NOTE
    assert examined["database"].state is FindingState.NOTE
    assert not (tmp_path / "home").exists()


def test_a_sound_home_has_nothing_wrong(tmp_path: Path) -> None:
    Workspace.open(Home.at(tmp_path / "home")).__exit__(None, None, None)
    examined = findings(tmp_path / "home")
    assert not [finding for finding in examined.values() if finding.state is FindingState.WRONG]
    assert examined["database"].text.startswith("SQLite")
    assert examined["deployments"].text == "none"


def test_each_fault_is_named_with_its_mending(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home")
    Workspace.open(home).__exit__(None, None, None)
    home.path.chmod(0o755)
    home.inbox.mkdir(exist_ok=True)
    (home.inbox / "rejected.jsonl").write_text("{}\n")
    late = home.inbox / f"spool-{9_999_999_999_999:013}-1-abcdef01.jsonl"
    settings = tmp_path / "settings.yaml"
    settings.write_text("gatewy: {}\n")

    examined = findings(home.path, settings)
    for name in ("home", "settings", "inbox"):
        assert examined[name].state is FindingState.WRONG, name
        assert examined[name].fix
    assert "chmod 700" in examined["home"].fix
    assert "gateway" in examined["settings"].fix

    (home.inbox / "rejected.jsonl").unlink()
    late.write_text("{}\n")
    assert "future" in findings(home.path)["inbox"].text


def test_a_database_of_another_version_is_named_and_left(tmp_path: Path) -> None:
    import sqlite3

    home = Home.at(tmp_path / "home")
    Workspace.open(home).__exit__(None, None, None)
    with sqlite3.connect(home.path / "thumbwheel.db") as database:
        database.execute("UPDATE alembic_version SET version_num = 'tw0001'")
    examined = findings(home.path)
    assert examined["database"].state is FindingState.NOTE
    assert "tw0001" in examined["database"].text
    with sqlite3.connect(home.path / "thumbwheel.db") as database:
        assert database.execute("SELECT version_num FROM alembic_version").fetchone() == ("tw0001",)


@pytest.mark.slow
def test_the_command_ends_with_1_where_something_is_wrong(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-m", "thumbwheel", "--home", str(tmp_path / "home")]
    (tmp_path / "home").mkdir(mode=0o755)
    done = subprocess.run(
        [*command, "doctor", "--json"],
        env=os.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    states = {finding["name"]: finding["state"] for finding in json.loads(done.stdout)}
    assert states["home"] == "wrong" and states["installation"] == "good"
