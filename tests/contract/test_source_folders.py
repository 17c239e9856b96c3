"""A source may read folders: one of a package's, known by its entry point, is recognised, imported
and reported like those of the table."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from thumbwheel.capture.ingest import ingest
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import InputError
from thumbwheel.db.workspace import Workspace
from thumbwheel.importers.detect import detect, sample
from thumbwheel.importers.source import Line, ReadsLocations, Refused
from thumbwheel.importers.sources import SOURCES

MODULE = '''
"""`tickets`: a folder of support tickets, one text file each: question, dashes, answer."""

from thumbwheel.importers.source import (
    Unreadable,
    files_below,
    item_of,
    items_of_files,
    read_regular,
)
from thumbwheel.importers.types import TraceRecord


class Tickets:
    example = "a file 17.ticket: Where is my parcel? / --- / On its way."

    def claims(self, row):
        return False

    def claims_location(self, path):
        return path.is_dir() and any(files_below(path, ".ticket"))

    def read(self, path, on_position):
        return items_of_files(path, files_below(path, ".ticket"), self._file, on_position)

    def _file(self, file):
        text = read_regular(file).decode()
        yield item_of(0, text, lambda: self._records(file.stem, text))

    def _records(self, name, text):
        question, line, answer = text.partition("\\n---\\n")
        if not line:
            raise Unreadable("it has no line of dashes")
        return [TraceRecord(id=name, input=question, output=answer.strip())]


SOURCE = Tickets()
'''


@pytest.fixture
def tickets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of tickets, while a package that reads it is installed."""
    site = tmp_path / "site"
    package = site / "tickets-1.0.dist-info"
    package.mkdir(parents=True)
    (site / "tickets_source.py").write_text(MODULE)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: tickets\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        "[thumbwheel.sources]\ntickets = tickets_source:SOURCE\n"
    )
    monkeypatch.syspath_prepend(site)
    vars(SOURCES).pop("locations", None)  # the table remembers which packages are installed
    folder = tmp_path / "desk"
    (folder / "may").mkdir(parents=True)
    (folder / "17.ticket").write_text("Where is my parcel?\n---\nOn its way.\n")
    (folder / "may" / "18.ticket").write_text("Opening hours?\n---\nNine to five.\n")
    (folder / "may" / "torn.ticket").write_text("Hello?")
    (folder / "readme.txt").write_text("no ticket")
    yield folder
    vars(SOURCES).pop("locations", None)


def test_a_folder_is_recognised_by_the_source_of_a_package(tickets: Path) -> None:
    assert isinstance(SOURCES.get("tickets"), ReadsLocations)
    assert detect(tickets).source == "tickets"
    assert [row.records or row.refused for row in sample(tickets, "tickets")] == [
        ["trace: Where is my parcel? -> On its way."],
        ["trace: Opening hours? -> Nine to five."],
        "may/torn.ticket: it has no line of dashes",
    ]


def test_its_files_are_items_that_are_numbered_on(tickets: Path) -> None:
    positions: list[int] = []
    items = list(SOURCES.get("tickets").read(tickets, positions.append))
    assert [(item.number, type(item)) for item in items] == [(1, Line), (2, Line), (3, Refused)]
    sizes = [path.stat().st_size for path in sorted(tickets.rglob("*.ticket"))]
    assert positions == [sum(sizes[:count]) for count in (1, 2, 3)]


def test_it_is_imported_like_a_file(tickets: Path, tmp_path: Path) -> None:
    rejects = tmp_path / "rejects.jsonl"
    with Workspace.open(Home.at(tmp_path / "home"), Sources({}, "test", {})) as ws:
        report = ingest(ws, "desk", "tickets", tickets, rejects=rejects)
        again = ingest(ws, "desk", "tickets", tickets)
    assert (report.read, report.stored, report.refused) == (3, 2, 1)
    assert (again.stored, again.duplicates) == (0, 2)
    (refusal,) = map(json.loads, rejects.read_text().splitlines())
    assert refusal["reason"] == "may/torn.ticket: it has no line of dashes"
    assert refusal["text"] == "Hello?"


def test_a_folder_that_no_source_knows_names_those_that_read_folders(
    tickets: Path, tmp_path: Path
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InputError, match="tickets"):
        detect(empty)
