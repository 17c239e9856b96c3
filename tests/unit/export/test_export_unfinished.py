"""What a killed export leaves is taken away, and what a running one writes is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from thumbwheel.core.config import Home
from thumbwheel.export.unfinished import NOTES, scratch, sweep

CHILD = """
import sys, time
from pathlib import Path
from thumbwheel.core.config import Home
from thumbwheel.export.unfinished import scratch
with scratch(Home(Path(sys.argv[1])), Path(sys.argv[2]), ".support-v1-", ".unfinished") as folder:
    (folder / "model.safetensors").write_bytes(b"half")
    print("writing", flush=True)
    time.sleep(60)
"""


def running(home: Home, out: Path) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(home.path), str(out)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert child.stdout is not None and child.stdout.readline() == "writing\n"
    return child


def unfinished(out: Path) -> list[str]:
    return sorted(path.name for path in out.glob("*.unfinished"))


def test_a_killed_export_is_swept_and_a_running_one_is_not(tmp_path: Path) -> None:
    home, out = Home(tmp_path / "home").prepare(), tmp_path / "out"
    killed, alive = running(home, out), running(home, out)
    (out / ".theirs.unfinished").mkdir()  # somebody else's, by another program
    try:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        before = set(unfinished(out))
        assert len(before) == 3
        assert sweep(home) == 1
        after = set(unfinished(out))
        assert len(after) == 2 and ".theirs.unfinished" in after
        assert sweep(home) == 0
    finally:
        alive.kill()
        alive.wait()
    with scratch(
        home, tmp_path / "elsewhere", ".x-", ".unfinished"
    ):  # the next export sweeps, wherever it writes
        assert unfinished(out) == [".theirs.unfinished"]
    assert list((home.path / NOTES).iterdir()) == [] == list((tmp_path / "elsewhere").iterdir())


def test_what_was_renamed_stays(tmp_path: Path) -> None:
    home = Home(tmp_path / "home").prepare()
    with scratch(home, tmp_path / "out", ".a-", ".unfinished") as folder:
        (folder / "weights").write_text("w")
        folder.rename(tmp_path / "out" / "a")
    assert sweep(home) == 0 and (tmp_path / "out" / "a" / "weights").exists()
