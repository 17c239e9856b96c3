"""Content-addressed files of a home: put files and folders into its blob store, and take them out.

Where the blobs are is a matter of the store (`blob_store.py`): a folder of the home, or a bucket.
Every read verifies the hash.
"""

from __future__ import annotations

import io
import os
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path

from thumbwheel.core.errors import StorageError
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.blob_location import store_of
from thumbwheel.models.blob_store import BlobStore, unwritable_blob


class Artifacts:
    """The blobs of one store."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store

    @classmethod
    def of(cls, ws: Workspace) -> Artifacts:
        """Return the artifacts of a home. Raises ConfigError if its blobs are somewhere else than
        the settings say."""
        return cls(store_of(ws))

    @property
    def files(self) -> Path:
        """The folder of this host in which `path` returns files."""
        return self._store.files

    def put(self, source: Path) -> str:
        """Store the content of `source` and return its sha256. Storing the same content again takes
        no more space and repairs a damaged blob."""
        with source.open("rb") as stream:
            return self._store.put(stream, str(source))

    def put_bytes(self, content: bytes) -> str:
        """Store `content` and return its sha256."""
        return self._store.put(io.BytesIO(content), f"{len(content)} bytes")

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
        return self._store.path(sha256)

    def remove(self, sha256: str) -> bool:
        """Delete the blob; False if it did not exist. The caller must make sure that nothing refers
        to it any more."""
        return self._store.remove(sha256)

    def all(self) -> list[str]:
        """Return the hashes of all blobs."""
        return sorted(self._store.sizes())

    def sweep(self) -> int:
        """Delete the unfinished files of writers that were killed; return how many."""
        return self._store.sweep()

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
            raise unwritable_blob(str(destination), error) from error
