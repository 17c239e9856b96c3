"""Where the blobs of a home are: in its folder, or in the bucket that the setting `blobs` names.

The database notes it, because a process with other settings, on this or another host, would not
find what is there, and would store what nobody finds. Only `blobs copy` changes the note.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import sqlalchemy as sa

from thumbwheel.core.errors import ConfigError, InputError
from thumbwheel.db.ownership import blobs_location, set_blobs_location
from thumbwheel.db.workspace import Workspace
from thumbwheel.models import store
from thumbwheel.models.blob_cache import BlobCache
from thumbwheel.models.blob_settings import BlobsConfig, CacheConfig
from thumbwheel.models.blob_store import BlobStore
from thumbwheel.models.blob_stores.bucket import BucketStore
from thumbwheel.models.blob_stores.folder import FolderStore
from thumbwheel.models.bucket import Bucket, BucketAddress

FOLDER = "folder"
"""The location of blobs in the folder of the home, for people."""
GIGABYTE = 1e9


def store_of(ws: Workspace) -> BlobStore:
    """Return the store with the blobs of the home.

    Raises ConfigError if they are somewhere else than the settings say, InputError if the setting
    names no bucket.
    """
    configured = configured_location(ws)
    noted = noted_location(ws)
    if noted != configured:
        noted = ws.db.write(lambda connection: _claim(connection, configured))
        if noted != configured:
            raise _elsewhere(noted, configured)
    return open_store(ws, configured)


def bucket_of(ws: Workspace) -> Bucket | None:
    """Return the bucket with the blobs of the home, or None if they are in its folder. Raises as
    `store_of` does."""
    blob_store = store_of(ws)
    return blob_store.bucket if isinstance(blob_store, BucketStore) else None


def require_fit(ws: Workspace) -> None:
    """Try the bucket with the blobs of the home, if they are in one. Raises ConfigError if it does
    not keep what it has to, StorageError if it does not work."""
    bucket = bucket_of(ws)
    if bucket is not None:
        bucket.require_fit()


def forget_cached(ws: Workspace) -> int:
    """Remove the blobs from the cache of this host that were deleted by another host; return how
    many."""
    blob_store = store_of(ws)
    if not isinstance(blob_store, BucketStore):
        return 0
    with ws.db.read() as connection:
        recorded = store.recorded_artifacts(connection)
    return blob_store.forget_cached(recorded)


def open_store(ws: Workspace, location: str | None) -> BlobStore:
    """Return the store at a location, None for the folder of the home. Raises InputError for no
    address of a bucket, MissingExtra."""
    if location is None:
        return FolderStore(ws.home.blobs)
    settings = ws.settings(BlobsConfig, "blobs")
    limit = int(ws.settings(CacheConfig, "cache").blobs_gb * GIGABYTE)
    return open_bucket_store(location, settings.timeout_seconds, ws.home.cache / "blobs", limit)


def configured_location(ws: Workspace) -> str | None:
    """Return the address of the bucket in the settings, None for the folder of the home. Raises
    ConfigError."""
    location = ws.settings(BlobsConfig, "blobs").location
    if location is None:
        return None
    try:
        return str(BucketAddress.parse(location))
    except InputError as error:
        raise ConfigError(f"setting blobs = {location!r}", error.why, error.fix) from None


def noted_location(ws: Workspace) -> str | None:
    """Return where the blobs of the home are."""
    with ws.db.read() as connection:
        return blobs_location(connection)


@lru_cache(maxsize=16)
def open_bucket_store(location: str, timeout: float, cache: Path, limit: int) -> BucketStore:
    """Return the store of a bucket; a process opens each one once."""
    bucket = Bucket(BucketAddress.parse(location), timeout)
    return BucketStore(bucket, BlobCache(cache, limit))


def _claim(connection: sa.Connection, configured: str | None) -> str | None:
    """Note the configured location if the home has no blob yet; return the noted one."""
    noted = blobs_location(connection)
    if not store.has_artifacts(connection):
        set_blobs_location(connection, configured)
        return configured
    return noted


def _elsewhere(noted: str | None, configured: str | None) -> ConfigError:
    if configured is None:
        fix = f"Set blobs to {noted!r} (thumbwheel.yaml, or THUMBWHEEL_BLOBS)"
        what = "blobs in the folder of the home"
    else:
        fix = "Correct the setting"
        what = f"blobs in {configured}"
    return ConfigError(
        what,
        f"the blobs of this home are in {noted or 'its folder'}",
        f"{fix}, or move them: thumbwheel blobs copy {noted or FOLDER} {configured or FOLDER}",
    )
