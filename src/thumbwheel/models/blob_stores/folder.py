"""Blobs in a folder: `blobs/sha256/ab/<hash>` of the home.

A blob is written to a temporary file in the same folder, synced and renamed, and the folder is
synced too. A crash leaves at most a temporary file. Every read verifies the hash.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from thumbwheel.core import ids
from thumbwheel.core.errors import StorageError
from thumbwheel.models.blob_store import (
    LAYOUT,
    UNFINISHED,
    damaged_blob,
    missing_blob,
    relative_path,
    unwritable_blob,
    write_unfinished,
)
from thumbwheel.sdk.disk import sync


class FolderStore:
    """The blobs under one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def name(self) -> str:
        return f"folder {str(self._folder)!r}"

    @property
    def files(self) -> Path:
        return self._folder

    def put(self, stream: BinaryIO, source: str) -> str:
        temporary, sha256 = write_unfinished(self._folder / LAYOUT, stream, source)
        path = self._folder / relative_path(sha256)
        try:
            path.parent.mkdir(exist_ok=True)
            os.replace(temporary, path)
            sync(path.parent)
            sync(self._folder / LAYOUT)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise unwritable_blob(source, error) from error
        return sha256

    def path(self, sha256: str) -> Path:
        path = self._folder / relative_path(sha256)
        try:
            actual = ids.file_hash(path)
        except FileNotFoundError:
            raise missing_blob(sha256) from None
        except OSError as error:
            raise StorageError(
                f"artifact {sha256!r}",
                f"it cannot be read: {error.strerror or error}",
                "Check the disk and the rights of the home",
            ) from error
        if actual != sha256:
            fix = f"Delete {str(path)!r} and make it again, or restore it from a backup"
            raise damaged_blob(sha256, actual, "on disk", fix)
        return path

    def remove(self, sha256: str) -> bool:
        path = self._folder / relative_path(sha256)
        if not path.exists():
            return False
        path.unlink()
        sync(path.parent)
        return True

    def sizes(self) -> dict[str, int]:
        paths = (self._folder / LAYOUT).glob("??/*")
        return {path.name: path.stat().st_size for path in paths if len(path.name) == 64}

    def sweep(self) -> int:
        leftovers = list((self._folder / LAYOUT).glob(f"{UNFINISHED}*"))
        for path in leftovers:
            path.unlink(missing_ok=True)
        return len(leftovers)
