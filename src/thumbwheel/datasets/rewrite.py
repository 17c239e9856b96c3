"""Frozen datasets, after the fact: which of their rows stand on given sources, one row by its id,
and files without such rows.

Reads and writes the Parquet itself, a batch at a time and whatever the shape, so that a row that
stays keeps every byte of its values. Does not live here: building (`build`), the record in the
database (the erasure of the loop stage keeps it).
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
from thumbwheel.datasets.files import write_parquet
from thumbwheel.datasets.shapes import SHAPES
from thumbwheel.datasets.types import SPLITS, Dataset
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.artifacts import Artifacts

LISTS = ("feedback_ids", "trace_ids", "subject_ids")
SINGLE = ("case_id", "group")
"""Columns of one id; `group` is a session, where there is one."""
AT_ONCE = 1024
"""Rows that are decoded at once."""
BUILDING = "building-"
"""Start of the name of a folder in the home in which files are made."""


@dataclass(frozen=True)
class AffectedRows:
    """Rows of a dataset that stand on some of the wanted sources."""

    rows: dict[str, list[str]]
    """Split -> row ids; splits without any are left out."""
    lost: dict[str, int] = field(default_factory=dict)
    """Split -> rows of a file that is missing or damaged: any of them may stand on the sources."""

    @property
    def counts(self) -> dict[str, int]:
        """Split -> rows that stand on the sources, or may."""
        return {split: len(rows) for split, rows in self.rows.items()} | self.lost


@dataclass
class Rewritten:
    """New files of a dataset: those of the splits that had such rows, and what is left in all of
    them."""

    files: dict[str, str]
    sizes: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    origins: Counter[str] = field(default_factory=Counter)
    removed: dict[str, int] = field(default_factory=dict)
    gate_groups: set[str] = field(default_factory=set)


def affected_rows(ws: Workspace, dataset: Dataset, wanted: Collection[str]) -> AffectedRows:
    """The rows of `dataset` that name one of the ids `wanted` (feedback, traces, subjects, cases,
    sessions)."""
    sought, found = frozenset(wanted), AffectedRows({})
    for split in SPLITS:
        try:
            rows = [
                row["row_id"] for row in _ids(_path(ws, dataset, split)) if touches(row, sought)
            ]
        except StorageError:
            found.lost[split] = dataset.counts[split]
            continue
        if rows:
            found.rows[split] = rows
    return found


def touches(row: dict[str, Any], wanted: frozenset[str]) -> bool:
    """Whether a raw row stands on one of `wanted`."""
    if any(row.get(column) in wanted for column in SINGLE):
        return True
    return any(wanted.intersection(_listed(row[column])) for column in LISTS if row.get(column))


def _listed(value: Any) -> list[str]:
    """A list column; early files have it as JSON text."""
    return list(json.loads(value) if isinstance(value, str) else value)


def is_affected_file(path: Path, wanted: frozenset[str]) -> bool:
    """Whether a file is one of rows that stand on `wanted`; other files are not."""
    import pyarrow as pa

    try:
        return any(touches(row, wanted) for row in _ids(path))
    except pa.ArrowInvalid:
        return False


def find_row(ws: Workspace, dataset: Dataset, row_id: str) -> dict[str, Any] | None:
    """The row of `dataset` with this id, as plain values; None where it has none."""
    import pyarrow.parquet as pq

    for split in SPLITS:
        table = pq.read_table(_path(ws, dataset, split), filters=[("row_id", "=", row_id)])
        if table.num_rows:
            texts = {
                column.name
                for column in fields(SHAPES.get(dataset.shape).row)
                if column.type in ("str", "str | None")
            }
            row = table.slice(0, 1).to_pylist()[0].items()
            return {
                name: value if name in texts or not isinstance(value, str) else json.loads(value)
                for name, value in row
            }
    return None


def rewrite_without(ws: Workspace, dataset: Dataset, wanted: Collection[str]) -> Rewritten:
    """Store files of `dataset` without the rows that stand on `wanted`, and an empty one for each
    that cannot be read; the old ones stay, and the database is not told yet."""
    blobs, made, sought = (
        Artifacts(ws.home.blobs),
        Rewritten(dict(dataset.manifest["files"])),
        frozenset(wanted),
    )
    with tempfile.TemporaryDirectory(dir=ws.home.path, prefix=BUILDING) as folder:
        for split in SPLITS:
            target, lost = Path(folder) / f"{split}.parquet", False
            try:
                made.counts[split], made.removed[split] = _copy(
                    _path(ws, dataset, split), target, sought, made
                )
            except StorageError:
                lost, made.counts[split], made.removed[split] = True, 0, dataset.counts[split]
                write_parquet(target, SHAPES.get(dataset.shape).row, [])
            if made.removed[split] or lost:
                made.files[split] = blobs.put(target)
                made.sizes[made.files[split]] = target.stat().st_size
    return made


def _copy(source: Path, target: Path, wanted: frozenset[str], made: Rewritten) -> tuple[int, int]:
    """(rows that stay, rows that go)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    stay = go = 0
    with (
        pq.ParquetFile(source) as file,
        pq.ParquetWriter(target, file.schema_arrow, compression="zstd") as out,
    ):
        for batch in file.iter_batches(batch_size=AT_ONCE):
            rows = batch.to_pylist()
            kept = [not touches(row, wanted) for row in rows]
            made.origins.update(
                row["origin"] for row, stays in zip(rows, kept, strict=True) if stays
            )
            made.gate_groups |= {
                row["group"]
                for row, stays in zip(rows, kept, strict=True)
                if stays and row["split"] == "gate"
            }
            stay, go = stay + sum(kept), go + len(kept) - sum(kept)
            if any(kept):
                out.write_batch(batch.filter(pa.array(kept)))
    return stay, go


def _ids(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        columns = [name for name in ("row_id", *LISTS, *SINGLE) if name in file.schema_arrow.names]
        for batch in file.iter_batches(batch_size=AT_ONCE, columns=columns):
            yield from batch.to_pylist()


def _path(ws: Workspace, dataset: Dataset, split: str) -> Path:
    return Artifacts(ws.home.blobs).path(dataset.manifest["files"][split])
