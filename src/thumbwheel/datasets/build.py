"""Frozen datasets: build one from the evidence, find it again, read its rows.

A dataset is named by its content: the same evidence under the same settings gives the same id, whatever order it arrived in.
Each split is a Parquet file of its own, so that training never opens the gate's; nested values are JSON text in it.
Does not live here: what becomes a row (`gather`, `shapes/`), other formats (`export`).
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from thumbwheel.core import ids
from thumbwheel.core.errors import DataError, InputError, NotFound, StorageError
from thumbwheel.core.plugins import nearest
from thumbwheel.datasets import store
from thumbwheel.datasets.gather import gather
from thumbwheel.datasets.health import Facts
from thumbwheel.datasets.shape import Shape
from thumbwheel.datasets.shapes import SHAPES
from thumbwheel.datasets.types import SPLITS, Dataset, DatasetConfig, Drop, Row, Tally
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.artifacts import Artifacts
from thumbwheel.models.versions import record_artifacts, require_agent
from thumbwheel.rewards.types import RULE

FORMAT = 1
LATEST = "latest"
READ = 1024
"""Rows that are decoded at once."""


def build(ws: Workspace, agent: str, shape: str, config: DatasetConfig | None = None, as_of: datetime | None = None) -> Dataset:
    """Freeze the rows of `shape` that the feedback in force at `as_of` (default: now) gives; the one that exists, where nothing changed.

    Raises DataError where nothing can be trained on them: no rows, or labels of one class only.
    """
    agent_id = require_agent(ws, agent)
    config, kind = config or DatasetConfig(), SHAPES.get(shape)()
    tally, facts = Tally(), Facts()
    with ws.db.read() as connection:
        rows = list(_collect(connection, agent, kind, config, tally, facts, as_of))
        watermark = store.watermark(connection, agent_id, as_of)
    rows, fitted = kind.fit(sorted(rows, key=lambda row: row.row_id), config)
    facts.drops.update(tally.drops)
    if missing := kind.missing(rows):
        raise DataError(f"dataset of shape {shape!r} for agent {agent!r}", f"{missing}{_dropped(facts)}", _next(agent))
    used = config.model_dump(mode="json", exclude={"plan"})
    fingerprint = ids.fingerprint({"format": FORMAT, "shape": shape, "config": used, "rows": _digest(rows)})
    manifest = {
        "format": FORMAT,
        "counts": facts.counts,
        "prompts": dict(facts.prompts),
        **facts.to_json(),
        "notes": dict(sorted((+tally.notes).items())),
        "fitted": fitted,
        "rule": RULE,
        "config": used,
        "columns": {column.name: str(column.type) for column in fields(kind.row)},
        "watermark": watermark,
    }
    dataset_id = ids.derived("dst", agent, fingerprint)
    return _freeze(ws, Dataset(dataset_id, agent, shape, fingerprint, manifest, datetime.now(UTC)), kind, rows)


def _collect(
    connection: sa.Connection, agent: str, kind: Shape, config: DatasetConfig, tally: Tally, facts: Facts, as_of: datetime | None
) -> Iterator[Row]:
    for evidence in gather(connection, agent, config, tally, as_of, unjudged=kind.unjudged):
        for found in kind.rows(evidence, config):
            if isinstance(found, Drop):
                facts.drops[found.reason] += 1
            else:
                facts.add(found)
                yield found


def _dropped(facts: Facts) -> str:
    most = ", ".join(f"{count} x {reason!r}" for reason, count in facts.drops.most_common(3))
    return f" (left out: {most})" if most else ""


def _next(agent: str) -> str:
    return f"See what there is and what is missing: thumbwheel dataset plan --agent {agent}"


def _digest(rows: Sequence[Row]) -> str:
    hashed = hashlib.sha256()
    for row in rows:
        hashed.update(json.dumps(asdict(row), sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + b"\n")
    return hashed.hexdigest()


def _freeze(ws: Workspace, dataset: Dataset, kind: Shape, rows: Sequence[Row]) -> Dataset:
    blobs, files, sizes = Artifacts(ws.home.blobs), {}, {}
    with tempfile.TemporaryDirectory(dir=ws.home.path, prefix="building-") as folder:
        for split in SPLITS:
            path = Path(folder) / f"{split}.parquet"
            write_parquet(path, kind.row, [row for row in rows if row.split == split])
            files[split] = blobs.put(path)
            sizes[files[split]] = path.stat().st_size
    dataset.manifest["files"] = files

    def work(connection: sa.Connection) -> None:
        if store.add(connection, dataset):
            record_artifacts(connection, "dataset", sizes)

    ws.db.write(work)
    return find(ws, dataset.agent, dataset.id)


def find(ws: Workspace, agent: str, name: str = LATEST) -> Dataset:
    """The dataset that `name` means: an id, a shape (the newest of it) or `latest`; raises NotFound with what exists."""
    require_agent(ws, agent)
    known = datasets(ws, agent)
    matching = [one for one in known if name in (LATEST, one.id, one.shape)]
    if not matching:
        names = [one.id for one in known]
        first = f"Build one: thumbwheel dataset build --agent {agent} --shape pairs"
        fix = f"Known: {', '.join(names)}.{nearest(name, [*names, *SHAPES.names(), LATEST])}" if known else first
        raise NotFound(f"dataset {name!r} of agent {agent!r}", "there is no such dataset", fix)
    return matching[-1]


def by_id(ws: Workspace, dataset_id: str) -> Dataset:
    """The dataset with this id, of any agent; raises NotFound."""
    with ws.db.read() as connection:
        found = store.find(connection, dataset_id=dataset_id)
    if not found:
        raise NotFound(
            f"dataset {dataset_id!r}", "there is no such dataset", "Give an id, or a shape or 'latest' together with --agent AGENT"
        )
    return found[0]


def datasets(ws: Workspace, agent: str) -> list[Dataset]:
    """All datasets of `agent`, oldest first."""
    with ws.db.read() as connection:
        return store.find(connection, agent=agent)


def load_rows(ws: Workspace, dataset_id: str, split: str) -> Iterator[Any]:
    """The rows of one split as the shape's row class (`types.ChatRow`, `PairRow`, `LabelRow`), in the order of their ids.

    The file is verified against its hash first; raises NotFound, InputError for an unknown split and StorageError for a damaged file.
    """
    if split not in SPLITS:
        raise InputError(f"split {split!r}", "there is no such split", f"Known: {', '.join(SPLITS)}")
    dataset = by_id(ws, dataset_id)
    path = Artifacts(ws.home.blobs).path(dataset.manifest["files"][split])
    return read_parquet(path, SHAPES.get(dataset.shape).row)


def write_parquet(path: Path, row_type: type[Row], rows: Sequence[Row]) -> None:
    """Write `rows` to `path`; values that are no text, number or truth value are JSON text."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    plain = {str: pa.string(), float: pa.float64(), bool: pa.bool_(), int: pa.int64()}
    kinds = {name: _plain(kind) for name, kind in typing.get_type_hints(row_type).items()}
    schema = pa.schema([(name, plain[kind] if kind else pa.string()) for name, kind in kinds.items()])
    columns = {name: [_encoded(getattr(row, name), kind) for row in rows] for name, kind in kinds.items()}
    try:
        pq.write_table(pa.table(columns, schema=schema), path, compression="zstd")
    except OSError as error:
        why = error.strerror or str(error)
        raise StorageError(f"file {str(path)!r}", why, "Free space or name a writable place, then try again") from error


def read_parquet(path: Path, row_type: type[Row]) -> Iterator[Any]:
    """The rows of a file that `write_parquet` wrote, streamed."""
    import pyarrow.parquet as pq

    kinds = {name: _plain(kind) for name, kind in typing.get_type_hints(row_type).items()}
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=READ):
            for found in batch.to_pylist():
                yield row_type(**{name: _decoded(found[name], kind) for name, kind in kinds.items()})


def _plain(annotation: Any) -> type | None:
    """str, int, float or bool (None beside it allowed); None for what is kept as JSON."""
    parts = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    inner = [part for part in parts if part is not types.NoneType]
    return inner[0] if len(inner) == 1 and inner[0] in (str, int, float, bool) else None


def _encoded(value: Any, kind: type | None) -> Any:
    return value if kind or value is None else json.dumps(value, ensure_ascii=False)


def _decoded(value: Any, kind: type | None) -> Any:
    return value if kind or value is None else json.loads(value)
