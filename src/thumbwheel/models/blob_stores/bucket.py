"""Blobs in a bucket: the objects `PREFIX/sha256/ab/<hash>`, and a cache of files on this host.

A blob is first a file of the cache, whose hash is its name, and then an object that is created only
where none exists. An object that is there already is compared: a damaged one is replaced.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from thumbwheel.models.blob_cache import BlobCache
from thumbwheel.models.blob_store import (
    LAYOUT,
    damaged_blob,
    missing_blob,
    relative_path,
    unwritable_blob,
    write_unfinished,
)
from thumbwheel.models.bucket import SINGLE, Bucket


class BucketStore:
    """The blobs of a bucket."""

    def __init__(self, bucket: Bucket, cache: BlobCache) -> None:
        self.bucket, self._cache = bucket, cache

    @property
    def name(self) -> str:
        return self.bucket.name

    @property
    def files(self) -> Path:
        return self._cache.folder

    def put(self, stream: BinaryIO, source: str) -> str:
        temporary, sha256 = write_unfinished(self._cache.folder / LAYOUT, stream, source)
        try:
            if not self.bucket.upload(_key(sha256), temporary):
                self._mend(sha256, temporary)
            self._cache.add(sha256, temporary)
        except OSError as error:
            raise unwritable_blob(source, error) from error
        finally:
            temporary.unlink(missing_ok=True)
        return sha256

    def path(self, sha256: str) -> Path:
        key = _key(sha256)
        fix = f"Delete the object {key!r} of {self.name} and make it again, or restore it"
        cached, actual = self._cache.verified(sha256)
        if actual is not None:
            again = "It was removed from the cache, and is fetched again by the next try"
            raise damaged_blob(sha256, actual, "in the cache of this host", again)
        if cached is not None:
            return cached
        temporary = self._cache.unfinished()
        try:
            actual = self.bucket.download(key, temporary)
            if actual is None:
                raise missing_blob(sha256)
            if actual != sha256:
                raise damaged_blob(sha256, actual, f"in {self.name}", fix)
            return self._cache.add(sha256, temporary)
        except OSError as error:
            raise unwritable_blob(sha256, error) from error
        finally:
            temporary.unlink(missing_ok=True)

    def remove(self, sha256: str) -> bool:
        self._cache.remove(sha256)
        return self.bucket.remove(_key(sha256)) > 0

    def sizes(self) -> dict[str, int]:
        sizes = {}
        for key, size in self.bucket.sizes(LAYOUT).items():
            name = key.rpartition("/")[2]
            if len(name) == 64:
                sizes[name] = size
        return sizes

    def sweep(self) -> int:
        return self._cache.sweep(older_than=0) + self.bucket.abandon_uploads()

    def forget_cached(self, used: set[str]) -> int:
        """Remove the cached files whose blobs are not used any more, as after an erasure on another
        host; return how many."""
        return sum(self._cache.remove(sha256) for sha256 in set(self._cache.hashes()) - used)

    def _mend(self, sha256: str, file: Path) -> None:
        """Replace the object of this hash if it is damaged. One that was sent in parts is compared
        by its size alone, which `Bucket.upload` did."""
        if file.stat().st_size > SINGLE:
            return
        copy = self._cache.unfinished()
        try:
            actual = self.bucket.download(_key(sha256), copy)
        finally:
            copy.unlink(missing_ok=True)
        if actual != sha256:
            self.bucket.replace(_key(sha256), file)


def _key(sha256: str) -> str:
    return relative_path(sha256).as_posix()
