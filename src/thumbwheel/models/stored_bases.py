"""Bases whose files are blobs, so that every host of a home has them: only where the blobs are in a
bucket."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from thumbwheel.core import log
from thumbwheel.core.errors import ModelError, NotFound
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import ROWS
from thumbwheel.models import store
from thumbwheel.models.artifacts import Artifacts
from thumbwheel.models.base import FILES, Base, locate
from thumbwheel.models.blob_location import bucket_of

KIND = "base"
"""The kind of the blobs."""


def keep_base(ws: Workspace, base: Base) -> None:
    """Store the files of a base, if blobs are in a bucket and it is not there yet."""
    if bucket_of(ws) is None:
        return
    with ws.db.read() as connection:
        if store.base_files(connection, base.fingerprint) is not None:
            return
    blobs = Artifacts.of(ws)
    paths = sorted({path for pattern in FILES for path in base.folder.glob(pattern)})
    files, sizes = {}, {}
    with log.progress(f"storing base {base.name}", len(paths), "files") as advance:
        for path in paths:
            if path.is_file():
                files[path.name] = blobs.put(path)
                sizes[files[path.name]] = path.stat().st_size
            advance(1, path.name)

    def work(connection: sa.Connection) -> None:
        store.record_artifacts(connection, KIND, sizes)
        store.add_base(connection, base.fingerprint, base.name, files)

    ws.db.write(work, ROWS)


def locate_stored(ws: Workspace, name: str, fingerprint: str | None) -> tuple[str, Path]:
    """Return (name, folder) of a base on this host: where its name leads, else a checkout of its
    blobs. Raises ModelError or NotFound if it is in neither place."""
    try:
        return locate(name)
    except (ModelError, NotFound):
        folder = stored_base(ws, fingerprint)
        if folder is None:
            raise
        return name, folder


def stored_base(ws: Workspace, fingerprint: str | None) -> Path | None:
    """Return a checkout of the base with this fingerprint in the cache, None if its files are not
    stored."""
    if fingerprint is None:
        return None
    with ws.db.read() as connection:
        files = store.base_files(connection, fingerprint)
    if files is None:
        return None
    target = ws.home.cache / "bases" / fingerprint
    with log.progress("fetching the base", None):
        return Artifacts.of(ws).checkout(files, target)
