"""The files of a spool: their names, and how they are taken from whoever writes them.

A file is renamed, which its writer notices before it appends again (`segment`), and then read under
its lock, which the writer holds while it appends for the last time. What a process took and did not
finish is taken again by the next one.
"""

from __future__ import annotations

import fcntl
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from thumbwheel.sdk.disk import is_file_at

SPOOL, TAKEN = "spool-", "draining-"
"""How the names of files begin that are written, and of those that were taken."""


def new_name() -> str:
    """Return a name that sorts by time and is unique among processes."""
    return f"{SPOOL}{time.time_ns() // 1_000_000:013}-{os.getpid()}-{uuid.uuid4().hex[:8]}.jsonl"


def take_files(folder: Path) -> list[Path]:
    """Take all files from their writers, and return the files to drain, the oldest first."""
    for path in _files(folder, SPOOL):
        with suppress(FileNotFoundError):  # another process was faster
            path.rename(folder / path.name.replace(SPOOL, TAKEN, 1))
    return _files(folder, TAKEN)


def oldest_age(folder: Path) -> float:
    """Return the age in seconds of the oldest line in `folder`; 0 if there is none."""
    files = _files(folder, SPOOL, TAKEN)
    return max((time.time() - _written_at(path) for path in files), default=0.0)


def waiting_bytes(folder: Path) -> int:
    """Return the size in bytes of the files in `folder` that are not drained."""
    size = 0
    for path in _files(folder, SPOOL, TAKEN):
        with suppress(FileNotFoundError):  # drained in between
            size += path.stat().st_size
    return size


@contextmanager
def locked(path: Path) -> Iterator[BinaryIO | None]:
    """Open and lock a taken file; yield None if another process holds it, or it is gone."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        yield None
        return
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        yield file if is_file_at(path, file.fileno()) else None


def _files(folder: Path, *beginnings: str) -> list[Path]:
    """Return the files whose names have these beginnings, the oldest first."""
    # by their names alone: a server looks ten times a second, mostly at an empty folder
    try:
        names = os.listdir(folder)  # noqa: PTH208
    except FileNotFoundError:
        return []
    spooled = [name for name in names if name.startswith(beginnings) and name.endswith(".jsonl")]
    return [folder / name for name in sorted(spooled)]


def _written_at(path: Path) -> float:
    """Return when the first line of a file was written, in seconds since the epoch, by its name."""
    milliseconds = path.name.split("-")[1]
    return int(milliseconds) / 1000 if milliseconds.isdigit() else time.time()
