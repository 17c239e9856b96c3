"""Who else on the machine may read what we write: nobody. Folders 0700, files 0600, and children
that write the same way.

Lives here: the mask of a process, and tightening a home from before. Not here: the home's paths
(config.py), its secrets (seal.py).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

UMASK = 0o077
"""Of the command line and of every child that writes: training, servers, exports."""
OTHERS = stat.S_IRWXG | stat.S_IRWXO


def close_to_others() -> None:
    """Let everything that this process writes from now on be its owner's alone."""
    os.umask(UMASK)


def is_open(folder: Path) -> bool:
    """Whether anybody but its owner may do anything with `folder`."""
    return bool(folder.stat().st_mode & OTHERS)


def tighten(folder: Path, entries: Iterable[Path]) -> None:
    """Take `folder` and everything below `entries` from everybody but the owner; raises OSError for
    the folder only.

    The folder comes last, so that one that was interrupted is begun again. Links are not followed:
    what they point at is not ours.
    """
    for entry in entries:
        _tighten(entry)
        for parent, folders, files in os.walk(entry):
            for name in (*folders, *files):
                _tighten(Path(parent, name))
    folder.chmod(0o700)


def _tighten(path: Path) -> None:
    with suppress(
        OSError
    ):  # gone by now, or somebody else's; the closed folder above keeps others out
        mode = path.lstat().st_mode
        if not stat.S_ISLNK(mode) and mode & OTHERS:
            path.chmod(stat.S_IMODE(mode) & ~OTHERS)
