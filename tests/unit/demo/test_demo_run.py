"""What the demo does to folders and processes, and to a run that was interrupted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from thumbwheel.core.errors import Conflict
from thumbwheel.demo import run as demo
from thumbwheel.demo.emit import EmitOptions
from thumbwheel.deploy import processes


def test_a_folder_with_something_else_is_not_written_into(tmp_path: Path) -> None:
    model = tmp_path / "base" / "model.safetensors"
    model.parent.mkdir()
    model.write_text("mine")
    with pytest.raises(Conflict, match="not a world"):
        demo.write_world(tmp_path, EmitOptions())
    assert model.read_text() == "mine"


def test_a_new_demo_ends_the_server_of_the_old_one(tmp_path: Path) -> None:
    home = tmp_path / "home"
    demo.clear_home(home, {})
    folder = home / "deployments" / "filer"
    folder.mkdir(parents=True)
    server = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
    )
    record = {
        "pid": server.pid,
        "started": processes._started(server.pid),
        "port": 1,
        "token": "t",
        "place": str(folder.resolve()),
    }
    (folder / processes.RECORD).write_text(json.dumps(record))
    demo.clear_home(home, {})
    assert processes._started(server.pid) is None
    assert os.listdir(home) == [demo.MARK]
