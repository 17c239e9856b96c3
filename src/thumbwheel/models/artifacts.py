"""Content-addressed files: `blobs/sha256/ab/<hash>`. Names are kept in the database only.

A blob is written to a temporary file in the same folder, synced and renamed, and the folder is
synced too. A crash leaves at most a temporary file. Every read verifies the hash.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from thumbwheel.core import ids
from thumbwheel.core.errors import StorageError
from thumbwheel.core.files import unwritable
from thumbwheel.sdk.disk import sync

CHUNK = 1 << 20


class Artifacts:
    """The blobs under one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "sha256"

    def put(self, source: Path) -> str:
        """Store the content of `source` and return its sha256. Storing the same content again takes
        no more space and repairs a damaged blob."""
        with source.open("rb") as stream:
            return self._store(stream, str(source))

    def put_bytes(self, content: bytes) -> str:
        """Store `content` and return its sha256."""
        return self._store(io.BytesIO(content), f"{len(content)} bytes")

    def put_folder(self, folder: Path) -> dict[str, str]:
        """Store every file below `folder`: relative name -> sha256."""
        return {
            path.relative_to(folder).as_posix(): self.put(path)
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }

    def path(self, sha256: str) -> Path:
        """Return the verified file with this hash. Raises StorageError if it is missing or
        damaged."""
        path = self._blob_path(sha256)
        try:
            actual_sha256 = ids.file_hash(path)
        except FileNotFoundError:
            raise StorageError(
                f"artifact {sha256!r}",
                "it is not in this home",
                "Restore the home's blobs folder from a backup, or make it again",
            ) from None
        except OSError as error:
            raise StorageError(
                f"artifact {sha256!r}",
                f"it cannot be read: {error.strerror or error}",
                "Check the disk and the rights of the home",
            ) from error
        if actual_sha256 != sha256:
            raise StorageError(
                f"artifact {sha256!r}",
                f"the file on disk has the hash {actual_sha256}: it was damaged or changed",
                f"Delete {str(path)!r} and make it again, or restore it from a backup",
            )
        return path

    def remove(self, sha256: str) -> bool:
        """Delete the blob; False if it did not exist. The caller must make sure that nothing refers
        to it any more."""
        path = self._blob_path(sha256)
        if not path.exists():
            return False
        path.unlink()
        sync(path.parent)
        return True

    def all(self) -> list[str]:
        """Return the hashes of all blobs."""
        return sorted(path.name for path in self._folder.glob("??/*") if len(path.name) == 64)

    def sweep(self) -> int:
        """Delete the unfinished files of writers that were killed; return how many."""
        leftovers = list(self._folder.glob("incoming-*"))
        for path in leftovers:
            path.unlink(missing_ok=True)
        return len(leftovers)

    def checkout(self, files: Mapping[str, str], target: Path) -> Path:
        """Write `files` (relative name -> sha256) below `target` and return it; every file is
        verified and appears whole or not at all."""
        root = target.resolve()
        for name, sha256 in files.items():
            destination = (target / name).resolve()
            if destination == root or not destination.is_relative_to(root):
                raise StorageError(
                    f"artifact name {name!r}",
                    "it leads outside its folder",
                    "Do not use this version; train it again",
                )
            self._copy_out(sha256, destination)
        return target

    def _copy_out(self, sha256: str, destination: Path) -> None:
        source = self.path(sha256)
        temporary = destination.with_name(
            f".{destination.name}.{os.getpid()}-{threading.get_ident()}"
        )
        try:
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, temporary)
            os.replace(temporary, destination)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise _unwritable(str(destination), error) from error

    def _blob_path(self, sha256: str) -> Path:
        if len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):
            raise StorageError(
                f"artifact {sha256!r}",
                "it is not a hexadecimal sha256",
                "Name an artifact by its hash",
            )
        return self._folder / sha256[:2] / sha256

    def _store(self, stream: BinaryIO, what: str) -> str:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self._folder, prefix="incoming-")
        except OSError as error:
            raise _unwritable(what, error) from error
        try:
            sha256 = _copy(stream, handle)
            path = self._blob_path(sha256)
            path.parent.mkdir(exist_ok=True)
            os.replace(temporary, path)
            sync(path.parent)
            sync(self._folder)
            return sha256
        except OSError as error:
            Path(temporary).unlink(missing_ok=True)
            raise _unwritable(what, error) from error


def _copy(stream: BinaryIO, handle: int) -> str:
    digest = hashlib.sha256()
    with os.fdopen(handle, "wb") as out:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
            out.write(chunk)
        out.flush()
        os.fsync(out.fileno())
    return digest.hexdigest()


def _unwritable(what: str, error: OSError) -> StorageError:
    fix = "Free space or make the home writable, then try again"
    return unwritable(f"artifact from {what!r}", error, fix)
