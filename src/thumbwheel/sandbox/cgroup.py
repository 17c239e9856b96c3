"""Cgroups for sandboxes: version 1 as root, version 2 where a folder is ours; what was set is read
back.

Version 2 needs a parent whose controllers are passed on: the own folder, the one above (a user's
`app.slice`), or the root of the tree.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
V2 = (("memory.max", "memory_mb"), ("memory.swap.max", "zero"), ("pids.max", "processes"))
V1 = {
    "memory": (
        ("memory.limit_in_bytes", "memory_mb"),
        ("memory.memsw.limit_in_bytes", "memory_mb"),
    ),
    "pids": (("pids.max", "processes"),),
}
OPTIONAL = {"memory.swap.max", "memory.memsw.limit_in_bytes"}
"""Not on every kernel; swap is bounded by the machine's then."""
OVERHEAD_MB = 48
"""The warm interpreter and bubblewrap."""
OVERHEAD_PROCESSES = 9
PAGE = 65536


@dataclass(frozen=True)
class Cgroup:
    """The folders of one sandbox."""

    folders: tuple[Path, ...]

    def remove(self) -> None:
        """Kill the processes still in them, and remove the folders once they have gone."""
        for folder in self.folders:
            for _ in range(50):
                try:
                    folder.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:  # a killed process may take a moment to leave
                    self.kill(folder)
                    time.sleep(0.02)

    @staticmethod
    def kill(folder: Path) -> None:
        """End the processes in one folder."""
        with contextlib.suppress(FileNotFoundError):
            for pid in (folder / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)


def make(memory_mb: int, processes: int) -> Cgroup | str:
    """Return a cgroup with these limits; else why there is none."""
    values = {
        "memory_mb": (memory_mb + OVERHEAD_MB) << 20,
        "processes": processes + OVERHEAD_PROCESSES,
        "zero": 0,
    }
    name = f"thumbwheel-{os.getpid()}-{secrets.token_hex(4)}"
    paths: dict[str, str] = {}
    if ROOT.exists():
        own_cgroups = Path("/proc/self/cgroup").read_text()
        paths = dict(re.findall(r"^\d+:([^:]*):(.*)$", own_cgroups, re.MULTILINE))
    if not paths:
        return "this system has no cgroups"
    by_controller: dict[str, str] = {}
    for controllers, path in paths.items():
        by_controller |= dict.fromkeys(controllers.split(","), path)
    if "memory" in by_controller and "pids" in by_controller:
        return _version_1(by_controller, name, values)
    return _version_2(Path(paths.get("", "/")), name, values)


def _sweep(parent: Path) -> None:
    """Remove the folders of processes that were killed before they could remove them."""
    for folder in parent.glob("thumbwheel-*-*"):
        if not Path("/proc", folder.name.split("-")[1]).exists():
            with contextlib.suppress(OSError):
                folder.rmdir()


def _version_1(paths: dict[str, str], name: str, values: dict[str, int]) -> Cgroup | str:
    folders: list[Path] = []
    for controller, settings in V1.items():
        folder = ROOT / controller / paths[controller].lstrip("/") / name
        problem = _set(folder, settings, values)
        if problem:
            Cgroup(tuple(folders)).remove()
            return problem
        folders.append(folder)
    return Cgroup(tuple(folders))


def _version_2(path: Path, name: str, values: dict[str, int]) -> Cgroup | str:
    here = ROOT / path.relative_to("/")
    problem = ""
    for parent in dict.fromkeys((here, here.parent if here != ROOT else ROOT, ROOT)):
        problem = _set(parent / name, V2, values)
        if not problem:
            return Cgroup((parent / name,))
    return problem


def _set(folder: Path, settings: tuple[tuple[str, str], ...], values: dict[str, int]) -> str:
    """Make the folder and set its limits; return the failure, after removing the folder, or ""."""
    _sweep(folder.parent)
    try:
        folder.mkdir()
    except OSError as error:
        return f"no cgroup can be made in {folder.parent} ({error.strerror})"
    try:
        for file, key in settings:
            if file in OPTIONAL and not (folder / file).exists():
                continue
            (folder / file).write_text(str(values[key]))
            stored = (folder / file).read_text().strip()
            if not stored.isdigit() or abs(int(stored) - values[key]) >= PAGE:
                raise OSError(0, f"{file} reads {stored!r} after {values[key]} was written")
    except OSError as error:
        with contextlib.suppress(OSError):
            folder.rmdir()
        return f"the cgroup {folder.parent} has no limits to set ({error.strerror or error})"
    return ""
