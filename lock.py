"""Writes the hashes of every pinned package into constraints.txt: `python3 lock.py`, after a
version in it was changed.

The package index names a SHA-256 for each file. All files that a supported Python could take are
kept, for every platform, so that one file serves Linux, macOS and Windows. torch gets none: its
builds (CPU, CUDA, of another index) are chosen by install.py.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from install import normal_name

CONSTRAINTS = Path(__file__).with_name("constraints.txt")
INDEX = "https://pypi.org/simple"
UNHASHED = {"torch"}
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s\\]+)", re.MULTILINE)
OLD_PYTHON = re.compile(r"-(?:cp(?:2\d|3[0-9]|310)|pp\d+|py2)-")
"""Wheels of Pythons before 3.11 and of PyPy. Wheels of the stable ABI are kept whatever their first
Python is."""


def main() -> None:
    """Rewrite the file in place, sorted by name; fail, changing nothing, where the index has no
    file of a version."""
    pins = PIN.findall(CONSTRAINTS.read_text())
    with ThreadPoolExecutor(8) as executor:
        entries = list(executor.map(entry, *zip(*pins, strict=True)))
    CONSTRAINTS.write_text("".join(sorted(entries, key=str.lower)))


def entry(name: str, version: str) -> str:
    """The lines of one package: its pin, and the hashes of its files."""
    if name in UNHASHED:
        return f"{name}=={version}\n"
    hashes = sorted({f"sha256:{digest}" for digest in digests(name, version)})
    if not hashes:
        sys.exit(
            f"lock: {INDEX}/{name}/ has no file of {version} for Python 3.11 or newer. Pin a "
            "version that it has"
        )
    return (
        " \\\n    ".join([f"{name}=={version}", *(f"--hash={digest}" for digest in hashes)]) + "\n"
    )


def digests(name: str, version: str) -> list[str]:
    """SHA-256 of a version's source archive and of its wheels for Python 3.11 or newer."""
    normal = normal_name(name)
    request = urllib.request.Request(
        f"{INDEX}/{normal}/", headers={"Accept": "application/vnd.pypi.simple.v1+json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        files = json.load(answer)["files"]
    return [
        file["hashes"]["sha256"] for file in files if is_usable(file["filename"], normal, version)
    ]


def is_usable(filename: str, name: str, version: str) -> bool:
    """Whether a file of the index is this version's, and not built for an older Python."""
    stem = normal_name(filename)
    prefix = f"{name}-{normal_name(version)}"
    if filename.endswith((".tar.gz", ".zip")):
        return stem in (f"{prefix}-tar-gz", f"{prefix}-zip")
    if not filename.endswith(".whl") or filename.split("-")[1] != version:
        return False
    return stem.startswith(f"{prefix}-") and (
        "-abi3-" in filename or not OLD_PYTHON.search(filename)
    )


if __name__ == "__main__":
    main()
