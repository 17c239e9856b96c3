"""Moves the blobs of a home between its folder and a bucket, both ways.

Blobs that are at the target already are left alone, so a second call goes on where the first one
was stopped. The home uses the target once all of them are there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from thumbwheel.core import log
from thumbwheel.core.errors import Conflict, InputError
from thumbwheel.db.ownership import blobs_location, set_blobs_location
from thumbwheel.db.schema import run_checkpoints
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.blob_location import FOLDER, noted_location, open_store
from thumbwheel.models.blob_store import BlobStore
from thumbwheel.models.blob_stores.bucket import BucketStore
from thumbwheel.models.bucket import BucketAddress


@dataclass(frozen=True)
class MovedBlobs:
    """What was copied, or would be."""

    source: str
    target: str
    copied: int
    copied_bytes: int
    present: int
    """Blobs that were at the target already."""
    removed: int
    """Blobs that were deleted at the source."""
    setting: str | None
    """What `blobs` has to be set to from now on; None: nothing."""
    dry_run: bool = False

    def to_json(self) -> dict[str, Any]:
        return vars(self)


def move_blobs(
    ws: Workspace, source: str, target: str, *, remove: bool = False, dry_run: bool = False
) -> MovedBlobs:
    """Copy the blobs from one location to another ("folder", or s3://BUCKET/PREFIX), and use them
    there; with `remove` they are deleted at the source then.

    Raises InputError for no location, Conflict if the blobs of the home are not at the source,
    ConfigError if the target bucket is unfit, StorageError for a damaged blob.
    """
    source_location, target_location = _location(source), _location(target)
    if source_location == target_location:
        raise InputError(f"target {target!r}", "the blobs are there already", "Name another one")
    noted = noted_location(ws)
    if noted not in (source_location, target_location):
        raise Conflict(
            f"source {source!r}",
            f"the blobs of this home are in {noted or FOLDER}",
            f"Run: thumbwheel blobs copy {noted or FOLDER} {target}",
        )
    source_store, target_store = open_store(ws, source_location), open_store(ws, target_location)
    if isinstance(target_store, BucketStore) and not dry_run:
        target_store.bucket.require_fit()

    sizes, present = source_store.sizes(), target_store.sizes()
    wanted = {sha256: size for sha256, size in sizes.items() if present.get(sha256) != size}
    moved = MovedBlobs(
        source=source_store.name,
        target=target_store.name,
        copied=len(wanted),
        copied_bytes=sum(wanted.values()),
        present=len(sizes) - len(wanted),
        removed=len(sizes) if remove else 0,
        setting=target_location,
        dry_run=dry_run,
    )
    if dry_run:
        return moved
    _copy(source_store, target_store, wanted)

    def use_target(connection: sa.Connection) -> None:
        if blobs_location(connection) not in (source_location, target_location):
            raise Conflict("the blobs of this home", "they were moved meanwhile", "Run it again")
        # a process that was writing meanwhile may have stored another one at the source
        if set(source_store.sizes()) - set(sizes):
            raise Conflict(
                f"source {source!r}",
                "somebody stored blobs there meanwhile",
                "Stop `thumbwheel serve` on every host, and run it again",
            )
        set_blobs_location(connection, target_location)
        # checkpoints do not move: a run goes on in the folder of its host
        connection.execute(run_checkpoints.delete())

    ws.db.write(use_target)
    if remove:
        _remove(source_store, target_store)
        if isinstance(source_store, BucketStore):
            source_store.bucket.remove("runs")
    return moved


def _location(text: str) -> str | None:
    """Return the address of a bucket, None for the folder of the home. Raises InputError."""
    if text == FOLDER:
        return None
    try:
        return str(BucketAddress.parse(text))
    except InputError as error:
        raise InputError(error.what, error.why, f"{error.fix}, or {FOLDER}") from None


def _copy(source: BlobStore, target: BlobStore, sizes: dict[str, int]) -> None:
    with log.progress("copying blobs", sum(sizes.values()), "bytes") as advance:
        for sha256, size in sorted(sizes.items()):
            with source.path(sha256).open("rb") as stream:
                target.put(stream, f"blob {sha256}")
            advance(size, sha256[:12])


def _remove(source: BlobStore, target: BlobStore) -> None:
    """Delete the blobs of the source that are at the target."""
    sizes = source.sizes()
    present = target.sizes()
    with log.progress("deleting blobs", len(sizes), "blobs") as advance:
        for sha256 in sorted(sizes):
            if sha256 in present:
                source.remove(sha256)
            advance(1)
