"""`thumbwheel demo --online` as a user runs it: stopped by Ctrl-C on the way, then to its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from thumbwheel.deploy import processes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def command(folder: Path) -> list[str]:
    options = ["--home", str(folder / "home"), "--json", str(folder / "result.json")]
    return [sys.executable, "-m", "thumbwheel", "demo", "--online", *options, "--seed", "5"]


def test_it_stops_cleanly_goes_on_and_says_what_became_of_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with (tmp_path / "first.log").open("wb") as output:
        first = subprocess.Popen(command(tmp_path), stdout=output, stderr=output)
        deadline = time.monotonic() + 900
        while sent(home).get("use", 0) < 100:
            assert first.poll() is None and time.monotonic() < deadline, log_of(tmp_path)
            time.sleep(0.2)
        first.send_signal(signal.SIGINT)
        assert first.wait(120) == 130, log_of(tmp_path)
    assert [path for path in home.rglob(processes.RECORD) if processes.find(path.parent)] == []

    environment = os.environ | {"COLUMNS": "160"}
    second = subprocess.run(
        command(tmp_path), env=environment, capture_output=True, text=True, check=False
    )
    assert "goes on where it was" in second.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert second.returncode == 0 and result["ended_as_said"], second.stderr[-2000:]
    decided = [trial for trial in result["trials"] if trial["state"] in ("won", "lost")]
    assert all(trial["is_replayed"] for trial in decided)
    for trial in result["trials"]:
        assert f"{trial['experiment']} of filer:live: {trial['state']}" in second.stdout
    assert "checks of filer, newest first" in second.stdout
    assert [trial["state"] for trial in result["trials"]] == ["won", "lost"]
    assert (result["live"], result["basis"]) == (result["trials"][0]["arms"][1], "traffic")
    assert [path for path in home.rglob(processes.RECORD) if processes.find(path.parent)] == []


def sent(home: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((home / "demo.json").read_text())["sent"])
    except (OSError, ValueError, KeyError):  # it is not written yet, or not whole
        return {}


def log_of(folder: Path) -> str:
    return (folder / "first.log").read_text()[-2000:]
