"""Clients of npm, installed once into a cache outside the repository."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1] / "third_party" / "node_clients"
PACKAGE, PROGRAM = "package.json", "clients.mjs"
INSTALLING, CALLING = 900, 600
"""Seconds that nobody needs."""


def installed() -> Path:
    """The folder with the clients that PACKAGE names; skips where there is no npm or registry."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are needed to call the gateway with clients of npm")
    package = (HERE / PACKAGE).read_bytes()
    caches = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    folder = caches / "thumbwheel" / "node_clients" / hashlib.sha256(package).hexdigest()[:16]
    if not (folder / "ready").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / PACKAGE).write_bytes(package)
        command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=INSTALLING, check=False
        )
        if done.returncode:
            pytest.skip(f"npm cannot install the clients: {done.stderr[-300:]}")
        (folder / "ready").touch()
    return folder


@cache
def results(url: str) -> dict[tuple[str, str], str | None]:
    """(client, feature) -> what was wrong, or None, of every cell."""
    folder = installed()
    shutil.copy(HERE / PROGRAM, folder / PROGRAM)
    done = subprocess.run(
        ["node", PROGRAM, url],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=CALLING,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    cells = map(json.loads, done.stdout.splitlines())
    return {(cell["client"], cell["feature"]): cell["error"] for cell in cells}
