"""The battery once more as an ordinary user: root hands it to a user that owns nothing, with an
interpreter that this one may read."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.required import missing
from thumbwheel.sandbox.bubblewrap import ENVIRONMENT
from thumbwheel.sandbox.root_files import root_files

USER = 61180
ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent


def path_is_open(path: Path) -> bool:
    return all(parent.stat().st_mode & 0o001 for parent in [path, *path.parents])


@pytest.mark.slow
def test_the_battery_holds_as_an_ordinary_user(report):
    if os.geteuid() != 0:
        pytest.skip("these tests run as an ordinary user already")
    site = Path(pytest.__file__).parents[1]
    closed = [path for path in (ROOT, site) if not path_is_open(path)]
    if closed:
        message = f"another user cannot read {closed[0]}"
        missing("sandbox", message)
    interpreter = root_files().root / "py"
    home = Path(tempfile.mkdtemp(prefix="thumbwheel-user-"))
    os.chown(home, USER, USER)
    environment = {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "LANG": ENVIRONMENT["LANG"],
        "LD_LIBRARY_PATH": str(interpreter / "lib"),
        "PYTHONHOME": str(interpreter),
        "PYTHONPATH": f"{ROOT / 'src'}:{site}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "THUMBWHEEL_REQUIRE_SANDBOX": "1",
        "TMPDIR": str(home),
    }
    files = [str(HERE / "test_sandbox_escape.py"), str(HERE / "test_sandbox_verdicts.py")]
    command = [
        str(interpreter / "bin/python3"),
        "-m",
        "pytest",
        "-m",
        "not slow",
        "-p",
        "no:cacheprovider",
        *files,
    ]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            user=USER,
            group=USER,
            extra_groups=[],
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        shutil.rmtree(home, ignore_errors=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert done.stdout.count(".") > 100 or (passed and int(passed[1]) > 100), done.stdout[-500:]


def test_the_interpreter_of_these_tests_is_the_one_of_the_tree(report):
    done = subprocess.run(
        [root_files().root / "py/bin/python3", "-c", "import sys; print(sys.version)"],
        env={
            "LD_LIBRARY_PATH": str(root_files().root / "py/lib"),
            "PYTHONHOME": str(root_files().root / "py"),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == sys.version
