"""Exports datasets for other tools: JSON lines and Parquet with all columns, or a Hugging Face
folder with the columns that TRL reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thumbwheel.core.errors import InputError, MissingExtra
from thumbwheel.core.files import unwritable
from thumbwheel.core.plugins import nearest
from thumbwheel.core.present import json_text
from thumbwheel.datasets.build import by_id, load_rows
from thumbwheel.datasets.shapes import SHAPES
from thumbwheel.datasets.types import SPLITS, Dataset
from thumbwheel.db.workspace import Workspace
from thumbwheel.models.artifacts import Artifacts

if TYPE_CHECKING:
    import datasets


def export(ws: Workspace, dataset_id: str, path: Path, format: str = "jsonl") -> Path:
    """Write a dataset into the folder `path`, which must be new or empty, with its manifest; return
    `path`.

    `jsonl`, `json` and `parquet` give a file for each split, that of `json` a list. `hf` gives a
    folder for `datasets.load_from_disk`, with the splits in TRL's columns. Raises InputError for
    an unknown format or a folder that is not empty, MissingExtra if `datasets` is not installed.
    """
    dataset = by_id(ws, dataset_id)
    if format not in FORMATS:
        raise InputError(
            f"format {format!r}",
            "there is no such format",
            f"Known: {', '.join(FORMATS)}.{nearest(format, FORMATS)}",
        )
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(
            f"path {str(path)!r}",
            "it is not an empty folder, and existing files are never overwritten",
            "Name a new folder",
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
        FORMATS[format](ws, dataset, path)
        manifest = path / "manifest.json"
        manifest.write_text(json_text(dataset) + "\n", encoding="utf-8")
    except OSError as error:
        fix = "Free space or name a writable place"
        raise unwritable(f"path {str(path)!r}", error, fix) from error
    return path


def _jsonl(ws: Workspace, dataset: Dataset, path: Path) -> None:
    for split in SPLITS:
        with (path / f"{split}.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(
                json.dumps(asdict(row), ensure_ascii=False) + "\n"
                for row in load_rows(ws, dataset.id, split)
            )


def _json(ws: Workspace, dataset: Dataset, path: Path) -> None:
    for split in SPLITS:
        with (path / f"{split}.json").open("w", encoding="utf-8") as file:
            separator = "["
            for row in load_rows(ws, dataset.id, split):
                file.write(separator + "\n" + json.dumps(asdict(row), ensure_ascii=False))
                separator = ","
            file.write("[]\n" if separator == "[" else "\n]\n")


def _parquet(ws: Workspace, dataset: Dataset, path: Path) -> None:
    Artifacts.of(ws).checkout(
        {f"{split}.parquet": sha256 for split, sha256 in dataset.manifest["files"].items()}, path
    )


def as_hf(ws: Workspace, dataset: Dataset) -> datasets.DatasetDict:
    """Return the splits that have rows in TRL's columns, with weight, origin and id of each row.

    Raises MissingExtra if `datasets` is not installed.
    """
    try:
        import datasets
    except ImportError:
        raise MissingExtra.of("a Hugging Face dataset", "datasets", "train") from None
    datasets.disable_progress_bars()
    splits = {}
    for split in SPLITS:
        rows = list(_trl_rows(ws, dataset, split))
        if rows:
            splits[split] = datasets.Dataset.from_list(rows)
    return datasets.DatasetDict(splits)


def _hf(ws: Workspace, dataset: Dataset, path: Path) -> None:
    as_hf(ws, dataset).save_to_disk(path)


def _trl_rows(ws: Workspace, dataset: Dataset, split: str) -> Iterator[dict[str, Any]]:
    shape = SHAPES.get(dataset.shape)()
    for row in load_rows(ws, dataset.id, split):
        columns = shape.trl_columns(row)
        if row.tools:
            columns["tools"] = json.dumps(row.tools, ensure_ascii=False)
        yield columns | {"weight": row.weight, "origin": row.origin, "row_id": row.row_id}


FORMATS: dict[str, Callable[[Workspace, Dataset, Path], None]] = {
    "jsonl": _jsonl,
    "json": _json,
    "parquet": _parquet,
    "hf": _hf,
}
