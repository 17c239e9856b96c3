"""Frozen datasets: build one from the evidence, find it again, read its rows.

A dataset is named by its content: the same evidence under the same settings gives the same id, in
whatever order it arrived. Each split is a Parquet file of its own, so training never opens the
gate's. Rows are written to disk as they are made and sorted there, so memory does not grow with
them. What becomes a row is in `evidence` and `shapes/`, the layout of files in `files`, other
formats in `export`.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any

import sqlalchemy as sa

from thumbwheel.core import ids
from thumbwheel.core.errors import DataError, InputError, NotFound
from thumbwheel.core.plugins import nearest
from thumbwheel.datasets import store
from thumbwheel.datasets.build_parts import collect_rows
from thumbwheel.datasets.files import (
    BUILDING,
    DIGEST,
    ParquetRows,
    SpillReader,
    read_parquet,
    write_tables,
)
from thumbwheel.datasets.health import CheckedRows, check, require_healthy
from thumbwheel.datasets.ledger_rewards import ledger_values, ledger_warnings
from thumbwheel.datasets.row_stats import RowStats
from thumbwheel.datasets.selection import Selection
from thumbwheel.datasets.shape import Shape
from thumbwheel.datasets.shapes import SHAPES
from thumbwheel.datasets.types import SPLITS, Dataset, DatasetConfig, Finding
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import of_agent
from thumbwheel.models.artifacts import Artifacts
from thumbwheel.models.types import Agent
from thumbwheel.models.versions import record_artifacts, require_agent
from thumbwheel.rewards.ledger import settings
from thumbwheel.rewards.types import RULE

FORMAT = 3
LATEST = "latest"


def build(
    ws: Workspace,
    agent: str,
    shape: str,
    config: DatasetConfig | None = None,
    as_of: datetime | None = None,
) -> Dataset:
    """Freeze the rows of `shape` by the feedback in force at `as_of` (default: now); return the
    existing dataset if nothing changed.

    Raises DataError if the rows cannot be trained on: there are none, all labels are of one class,
    or a health check finds an error that `config.allow` does not name.
    """
    learner = require_agent(ws, agent)
    started_at = datetime.now(UTC)
    config = (config or DatasetConfig()).resolved(as_of or started_at)
    shape_rules = SHAPES.get(shape)()
    label = f"dataset of shape {shape!r} for agent {agent!r}"
    with tempfile.TemporaryDirectory(dir=ws.home.path, prefix=BUILDING) as name:
        folder = Path(name)

        # Collect all rows on disk, then select those that the filters keep.
        values = ledger_values(ws, learner, as_of) if config.reward == "ledger" else None
        collected = collect_rows(ws, learner, shape, config, as_of, folder, values)
        spilled = SpillReader(collected.folders, shape_rules.row)
        collected_stats = RowStats(drops=collected.drops, prompts=collected.prompts)
        selection = Selection(spilled, config, collected_stats)
        stats = selection.stats
        if missing := shape_rules.missing(stats):
            fix = f"See what there is and what is missing: thumbwheel dataset plan --agent {agent}"
            raise DataError(label, f"{missing}{_largest_drops(stats)}", fix)

        # Check the texts, and write the files of the splits at the same time.
        fitted = shape_rules.fit(stats, config)
        paths = {split: folder / f"{split}.parquet" for split in SPLITS}
        checked_rows = CheckedRows(stats.rows)
        findings, rows_hash = _check_and_write(
            selection, config, paths, shape_rules, fitted, label, checked_rows
        )

        # The id follows from the content.
        settings_used = config.model_dump(
            mode="json", exclude={"plan", "allow", "checked", "recent_days"}
        )
        identity = {"format": FORMAT, "shape": shape, "config": settings_used, "rows": rows_hash}
        if values is not None:
            identity["reward"] = settings(ws, agent).fingerprint()
        fingerprint = ids.fingerprint(identity)

        manifest: dict[str, Any] = {
            "format": FORMAT,
            "counts": stats.counts,
            "prompts": dict(stats.prompts),
            "gate_groups": len(stats.gate_groups),
            **stats.to_json(),
        }
        if collected.loudest is not None:
            manifest["loudest"] = asdict(collected.loudest)
        checked = {split: min(count, config.checked) for split, count in stats.counts.items()}
        manifest |= {
            "characters": checked_rows.mean_lengths(),
            "notes": dict(sorted(collected.notes.items())),
            "fitted": fitted,
            "health": {
                "checked": checked,
                "findings": [asdict(finding) for finding in findings],
            },
            "rule": RULE,
            "config": settings_used,
            "columns": {column.name: str(column.type) for column in fields(shape_rules.row)},
            "watermark": collected.watermark,
        }
        if values is not None:
            manifest["reward"] = identity["reward"]
            manifest["warnings"] += ledger_warnings(ws, learner, as_of)
        dataset_id = ids.derived("dst", agent, fingerprint)
        dataset = Dataset(dataset_id, agent, shape, fingerprint, manifest, started_at)
        return freeze(ws, dataset, paths, confirm=as_of is None)


def _check_and_write(
    selection: Selection,
    config: DatasetConfig,
    paths: Mapping[str, Path],
    shape: Shape,
    fitted: Mapping[str, Any],
    label: str,
    checked_rows: CheckedRows,
) -> tuple[list[Finding], str]:
    """Check the rows and write their files in a thread, which mostly runs outside the interpreter.

    Returns the findings and the hash of the rows. Raises DataError for an error that `config` does
    not allow.
    """
    require_healthy((), config.allow, label)
    stopped = Event()
    with ThreadPoolExecutor(1) as executor:
        writing = executor.submit(_write, selection, paths, shape, fitted, stopped)
        try:
            findings = _check(selection, config, checked_rows)
            require_healthy(findings, config.allow, label)
            return findings, writing.result()
        except BaseException:
            stopped.set()
            raise


def _check(selection: Selection, config: DatasetConfig, checked_rows: CheckedRows) -> list[Finding]:
    """Check the first rows of each split by id, which is a hash, and return the findings. The rows
    are added to `checked_rows`."""
    if not config.checked:
        return []
    for split in SPLITS:
        left = config.checked
        for table in selection.tables(split):
            checked_rows.take(selection.columns.decoded(table.slice(0, left)))
            left -= table.num_rows
            if left <= 0:
                break
    return check(checked_rows) if checked_rows.rows else []


def _write(
    selection: Selection,
    paths: Mapping[str, Path],
    shape: Shape,
    fitted: Mapping[str, Any],
    stopped: Event,
) -> str:
    """Write the file of every split; return the sha256 (hex) of the rows and of `fitted`. Ends
    early once `stopped` is set."""
    digest = hashlib.sha256(ids.canonical(fitted).encode())
    schema = selection.columns.schema()
    for split, path in paths.items():
        write_tables(path, schema, _finished(selection, split, shape, fitted, digest, stopped))
    return digest.hexdigest()


def _finished(
    selection: Selection,
    split: str,
    shape: Shape,
    fitted: Mapping[str, Any],
    digest: Any,
    stopped: Event,
) -> Iterator[Any]:
    """Yield the tables of `split` as they are frozen. `digest` takes each row as it was before the
    fit, which follows from the rows."""
    for table in selection.tables(split):
        if stopped.is_set():
            return
        digest.update(b"".join(table.column(DIGEST).to_pylist()))
        adjusted = shape.finish(table.select(shape.adjusts).to_pydict(), fitted)
        yield selection.columns.replaced(table, adjusted)


def _largest_drops(stats: RowStats) -> str:
    reasons = stats.drops.most_common(3)
    largest = ", ".join(f"{count} x {reason!r}" for reason, count in reasons)
    return f" (left out: {largest})" if largest else ""


def freeze(
    ws: Workspace, dataset: Dataset, paths: Mapping[str, Path], *, confirm: bool = False
) -> Dataset:
    """Store `dataset` with the Parquet file of every split; return the existing one if it is stored
    already.

    With `confirm`, an existing one is recorded as the result of the present evidence.
    """
    blobs = Artifacts.of(ws)
    files = {split: blobs.put(path) for split, path in paths.items()}
    sizes = {files[split]: path.stat().st_size for split, path in paths.items()}
    dataset.manifest["files"] = files

    def work(connection: sa.Connection) -> None:
        if store.add(connection, dataset):
            record_artifacts(connection, "dataset", sizes)
        elif confirm:
            store.confirm(connection, dataset.id, dataset.recorded_at)

    ws.db.write(work, of_agent(Agent.named(dataset.agent).id))
    return find(ws, dataset.agent, dataset.id)


def find(ws: Workspace, agent: str, name: str = LATEST) -> Dataset:
    """Return the dataset that `name` means: an id, a shape (its newest dataset) or `latest`.

    Raises NotFound with the ids that exist.
    """
    require_agent(ws, agent)
    existing = datasets(ws, agent)
    by_id = [dataset for dataset in existing if ids.stands_for(name, dataset.id)]
    ids.require_single(name, [dataset.id for dataset in by_id])
    matches = [
        dataset for dataset in existing if name in (LATEST, dataset.shape) or dataset in by_id
    ]
    if matches:
        return matches[-1]
    fix = f"Build one: thumbwheel dataset build --agent {agent} --shape pairs"
    if existing:
        dataset_ids = [dataset.id for dataset in existing]
        hint = nearest(name, [*dataset_ids, *SHAPES.names(), LATEST])
        fix = f"Known: {', '.join(dataset_ids)}.{hint}"
    raise NotFound(f"dataset {name!r} of agent {agent!r}", "there is no such dataset", fix)


def by_id(ws: Workspace, dataset_id: str) -> Dataset:
    """Return the dataset with this id, of any agent. Raises NotFound."""
    with ws.db.read() as connection:
        matches = store.find(connection, dataset_id=dataset_id)
    if not matches:
        raise NotFound(
            f"dataset {dataset_id!r}",
            "there is no such dataset",
            "Give an id, or a shape or 'latest' together with --agent AGENT",
        )
    ids.require_single(dataset_id, [dataset.id for dataset in matches])
    return matches[0]


def datasets(ws: Workspace, agent: str) -> list[Dataset]:
    """Return all datasets of `agent`, oldest first, by the time at which a build last returned
    them."""

    def last_built(dataset: Dataset) -> str:
        return dataset.manifest.get("confirmed_at") or dataset.recorded_at.isoformat()

    with ws.db.read() as connection:
        return sorted(store.find(connection, agent=agent), key=last_built)


def health(
    ws: Workspace,
    dataset_id: str,
    length: int | None = None,
    tokens: Callable[[str], int] | None = None,
) -> list[Finding]:
    """Check all rows of a frozen dataset and return the findings; `tokens` counts the tokens of a
    text to check for truncation at `length`."""
    dataset = by_id(ws, dataset_id)
    checked_rows = CheckedRows(sum(dataset.counts.values()), length=length, tokens=tokens)
    for split in SPLITS:
        checked_rows.take(load_rows(ws, dataset_id, split), dataset.manifest["fitted"])
    return check(checked_rows)


def load_rows(ws: Workspace, dataset_id: str, split: str, skip: int = 0) -> Iterator[Any]:
    """Return the rows of one split behind the first `skip`, as the shape's row class
    (`types.ChatRow`, `PairRow`, `LabelRow`), in the order of their ids.

    The file is verified against its hash first. Raises NotFound, InputError for an unknown split,
    and StorageError for a damaged file.
    """
    if split not in SPLITS:
        raise InputError(
            f"split {split!r}", "there is no such split", f"Known: {', '.join(SPLITS)}"
        )
    dataset = by_id(ws, dataset_id)
    path = Artifacts.of(ws).path(dataset.manifest["files"][split])
    return read_parquet(path, SHAPES.get(dataset.shape).row, skip)


def split_rows(ws: Workspace, dataset: Dataset, split: str) -> ParquetRows:
    """Return the rows of one split as mappings, in the order of their ids, which may be read
    several times.

    The file is verified against its hash first. Raises StorageError for a damaged file.
    """
    path = Artifacts.of(ws).path(dataset.manifest["files"][split])
    return ParquetRows(path, SHAPES.get(dataset.shape).row)
