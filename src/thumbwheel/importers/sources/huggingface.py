"""A dataset of Hugging Face: a folder with Parquet, JSON lines or CSV files, or with Arrow files as
`Dataset.save_to_disk` writes them; or `hf://NAME`, one on the hub.

A row means what the source of its columns says: pairs, chats, prompts with completions. Only data
files are read: a loading script in the folder is never run.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

from thumbwheel.core.errors import InputError, MissingExtra
from thumbwheel.importers.lines import OnPosition, ignore_position
from thumbwheel.importers.location import Address
from thumbwheel.importers.messages import without_nulls
from thumbwheel.importers.regular_file import files_below
from thumbwheel.importers.rowfile import FileRow, read_rows
from thumbwheel.importers.source import Item, JsonLines, Refused, Row, items_of_files
from thumbwheel.importers.training_rows import RowMarks, TrainingRows, marks_of_rows

LAYOUTS = ("preference", "ranked", "sharegpt", "openai", "trl", "alpaca", "graded")
"""Names of the sources whose rows a dataset may hold."""
ENDINGS = (".parquet", ".arrow", ".jsonl", ".json", ".csv")
DESCRIPTIONS = ("dataset_info.json", "state.json", "dataset_dict.json", "dataset_infos.json")
"""Files that describe the dataset."""
SCHEME = "hf://"


@dataclass(frozen=True)
class HuggingFace:
    """The source."""

    example: str = "hf://USER/NAME, or a folder with dataset_info.json or *.parquet"
    about: str = "a dataset folder (Parquet, Arrow, JSON lines), or hf://USER/NAME"

    def claims(self, row: Row) -> bool:
        """Return False: a dataset is known by its folder, never by a row."""
        return False

    def claims_location(self, path: Path) -> bool:
        """Return whether the path is a folder with a dataset description, Parquet or Arrow files,
        or an hf:// address."""
        if isinstance(path, Address):
            return path.url.startswith(SCHEME)
        return any(
            file.name in DESCRIPTIONS or file.suffix in (".parquet", ".arrow")
            for file in files_below(path, *ENDINGS)
        )

    def read(self, path: Path, on_position: OnPosition) -> Iterator[Item]:
        if isinstance(path, Address):
            marks = _marks(_hub_rows(path))
            yield from self._items(_hub_rows(path), marks)
            return
        if not path.is_dir():
            marks = _marks(read_rows(path, ignore_position))
            yield from self._items(read_rows(path, on_position), marks)
            return
        files = [file for file in files_below(path, *ENDINGS) if file.name not in DESCRIPTIONS]
        marks = _marks(chain.from_iterable(map(_readable_rows, files)))

        def items_of_file(file: Path) -> Iterator[Item]:
            try:
                yield from self._items(read_rows(file, ignore_position), marks)
            except InputError as error:
                yield Refused(0, error.why, file.name)

        yield from items_of_files(path, files, items_of_file, on_position)

    def _items(self, rows: Iterator[FileRow], marks: RowMarks) -> Iterator[Item]:
        for row in rows:
            if row.row is None:
                yield Refused(row.number, row.reason, row.text)
                continue
            layout = next((layout for layout in _layouts() if layout.claims(row.row)), None)
            if layout is None:
                columns = ", ".join(list(row.row)[:8])
                reason = f"its columns ({columns}) are of none of {', '.join(LAYOUTS)}"
                yield Refused(row.number, reason, row.text)
                continue
            parse = layout.parse
            if isinstance(layout, TrainingRows) and layout.parse_marked is not None:
                parse = partial(layout.parse_marked, marks=marks)
            yield layout.item(row.number, row.row, row.text, parse)


def _marks(rows: Iterable[FileRow]) -> RowMarks:
    """Return the marks of all rows of the dataset: the rows of one file do not show their scale."""
    return marks_of_rows(row.row for row in rows if row.row is not None)


def _readable_rows(file: Path) -> Iterator[FileRow]:
    """Yield the rows of a file up to the first that cannot be read. The error is reported when the
    file is imported."""
    with suppress(InputError):
        yield from read_rows(file, ignore_position)


@cache
def _layouts() -> list[JsonLines]:
    from thumbwheel.importers.sources import SOURCES

    sources = map(SOURCES.get, LAYOUTS)
    return [source for source in sources if isinstance(source, JsonLines)]


def _hub_rows(address: Address) -> Iterator[FileRow]:
    """Stream the rows of the train split of a dataset on the hub. Raises MissingExtra, and
    InputError if the hub does not deliver it."""
    name = address.url.removeprefix(SCHEME).removeprefix("datasets/").strip("/")
    try:
        from datasets import load_dataset
    except ImportError:
        raise MissingExtra.of(f"reading {SCHEME}{name}", "datasets", "train") from None
    try:
        dataset: Any = load_dataset(name, split="train", streaming=True)
        for number, row in enumerate(dataset, 1):
            text = json.dumps(row, ensure_ascii=False, default=str)
            yield FileRow(number, without_nulls(dict(row)), text)
    except (OSError, ValueError, ConnectionError) as error:
        raise InputError(
            f"address {SCHEME}{name}",
            f"the hub does not give it ({' '.join(str(error).split())[:300]})",
            "Check the name and the network, or download its files and name the folder",
        ) from None


SOURCE = HuggingFace()
