"""Files that several processes share: what has to be on disk before the next thing happens, and
which file a name means."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Flush `path` to the disk, so that it survives a power cut: the bytes of a file, or the names
    in a folder. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_file_at(path: Path, handle: int) -> bool:
    """Return whether `path` still names this open file: it may have been renamed or deleted
    since."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False
