"""Folders in which exports are being written: each has a note in the home, and the next command
takes away what a kill left.

The note holds the folder's path and is locked by the process that writes there. A note that nobody
holds is that of a process which has ended, so its folder goes; the folder of an export that runs is
never touched. Not here: what is written (package.py).
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from thumbwheel.core.config import Home

NOTES = "unfinished"
"""Of the home: one file for each folder that is being written."""


@contextmanager
def scratch(home: Home, parent: Path, prefix: str, suffix: str = "") -> Iterator[Path]:
    """A new folder below `parent`, gone afterwards unless it was renamed; raises OSError where it
    cannot be made."""
    sweep(home)
    parent.mkdir(parents=True, exist_ok=True)
    folder = parent / f"{prefix}{secrets.token_hex(4)}{suffix}"
    with _noted(home, folder):
        folder.mkdir(mode=0o700)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def sweep(home: Home) -> int:
    """Take away the folders of exports that were killed; how many there were."""
    swept = 0
    for note in sorted((home.path / NOTES).glob("*")):
        try:
            handle = os.open(note, os.O_RDWR)
        except FileNotFoundError:  # its export has ended meanwhile
            continue
        try:
            if _take(handle):
                swept += _remove(note)
        finally:
            os.close(handle)
    return swept


def _remove(note: Path) -> bool:
    """Take away the folder of a note that nobody holds; False where it was gone already."""
    folder = Path(os.fsdecode(note.read_bytes()))
    there = folder.name == note.name and folder.is_dir()
    if there:
        shutil.rmtree(folder, ignore_errors=True)
    note.unlink(missing_ok=True)
    return there


@contextmanager
def _noted(home: Home, folder: Path) -> Iterator[None]:
    """Inside, the note of `folder` is there and held by this process."""
    note = home.path / NOTES / folder.name
    note.parent.mkdir(mode=0o700, exist_ok=True)
    while True:
        handle = os.open(note, os.O_RDWR | os.O_CREAT, 0o600)
        if _take(handle) and note.exists():
            break
        # a sweep met it before it was held
        os.close(handle)
    try:
        os.write(handle, os.fsencode(folder))
        os.fsync(handle)
        yield
    finally:
        note.unlink(missing_ok=True)
        os.close(handle)


def _take(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
