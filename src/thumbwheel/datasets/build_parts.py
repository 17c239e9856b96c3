"""Collects the rows of a dataset with the help of other hosts: each range of prompts is a part of
the job, once for its claims and once for its rows (jobs/parts.py).

All hosts read the state of the database that the worker of the job sees. What a part has found goes
through the bucket of the home, below parts/JOB/FENCE/, and is removed at the end. It counts once
its name and hash are in the row of the part; a worker that has lost its part uploads nothing. Rows
and id of the dataset are those of a build by one process.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from thumbwheel.core import ids
from thumbwheel.core.errors import Fenced, StorageError
from thumbwheel.core.files import unwritable
from thumbwheel.datasets import store
from thumbwheel.datasets.collect import (
    ASSIGNED,
    CLAIMS,
    PROMPTS,
    CollectedRows,
    CollectionJob,
    Ranges,
    collect,
    is_divisible,
    local_ranges,
)
from thumbwheel.datasets.files import BUILDING, PARTS
from thumbwheel.datasets.ledger_rewards import TraceReward
from thumbwheel.datasets.split_assignment import join_arrays, load_arrays, save_arrays
from thumbwheel.datasets.types import DatasetConfig
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import ROWS
from thumbwheel.jobs import current
from thumbwheel.jobs.part_types import PartHandler, PartOutcome
from thumbwheel.jobs.parts import abandon, has_helpers, share
from thumbwheel.jobs.types import Job
from thumbwheel.models.blob_location import bucket_of
from thumbwheel.models.bucket import Bucket
from thumbwheel.models.types import Agent
from thumbwheel.rewards.feedback_queries import prompt_ranges
from thumbwheel.rewards.label import dominant_rater
from thumbwheel.rewards.types import PromptRange

if TYPE_CHECKING:
    import numpy as np

PART_KIND = "prompts"
TRACES_A_PART = 25_000
"""About how many traces a part has; a smaller agent is not shared."""
MOST_PARTS = 32


def collect_rows(
    ws: Workspace,
    agent: Agent,
    shape: str,
    config: DatasetConfig,
    as_of: datetime | None,
    folder: Path,
    values: Mapping[str, TraceReward] | None,
) -> CollectedRows:
    """Spill the rows of `shape` below `folder`; `values`, trace id -> reward, are the ledger's
    rewards if `config` asks for them.

    Raises StorageError if the disk is full or a process dies.
    """
    until = as_of.isoformat() if as_of else None
    job = CollectionJob(agent.slug, shape, config.model_dump(mode="json"), until)
    with ws.db.read() as connection:
        collected = CollectedRows(
            watermark=store.watermark(connection, agent.id, as_of),
            loudest=dominant_rater(connection, agent, as_of, config.scope()),
        )
        shared = _shared_ranges(ws, connection, job) if is_divisible(job, values) else []
        bucket = bucket_of(ws) if len(shared) > 1 else None
        opened: AbstractContextManager[Ranges]
        if bucket is None:
            opened = local_ranges(ws.db, connection, job, folder, values=values)
        else:
            opened = _SharedRanges.of(ws, bucket, connection, job, folder, shared)
        with opened as ranges:
            collect(ranges, config, folder, collected)
    return collected


def _shared_ranges(
    ws: Workspace, connection: sa.Connection, job: CollectionJob
) -> list[PromptRange]:
    """Return the ranges of the parts; none if no other host helps."""
    if not has_helpers(ws):
        return []
    n_traces = store.trace_count(connection, job.learner.id)
    n_ranges = min(MOST_PARTS, n_traces // TRACES_A_PART)
    return prompt_ranges(connection, job.learner.id, n_ranges)


class _SharedRanges:
    """Ranges that are parts of the job of this process."""

    def __init__(
        self,
        ws: Workspace,
        bucket: Bucket,
        connection: sa.Connection,
        jobs: list[CollectionJob],
        folder: Path,
        prefix: str,
    ) -> None:
        self._ws, self._bucket, self._connection = ws, bucket, connection
        self._jobs, self._folder = jobs, folder
        self._common: dict[str, Any] = {"prefix": prefix, "snapshot": ws.db.snapshot(connection)}
        self._prompts: list[dict[str, str]] = []

    @classmethod
    @contextmanager
    def of(
        cls,
        ws: Workspace,
        bucket: Bucket,
        connection: sa.Connection,
        job: CollectionJob,
        folder: Path,
        ranges: list[PromptRange],
    ) -> Iterator[_SharedRanges]:
        """Yield the ranges of a collection; at the end nothing of them is left in the bucket."""
        doing = current.job()
        assert doing is not None  # noqa: S101 - only a job has helpers
        jobs = [job.of(prompts) for prompts in ranges]
        prefix = _prefix(doing, doing.fence)
        try:
            yield cls(ws, bucket, connection, jobs, folder, prefix)
        finally:
            # First the rows: a helper that is uploading finds its part lost, and removes its file.
            abandon(ws, doing)
            # Also what an attempt left whose worker died.
            for fence in range(1, doing.fence + 1):
                bucket.remove(_prefix(doing, fence))

    def claims(self) -> list[dict[str, np.ndarray]]:
        def spec_of(index: int) -> dict[str, Any]:
            return {**self._common, "job": asdict(self._jobs[index])}

        def do(index: int) -> PartOutcome:
            folder = self._new_folder(index, "claims")
            return self._part(folder).claims(self._connection, self._jobs[index])

        results = self._share(spec_of, do)
        self._prompts = [result["prompts"] for result in results]
        claims = []
        for index, result in enumerate(results):
            file = self._folder / f"{index}-{CLAIMS}"
            _fetch(self._bucket, result["claims"], file)
            claims.append(load_arrays(file))
        return claims

    def rows(self, assigned: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
        stored = _put(self._bucket, self._common["prefix"], assigned)

        def spec_of(index: int) -> dict[str, Any]:
            step = {"prompts": self._prompts[index], "assigned": stored}
            return {**self._common, "job": asdict(self._jobs[index]), **step}

        def do(index: int) -> PartOutcome:
            folder = self._new_folder(index, "rows")
            prompts = self._prompts[index]
            counters = self._part(folder).spill(
                self._connection, self._jobs[index], prompts, assigned
            )
            return PartOutcome({"counters": counters, "rows": None})

        for index, result in enumerate(self._share(spec_of, do)):
            if result["rows"] is None:
                folder = self._folder / f"{index}-rows"
            else:
                folder = self._new_folder(index, "rows-of-host")
                _unpack(self._bucket, result["rows"], folder)
            yield folder, result["counters"]

    def _share(self, spec_of: Any, do: Any) -> list[Any]:
        return share(self._ws, PART_KIND, len(self._jobs), spec_of, do, lambda index: None)

    def _part(self, folder: Path) -> _Part:
        return _Part(self._ws, self._bucket, folder, **self._common)

    def _new_folder(self, index: int, name: str) -> Path:
        folder = self._folder / f"{index}-{name}"
        folder.mkdir()
        return folder


class _Part:
    """One part, on whichever host does it; `folder` is for its files."""

    def __init__(
        self, ws: Workspace, bucket: Bucket, folder: Path, prefix: str, snapshot: str
    ) -> None:
        self._ws, self._bucket, self._folder = ws, bucket, folder
        self._prefix, self._snapshot = prefix, snapshot

    def claims(self, connection: sa.Connection, job: CollectionJob) -> PartOutcome:
        """Store the claims and the prompts of a range."""
        claims, prompts = self._folder / CLAIMS, self._folder / PROMPTS
        with local_ranges(
            self._ws.db, connection, job, self._folder, snapshot=self._snapshot
        ) as ranges:
            save_arrays(join_arrays(ranges.claims()), claims)
            save_arrays(join_arrays(ranges.prompts()), prompts)
        return PartOutcome({"claims": self._store(claims), "prompts": self._store(prompts)})

    def spill(
        self,
        connection: sa.Connection,
        job: CollectionJob,
        prompts: Mapping[str, str],
        assigned: Path,
    ) -> dict[str, dict[str, int]]:
        """Spill the rows of a range into files of the folder; return the counters."""
        file = self._folder / PROMPTS
        _fetch(self._bucket, prompts, file)
        whole = CollectedRows()
        with local_ranges(
            self._ws.db, connection, job, self._folder, snapshot=self._snapshot, prompts=file
        ) as ranges:
            for folder, counters in ranges.rows(assigned):
                whole.add(folder, counters)
        return {
            "drops": dict(whole.drops),
            "notes": dict(whole.notes),
            "prompts": dict(whole.prompts),
        }

    def rows(
        self,
        connection: sa.Connection,
        job: CollectionJob,
        prompts: Mapping[str, str],
        stored: Mapping[str, str],
    ) -> PartOutcome:
        """Store the rows of a range."""
        assigned, packed = self._folder / ASSIGNED, self._folder / "rows.zip"
        _fetch(self._bucket, stored, assigned)
        counters = self.spill(connection, job, prompts, assigned)
        with zipfile.ZipFile(packed, "w") as archive:
            for path in sorted(self._folder.rglob("*.arrow")):
                archive.write(path, path.relative_to(self._folder))
        return PartOutcome({"counters": counters, "rows": self._store(packed)})

    def _store(self, file: Path) -> dict[str, str]:
        self._require_part()
        stored = _put(self._bucket, self._prefix, file)
        try:
            self._require_part()
        except Fenced:
            # it was lost during the upload, and the job may have ended: nobody else removes this
            self._bucket.remove(stored["key"])
            raise
        return stored

    def _require_part(self) -> None:
        """Raise Fenced if this worker no longer has the part."""
        self._ws.db.write(lambda connection: None, ROWS)


@contextmanager
def collecting(ws: Workspace) -> Iterator[PartHandler]:
    """Yield what collects the prompts of a part, on a host that helps."""

    def do(spec: dict[str, Any]) -> PartOutcome:
        bucket, job = bucket_of(ws), CollectionJob(**spec["job"])
        if bucket is None:
            raise StorageError(
                f"a part of a dataset of {job.agent!r}",
                "the blobs of this home are in no bucket any more",
                "Nothing to do: the host of the job builds the dataset alone",
            )
        with (
            tempfile.TemporaryDirectory(dir=ws.home.path, prefix=BUILDING) as name,
            ws.db.read(spec["snapshot"]) as connection,
        ):
            part = _Part(ws, bucket, Path(name), spec["prefix"], spec["snapshot"])
            if "assigned" in spec:
                return part.rows(connection, job, spec["prompts"], spec["assigned"])
            return part.claims(connection, job)

    yield do


def _prefix(job: Job, fence: int) -> str:
    return f"{PARTS}/{job.id}/{fence}"


def _put(bucket: Bucket, prefix: str, file: Path) -> dict[str, str]:
    """Store a file under a new key; return key and hash."""
    key = f"{prefix}/{ids.new('prt')}-{file.name}"
    bucket.upload(key, file)
    return {"key": key, "sha256": ids.file_hash(file)}


def _fetch(bucket: Bucket, stored: Mapping[str, str], file: Path) -> None:
    """Write a stored file to a new path. Raises StorageError if it is missing or damaged."""
    actual = bucket.download(stored["key"], file)
    if actual != stored["sha256"]:
        raise StorageError(
            f"part {stored['key']!r} of a dataset",
            "it is missing in the bucket" if actual is None else "it has changed in the bucket",
            "Build the dataset again. An erasure removes what builds have in the bucket",
        )


def _unpack(bucket: Bucket, stored: Mapping[str, str], folder: Path) -> None:
    """Write the stored rows of a range below a folder. Raises StorageError."""
    packed = folder / "rows.zip"
    _fetch(bucket, stored, packed)
    try:
        with zipfile.ZipFile(packed) as archive:
            archive.extractall(folder)
    except OSError as error:
        raise unwritable(f"folder {str(folder)!r}", error) from error
    packed.unlink()
