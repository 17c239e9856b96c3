"""A disk that a test fills."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass
class SmallDisk:
    """A disk of its own at `folder`."""

    folder: Path

    def mount(self) -> None:
        if os.geteuid() != 0:
            pytest.skip("a small disk can be mounted by root only")
        self._run("mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(self.folder))

    def fill(self) -> None:
        """Leave no byte on it."""
        with suppress(OSError), (self.folder / "filler").open("wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass

    def free(self) -> None:
        (self.folder / "filler").unlink()

    def refuse(self, writes: bool) -> None:
        """Refuse writes, or take them again."""
        mode = "ro" if writes else "rw"
        self._run("mount", "-o", f"remount,{mode}", str(self.folder))

    def unmount(self) -> None:
        self._run("umount", "-l", str(self.folder))

    def _run(self, *command: str) -> None:
        subprocess.run(command, check=True, capture_output=True)
