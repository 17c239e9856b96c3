"""SQL that knows which files of the home a row refers to."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from thumbwheel.db.schema import (
    artifacts,
    datasets,
    model_versions,
    reward_models,
)
from thumbwheel.db.stored_rows import delete_rows
from thumbwheel.models.types import VersionState


def files_in_use(connection: sa.Connection) -> set[str]:
    """Return the hashes of all files that a dataset, a reward model or a version that is not
    retired refers to."""
    in_use: set[str] = set()
    for manifest in connection.execute(sa.select(datasets.c.manifest)).scalars():
        in_use |= set(manifest["files"].values())
    # of a retired version the names of its files are all that is left
    adapters = sa.select(model_versions.c.adapter).where(
        model_versions.c.state != VersionState.RETIRED
    )
    for query in (adapters, sa.select(reward_models.c.files)):
        for files in connection.execute(query).scalars():
            in_use |= set((files or {}).values())
    return in_use


def artifact_kinds(connection: sa.Connection) -> dict[str, str]:
    """Return hash -> kind of every recorded blob."""
    return dict(connection.execute(sa.select(artifacts.c.sha256, artifacts.c.kind)).tuples().all())


def forget_artifacts(connection: sa.Connection, gone: Iterable[str]) -> None:
    """Delete the records of blobs that no longer exist."""
    delete_rows(connection, artifacts, artifacts.c.sha256, gone)
