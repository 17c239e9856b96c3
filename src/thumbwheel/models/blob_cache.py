"""Blobs of a bucket that this host has in a folder, to be read as files.

The folder holds a bounded number of bytes; what was not used for longest goes first. Files that a
process uses stay: it holds a shared lock on each of the last files that it asked for.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from threading import Lock

from thumbwheel.core import ids
from thumbwheel.models.blob_store import LAYOUT, UNFINISHED, relative_path

HELD = 64
"""Files, at most, that a process keeps from being removed."""
ABANDONED_SECONDS = 24 * 3600.0
"""Age of an unfinished file whose writer was killed."""

_held: OrderedDict[Path, int] = OrderedDict()
"""Files that this process uses -> the open handle with the lock."""
_guard = Lock()


def hold(path: Path) -> None:
    """Keep a file of a cache from being removed by other processes. Raises FileNotFoundError."""
    with _guard:
        handle = os.open(path, os.O_RDONLY)
        fcntl.flock(handle, fcntl.LOCK_SH)
        before = _held.pop(path, None)
        if before is not None:
            os.close(before)
        _held[path] = handle
        if len(_held) > HELD:
            os.close(_held.popitem(last=False)[1])
    if not os.path.samestat(os.fstat(handle), path.stat()):
        raise FileNotFoundError(path)


def release(path: Path) -> None:
    """Let a file of a cache be removed, as far as this process goes."""
    with _guard:
        handle = _held.pop(path, None)
    if handle is not None:
        os.close(handle)


class BlobCache:
    """The files of a folder that take `limit` bytes together."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self._limit = folder, limit

    def verified(self, sha256: str) -> tuple[Path | None, str | None]:
        """Return (the file of this hash, None). (None, None) if there is none, and (None, its
        actual hash) for a damaged one, which is removed."""
        path = self.folder / relative_path(sha256)
        try:
            hold(path)
            actual = ids.file_hash(path)
            os.utime(path)
        except FileNotFoundError:
            return None, None
        if actual != sha256:
            self.remove(sha256)
            return None, actual
        return path, None

    def unfinished(self) -> Path:
        """Return the path of a file that does not exist yet, to be written and then added."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.folder / LAYOUT).mkdir(exist_ok=True)
        return self.folder / LAYOUT / f"{UNFINISHED}{os.getpid()}-{time.monotonic_ns()}"

    def add(self, sha256: str, unfinished: Path) -> Path:
        """Make an unfinished file the cached one of this hash; remove others if there are too
        many. Raises OSError."""
        path = self.folder / relative_path(sha256)
        path.parent.mkdir(parents=True, exist_ok=True)
        os.replace(unfinished, path)
        hold(path)
        self._shrink()
        return path

    def remove(self, sha256: str) -> bool:
        """Remove a file; return whether there was one."""
        path = self.folder / relative_path(sha256)
        release(path)
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        return True

    def hashes(self) -> list[str]:
        """Return the hashes of the cached files."""
        return [path.name for path in (self.folder / LAYOUT).glob("??/*") if len(path.name) == 64]

    def sweep(self, older_than: float = ABANDONED_SECONDS) -> int:
        """Remove unfinished files that nobody wrote to for so many seconds; return how many."""
        count = 0
        for path in (self.folder / LAYOUT).glob(f"{UNFINISHED}*"):
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime >= older_than:
                    path.unlink()
                    count += 1
        return count

    def _shrink(self) -> None:
        """Remove the files that were not used for longest, until the rest fits."""
        entries = []
        for path in (self.folder / LAYOUT).glob("??/*"):
            with suppress(FileNotFoundError):
                status = path.stat()
                entries.append((status.st_mtime_ns, status.st_size, path))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self._limit:
                return
            if _remove_unused(path):
                total -= size


def _remove_unused(path: Path) -> bool:
    """Remove a file unless a process holds it; return whether it is gone."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True
