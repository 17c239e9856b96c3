"""Erasure in frozen datasets: finds the rows that are based on given sources, and rewrites the
files without them. Also finds one row by its id.

Reads and writes Parquet directly, a batch at a time and for any shape, so that a row that stays
keeps every byte of its values. The database is updated by the erasure of the loop stage.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from thumbwheel.core.errors import StorageError
from thumbwheel.datasets.files import BUILDING, write_parquet
from thumbwheel.datasets.shapes import SHAPES
from thumbwheel.datasets.types import SPLITS, Dataset
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.artifacts import Artifacts

LISTS = ("feedback_ids", "trace_ids", "subject_ids")
SINGLE = ("case_id", "group")
"""Columns of one id; `group` is the session, if there is one."""
READ_BATCH = 1024
"""Rows that are decoded at once."""


@dataclass(frozen=True)
class AffectedRows:
    """Rows of a dataset that are based on some of the given sources."""

    rows: dict[str, list[str]]
    """Split -> row ids; splits without any are left out."""
    lost: dict[str, int] = field(default_factory=dict)
    """Split -> rows of a missing or damaged file, any of which may be based on the sources."""

    @property
    def counts(self) -> dict[str, int]:
        """Split -> rows that are based on the sources, or may be."""
        return {split: len(rows) for split, rows in self.rows.items()} | self.lost


@dataclass
class Rewritten:
    """The files of a dataset after rows were removed, with statistics of the rows left. `sizes` are
    those of the new files."""

    files: dict[str, str]
    sizes: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    origins: Counter[str] = field(default_factory=Counter)
    removed: dict[str, int] = field(default_factory=dict)
    gate_groups: set[str] = field(default_factory=set)


def affected_rows(ws: Workspace, dataset: Dataset, sources: Collection[str]) -> AffectedRows:
    """Return the rows of `dataset` that name one of the ids in `sources` (feedback, traces,
    subjects, cases, sessions)."""
    source_ids, affected = frozenset(sources), AffectedRows({})
    for split in SPLITS:
        try:
            rows = _id_columns(_path(ws, dataset, split))
        except StorageError:
            affected.lost[split] = dataset.counts[split]
            continue
        row_ids = [row["row_id"] for row in rows if is_affected(row, source_ids)]
        if row_ids:
            affected.rows[split] = row_ids
    return affected


def source_ids(ws: Workspace, dataset: Dataset) -> set[str]:
    """Return the ids (feedback, traces, subjects, cases, sessions) that the rows of `dataset` name.
    Raises StorageError for a file that is missing or damaged."""
    names: set[str] = set()
    for split in SPLITS:
        for row in _id_columns(_path(ws, dataset, split)):
            for column in LISTS:
                names.update(row.get(column) or ())
            names.update(row[column] for column in SINGLE if row.get(column))
    return names


def is_affected(row: dict[str, Any], sources: frozenset[str]) -> bool:
    """Return whether a raw row is based on one of `sources`."""
    if any(row.get(column) in sources for column in SINGLE):
        return True
    return any(sources.intersection(row[column]) for column in LISTS if row.get(column))


def is_affected_file(path: Path, sources: frozenset[str]) -> bool:
    """Return whether a file has rows that are based on `sources`; False for files that have no
    rows."""
    import pyarrow as pa

    try:
        return any(is_affected(row, sources) for row in _id_columns(path))
    except pa.ArrowInvalid:
        return False


def find_row(ws: Workspace, dataset: Dataset, row_id: str) -> dict[str, Any] | None:
    """Return the row of `dataset` with this id, as plain values; None if there is none."""
    import pyarrow.parquet as pq

    for split in SPLITS:
        table = pq.read_table(_path(ws, dataset, split), filters=[("row_id", "=", row_id)])
        if not table.num_rows:
            continue
        row = table.slice(0, 1).to_pylist()[0]
        columns = fields(SHAPES.get(dataset.shape).row)
        texts = {column.name for column in columns if column.type in ("str", "str | None")}
        for name, value in row.items():
            if isinstance(value, str) and name not in texts:
                row[name] = json.loads(value)
        return dict(row)
    return None


def rewrite_without(ws: Workspace, dataset: Dataset, sources: Collection[str]) -> Rewritten:
    """Store files of `dataset` without the rows that are based on `sources`, and an empty file for
    each that cannot be read. The old files stay, and the database is not changed yet."""
    blobs, source_ids = Artifacts.of(ws), frozenset(sources)
    rewritten = Rewritten(dict(dataset.manifest["files"]))
    with tempfile.TemporaryDirectory(dir=ws.home.path, prefix=BUILDING) as folder:
        for split in SPLITS:
            target = Path(folder) / f"{split}.parquet"
            is_changed = True
            try:
                _copy_without(_path(ws, dataset, split), target, split, source_ids, rewritten)
                is_changed = rewritten.removed[split] > 0
            except StorageError:
                rewritten.counts[split], rewritten.removed[split] = 0, dataset.counts[split]
                write_parquet(target, SHAPES.get(dataset.shape).row, [])
            if is_changed:
                sha256 = blobs.put(target)
                rewritten.files[split] = sha256
                rewritten.sizes[sha256] = target.stat().st_size
    return rewritten


def _copy_without(
    source: Path, target: Path, split: str, sources: frozenset[str], rewritten: Rewritten
) -> None:
    """Copy the rows of a file that are not based on `sources`, and count them in `rewritten`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kept_count = removed_count = 0
    with (
        pq.ParquetFile(source) as file,
        pq.ParquetWriter(target, file.schema_arrow, compression="zstd") as out,
    ):
        for batch in file.iter_batches(batch_size=READ_BATCH):
            rows = batch.to_pylist()
            mask = [not is_affected(row, sources) for row in rows]
            kept_rows = [row for row, keep in zip(rows, mask, strict=True) if keep]
            rewritten.origins.update(row["origin"] for row in kept_rows)
            rewritten.gate_groups.update(
                row["group"] for row in kept_rows if row["split"] == "gate"
            )
            kept_count += len(kept_rows)
            removed_count += len(rows) - len(kept_rows)
            if kept_rows:
                out.write_batch(batch.filter(pa.array(mask)))
    rewritten.counts[split], rewritten.removed[split] = kept_count, removed_count


def _id_columns(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        columns = [name for name in ("row_id", *LISTS, *SINGLE) if name in file.schema_arrow.names]
        for batch in file.iter_batches(batch_size=READ_BATCH, columns=columns):
            yield from batch.to_pylist()


def _path(ws: Workspace, dataset: Dataset, split: str) -> Path:
    return Artifacts.of(ws).path(dataset.manifest["files"][split])
