"""Frozen datasets: build one from the evidence, find it again, read its rows.

A dataset is named by its content: the same evidence under the same settings gives the same id,
whatever order it arrived in. Each split is a Parquet file of its own, so that training never opens
the gate's. Rows are spilled to disk as they are made and sorted there, so memory does not grow with
them. Does not live here: what becomes a row (`read_evidence`, `shapes/`), how a file is laid out
(`files`), other formats (`export`).
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from threading import Event
from typing import Any

import sqlalchemy as sa

from thumbwheel.core import ids
from thumbwheel.core.errors import DataError, InputError, NotFound
from thumbwheel.core.plugins import nearest
from thumbwheel.datasets import store
from thumbwheel.datasets.collect import collect
from thumbwheel.datasets.files import DIGEST, SpillReader, read_parquet, write_tables
from thumbwheel.datasets.health import CheckedRows, Finding, check, demand
from thumbwheel.datasets.ledger_rewards import ledger_values, ledger_warnings
from thumbwheel.datasets.row_stats import RowStats
from thumbwheel.datasets.selection import Selection
from thumbwheel.datasets.shape import Shape
from thumbwheel.datasets.shapes import SHAPES
from thumbwheel.datasets.types import SPLITS, Dataset, DatasetConfig
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.artifacts import Artifacts
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
    """Freeze the rows of `shape` that the feedback in force at `as_of` (default: now) gives; the
    one that exists, where nothing changed.

    Raises DataError where nothing can be trained on them: no rows, labels of one class only, or an
    error of a health check that `config.allow` does not name.
    """
    require_agent(ws, agent)
    began = datetime.now(UTC)
    config, kind, what = (
        config or DatasetConfig(),
        SHAPES.get(shape)(),
        f"dataset of shape {shape!r} for agent {agent!r}",
    )
    with tempfile.TemporaryDirectory(dir=ws.home.path, prefix="building-") as folder:
        values = ledger_values(ws, agent, as_of) if config.reward == "ledger" else None
        collected = collect(ws.db, agent, shape, config, as_of, Path(folder), values)
        selected = Selection(
            SpillReader(collected.folders, kind.row),
            config,
            RowStats(drops=collected.drops, prompts=collected.prompts),
        )
        facts = selected.facts
        if missing := kind.missing(facts):
            raise DataError(what, f"{missing}{_dropped(facts)}", _next(agent))
        fitted = kind.fit(facts, config)
        used = config.model_dump(mode="json", exclude={"plan", "allow", "checked"})
        paths = {split: Path(folder) / f"{split}.parquet" for split in SPLITS}
        texts = CheckedRows(selected.facts.rows)
        findings, content = _checked_and_written(selected, config, paths, kind, fitted, what, texts)
        reward = {} if values is None else {"reward": settings(ws, agent).fingerprint()}
        fingerprint = ids.fingerprint(
            {"format": FORMAT, "shape": shape, "config": used, "rows": content} | reward
        )
        manifest = {
            "format": FORMAT,
            "counts": facts.counts,
            "prompts": dict(facts.prompts),
            "gate_groups": len(facts.held),
            **facts.to_json(),
            **({} if collected.loudest is None else {"loudest": asdict(collected.loudest)}),
            "characters": texts.characters(),
            "notes": dict(sorted(collected.notes.items())),
            "fitted": fitted,
            "health": {
                "checked": {
                    split: min(count, config.checked) for split, count in facts.counts.items()
                },
                "findings": [asdict(one) for one in findings],
            },
            "rule": RULE,
            "config": used,
            "columns": {column.name: str(column.type) for column in fields(kind.row)},
            "watermark": collected.watermark,
        } | reward
        if values is not None:
            manifest["warnings"] = [*manifest["warnings"], *ledger_warnings(ws, agent, as_of)]
        dataset_id = ids.derived("dst", agent, fingerprint)
        return freeze(
            ws,
            Dataset(dataset_id, agent, shape, fingerprint, manifest, began),
            paths,
            confirm=as_of is None,
        )


def _checked_and_written(
    selected: Selection,
    config: DatasetConfig,
    paths: Mapping[str, Path],
    kind: Shape,
    fitted: Mapping[str, Any],
    what: str,
    texts: CheckedRows,
) -> tuple[list[Finding], str]:
    """The findings, none of which stops the build, and the hash of what was written beside
    checking; most of that needs no interpreter."""
    demand((), config.allow, what)
    stopped = Event()
    with ThreadPoolExecutor(1) as beside:
        writing = beside.submit(_write, selected, paths, kind, fitted, stopped)
        try:
            findings = _checked(selected, config, texts)
            demand(findings, config.allow, what)
            return findings, writing.result()
        except BaseException:
            stopped.set()
            raise


def _checked(selected: Selection, config: DatasetConfig, texts: CheckedRows) -> list[Finding]:
    """Findings about the first rows of each split by id, which is a hash; they are added to
    `texts`."""
    for split in SPLITS if config.checked else ():
        left = config.checked
        for table in selected.tables(split):
            texts.take(selected.columns.decoded(table.slice(0, left)))
            left -= table.num_rows
            if left <= 0:
                break
    return check(texts) if texts.rows else []


def _write(
    selected: Selection,
    paths: Mapping[str, Path],
    kind: Shape,
    fitted: Mapping[str, Any],
    stopped: Event,
) -> str:
    """The file of every split; returns sha256 (hex) of the rows and of what was fitted on them.
    Ends early once `stopped`."""
    digest = hashlib.sha256(ids.canonical(fitted).encode())
    for split, path in paths.items():
        write_tables(
            path,
            selected.columns.schema(),
            _finished(selected, split, kind, fitted, digest, stopped),
        )
    return digest.hexdigest()


def _finished(
    selected: Selection,
    split: str,
    kind: Shape,
    fitted: Mapping[str, Any],
    digest: Any,
    stopped: Event,
) -> Iterator[Any]:
    """The rows of `split` as they are frozen; `digest` is told each of them as it was before the
    fit, which follows from them."""
    for table in takewhile(lambda _: not stopped.is_set(), selected.tables(split)):
        digest.update(b"".join(table.column(DIGEST).to_pylist()))
        yield selected.columns.replaced(
            table, kind.finish(table.select(kind.adjusts).to_pydict(), fitted)
        )


def _dropped(facts: RowStats) -> str:
    most = ", ".join(f"{count} x {reason!r}" for reason, count in facts.drops.most_common(3))
    return f" (left out: {most})" if most else ""


def _next(agent: str) -> str:
    return f"See what there is and what is missing: thumbwheel dataset plan --agent {agent}"


def freeze(
    ws: Workspace, dataset: Dataset, paths: Mapping[str, Path], *, confirm: bool = False
) -> Dataset:
    """Store `dataset` with the Parquet file of every split; the one that exists, where it is stored
    already.

    `confirm`: that one is what the evidence of this moment gives.
    """
    blobs = Artifacts(ws.home.blobs)
    files = {split: blobs.put(path) for split, path in paths.items()}
    sizes = {files[split]: path.stat().st_size for split, path in paths.items()}
    dataset.manifest["files"] = files

    def work(connection: sa.Connection) -> None:
        if store.add(connection, dataset):
            record_artifacts(connection, "dataset", sizes)
        elif confirm:
            store.confirm(connection, dataset.id, dataset.recorded_at)

    ws.db.write(work)
    return find(ws, dataset.agent, dataset.id)


def find(ws: Workspace, agent: str, name: str = LATEST) -> Dataset:
    """The dataset that `name` means: an id, a shape (the newest of it) or `latest`; raises NotFound
    with what exists."""
    require_agent(ws, agent)
    known = datasets(ws, agent)
    ids.require_single(name, [dataset.id for dataset in known if ids.stands_for(name, dataset.id)])
    matching = [
        dataset
        for dataset in known
        if name in (LATEST, dataset.shape) or ids.stands_for(name, dataset.id)
    ]
    if not matching:
        names = [one.id for one in known]
        first = f"Build one: thumbwheel dataset build --agent {agent} --shape pairs"
        fix = (
            f"Known: {', '.join(names)}.{nearest(name, [*names, *SHAPES.names(), LATEST])}"
            if known
            else first
        )
        raise NotFound(f"dataset {name!r} of agent {agent!r}", "there is no such dataset", fix)
    return matching[-1]


def by_id(ws: Workspace, dataset_id: str) -> Dataset:
    """The dataset with this id, of any agent; raises NotFound."""
    with ws.db.read() as connection:
        found = store.find(connection, dataset_id=dataset_id)
    if not found:
        raise NotFound(
            f"dataset {dataset_id!r}",
            "there is no such dataset",
            "Give an id, or a shape or 'latest' together with --agent AGENT",
        )
    ids.require_single(dataset_id, [dataset.id for dataset in found])
    return found[0]


def datasets(ws: Workspace, agent: str) -> list[Dataset]:
    """All datasets of `agent`, oldest first; one that came out again is as new as that."""
    with ws.db.read() as connection:
        found = store.find(connection, agent=agent)
    return sorted(
        found, key=lambda one: one.manifest.get("confirmed_at") or one.recorded_at.isoformat()
    )


def health(
    ws: Workspace,
    dataset_id: str,
    length: int | None = None,
    tokens: Callable[[str], int] | None = None,
) -> list[Finding]:
    """Findings about all rows of a frozen dataset; `tokens` counts those of a text for the check of
    truncation at `length`."""
    dataset = by_id(ws, dataset_id)
    texts = CheckedRows(sum(dataset.counts.values()), length=length, tokens=tokens)
    for split in SPLITS:
        texts.take(load_rows(ws, dataset_id, split), dataset.manifest["fitted"])
    return check(texts)


def load_rows(ws: Workspace, dataset_id: str, split: str) -> Iterator[Any]:
    """The rows of one split as the shape's row class (`types.ChatRow`, `PairRow`, `LabelRow`), in
    the order of their ids.

    The file is verified against its hash first; raises NotFound, InputError for an unknown split
    and StorageError for a damaged file.
    """
    if split not in SPLITS:
        raise InputError(
            f"split {split!r}", "there is no such split", f"Known: {', '.join(SPLITS)}"
        )
    dataset = by_id(ws, dataset_id)
    path = Artifacts(ws.home.blobs).path(dataset.manifest["files"][split])
    return read_parquet(path, SHAPES.get(dataset.shape).row)
