"""Permissions of what we write: nobody else on the machine may read it. Folders are 0700, files
0600, for child processes too.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

UMASK = 0o077
"""Of the command line and of every child process that writes: training, servers, exports."""
ACCESS_TOKEN = "access.token"
"""The file of a home with the token by which whoever can read it may do everything."""
OTHERS = stat.S_IRWXG | stat.S_IRWXO


def close_to_others() -> None:
    """Make everything that this process writes from now on accessible to its owner only."""
    os.umask(UMASK)


def is_open(folder: Path) -> bool:
    """Return whether anyone but the owner has any permission on `folder`."""
    return bool(folder.stat().st_mode & OTHERS)


def may_be_planted(file: Path) -> bool:
    """Return whether another user may have put this file where this one works: it is theirs, and
    everybody may write to its folder, such as /tmp."""
    is_foreign = file.lstat().st_uid not in (0, os.geteuid())
    return is_foreign and bool(file.absolute().parent.stat().st_mode & stat.S_IWOTH)


def tighten(folder: Path, entries: Iterable[Path]) -> None:
    """Remove all permissions but the owner's from `folder` and everything below `entries`. Raises
    OSError for the folder only.

    The folder comes last, so that an interrupted call is repeated. Links are not followed, because
    their targets may belong to others.
    """
    for entry in entries:
        _tighten(entry)
        for parent, folders, files in os.walk(entry):
            for name in (*folders, *files):
                _tighten(Path(parent, name))
    folder.chmod(0o700)


def _tighten(path: Path) -> None:
    # It may be gone by now, or somebody else's; the closed folder above keeps others out.
    with suppress(OSError):
        mode = path.lstat().st_mode
        if not stat.S_ISLNK(mode) and mode & OTHERS:
            path.chmod(stat.S_IMODE(mode) & ~OTHERS)
