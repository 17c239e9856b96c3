"""The contract of a blob store: content-addressed files, whose names are in the database only.

The variants are in `blob_stores`: a folder, and a bucket of an object storage. `artifacts.py` puts
files and folders into a store, and takes them out.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import BinaryIO, Protocol

from thumbwheel.core.errors import StorageError
from thumbwheel.core.files import unwritable

CHUNK = 1 << 20
UNFINISHED = "incoming-"
"""Beginning of the names of files that are being written."""
LAYOUT = "sha256"
"""The folder with the blobs, and the first part of their keys: `sha256/ab/<hash>`."""


class UnsoundBlob(StorageError):
    """A blob is missing or damaged; other errors of storage say that it cannot be read now."""


class BlobStore(Protocol):
    """Blobs by their SHA-256; `name` is where they are, for people."""

    @property
    def name(self) -> str:
        """Where the blobs are, for people: a folder, or a bucket."""

    @property
    def files(self) -> Path:
        """The folder of this host in which `path` returns files, as `sha256/ab/<hash>`."""

    def put(self, stream: BinaryIO, source: str) -> str:
        """Store the content and return its sha256; when this returns, it is stored for good.

        The same content again takes no more space, and repairs a damaged blob. `source` says in
        errors where it comes from. Raises StorageError, with nothing stored.
        """

    def path(self, sha256: str) -> Path:
        """Return the verified file with this hash. Raises UnsoundBlob if the blob is missing or
        damaged, StorageError if it cannot be read."""

    def remove(self, sha256: str) -> bool:
        """Delete the blob, with every version of it; False if it did not exist."""

    def sizes(self) -> dict[str, int]:
        """Return hash -> bytes of all blobs."""

    def sweep(self) -> int:
        """Delete what writers that were killed left unfinished; return how many files."""


def relative_path(sha256: str) -> Path:
    """Return where a blob lies below the folder of a store. Raises StorageError for what is no
    hash."""
    if len(sha256) != 64 or set(sha256) - set("0123456789abcdef"):
        raise StorageError(
            f"artifact {sha256!r}",
            "it is not a hexadecimal sha256",
            "Name an artifact by its hash",
        )
    return Path(LAYOUT, sha256[:2], sha256)


def write_unfinished(folder: Path, stream: BinaryIO, source: str) -> tuple[Path, str]:
    """Write the content into a temporary file of `folder`, synced; return the file and the hash.
    Raises StorageError, and then leaves no file."""
    with_hash = hashlib.sha256()
    temporary: Path | None = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder, prefix=UNFINISHED)
        temporary = Path(name)
        with os.fdopen(handle, "wb") as out:
            while chunk := stream.read(CHUNK):
                with_hash.update(chunk)
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
    except BaseException as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise unwritable_blob(source, error) from error
        raise
    return temporary, with_hash.hexdigest()


def unwritable_blob(source: str, error: OSError) -> StorageError:
    """Return the error for a blob that could not be written."""
    fix = "Free space or make the home writable, then try again"
    return unwritable(f"artifact from {source!r}", error, fix)


def missing_blob(sha256: str) -> UnsoundBlob:
    """Return the error for a blob that is in no store of the home."""
    return UnsoundBlob(
        f"artifact {sha256!r}",
        "it is not in this home",
        "Restore the home's blobs folder from a backup, or make it again. If another host of this "
        "home has it, run the command there, or keep blobs in a bucket",
    )


def damaged_blob(sha256: str, actual: str, where: str, fix: str) -> UnsoundBlob:
    """Return the error for a blob whose content has another hash."""
    why = f"the file {where} has the hash {actual}: it was damaged or changed"
    return UnsoundBlob(f"artifact {sha256!r}", why, fix)
