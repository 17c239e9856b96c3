"""Tables with any columns, as CSV, Parquet, JSON lines or a JSON array: columns by `--column
prompt=question --column rating=stars`, or guessed from their names.

A row becomes a trace with its feedback, a pair (chosen, rejected), or a case (a reference and no
answer). What the columns can be is in `importers/mapping.py`. The three names are one source: each
reads whatever the file is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from thumbwheel.importers.lines import OnPosition, ignore_position
from thumbwheel.importers.mapping import ColumnMapping, TableColumns, map_columns, row_records
from thumbwheel.importers.marks import Scales
from thumbwheel.importers.regular_file import file_error
from thumbwheel.importers.rowfile import container_of, read_rows
from thumbwheel.importers.source import Item, JsonLines, Row
from thumbwheel.importers.tables import columns_of


@dataclass(frozen=True)
class Columns:
    """The source for tables."""

    example: str
    about: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)
    scales: Scales = field(default_factory=dict)
    file_mapping: ColumnMapping | None = None
    """Of the file that is read; None: it is computed first."""

    def claims(self, row: Row) -> bool:
        """Return False: a table is read by its columns if no other source claims its rows."""
        return False

    def with_mapping(self, columns: Mapping[str, str], scales: Scales) -> Columns:
        return replace(self, columns=columns, scales=scales)

    def table(self, path: Path) -> TableColumns:
        """Return the columns of the file, by all of its rows. Raises InputError if it has none."""
        table = TableColumns(self.columns)
        container = container_of(path)
        if container != "json":
            table.has_header = True
            table.add(dict.fromkeys(columns_of(path, container)))
            table.first = {}
        for row in read_rows(path, ignore_position):
            if row.row is not None:
                table.add(row.row)
        if not table.marks:
            raise file_error(
                path, "no line of it is a JSON object", "Give a file with one object a line"
            )
        return table

    def mapping(self, path: Path) -> ColumnMapping:
        """Map the columns of the file. Raises InputError if they cannot be mapped."""
        return map_columns(self.table(path), self.scales, f"file {str(path)!r}")

    def mapped(self, path: Path) -> tuple[Columns, list[str]]:
        mapping = self.mapping(path)
        return replace(self, file_mapping=mapping), mapping.words()

    def read(self, path: Path, on_position: OnPosition) -> Iterator[Item]:
        parse = partial(row_records, mapping=self.file_mapping or self.mapping(path))
        source = JsonLines(parse, self.claims, self.example)
        yield from source.items(read_rows(path, on_position), parse)


CSV = Columns("question,answer,stars,user_id\nHow do I reset it?,Hold the button.,5,customer-17")
PARQUET = Columns("columns: question, answer, stars, user_id")
TABLE = Columns(
    '{"question": "How do I reset it?", "answer": "Hold the button.", "stars": 5}',
    about="a table of JSON lines or a JSON array, with any columns",
)
