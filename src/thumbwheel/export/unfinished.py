"""Folders in which exports are being written. Each has a note in the home, by which the next
command finds and removes what a killed export left.

The note holds the folder's path and is locked by the process that writes there. A note that nobody
holds belongs to a process that has ended, so its folder is removed; the folder of a running export
is never touched.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from thumbwheel.core.config import Home
from thumbwheel.core.locks import try_lock

NOTES = "unfinished"
"""Folder of the home with one file for each folder that is being written."""


@contextmanager
def scratch(home: Home, parent: Path, prefix: str, suffix: str = "") -> Iterator[Path]:
    """Create a new folder below `parent`, removed afterwards unless it was renamed. Raises OSError
    if it cannot be created."""
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
    """Remove the folders of exports that were killed, and return how many there were."""
    swept = 0
    for note in sorted((home.path / NOTES).glob("*")):
        try:
            handle = try_lock(note, create=False)
        except FileNotFoundError:
            continue  # its export has ended meanwhile
        if handle is None:
            continue
        try:
            swept += _remove(note)
        finally:
            os.close(handle)
    return swept


def _remove(note: Path) -> bool:
    """Remove the folder of a note that no process holds; return False if it was gone already."""
    folder = Path(os.fsdecode(note.read_bytes()))
    exists = folder.name == note.name and folder.is_dir()
    if exists:
        shutil.rmtree(folder, ignore_errors=True)
    note.unlink(missing_ok=True)
    return exists


@contextmanager
def _noted(home: Home, folder: Path) -> Iterator[None]:
    """Hold the note of `folder` in this process while the block runs."""
    note = home.path / NOTES / folder.name
    note.parent.mkdir(mode=0o700, exist_ok=True)
    while True:
        handle = try_lock(note)
        if handle is None:
            continue
        if note.exists():
            break
        os.close(handle)  # a sweep removed it before it was held
    try:
        os.write(handle, os.fsencode(folder))
        os.fsync(handle)
        yield
    finally:
        note.unlink(missing_ok=True)
        os.close(handle)
