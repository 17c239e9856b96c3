"""Tables with any columns, CSV and Parquet: columns by `--column prompt=question --column
rating=stars`, or guessed from their names.

A row becomes a trace with its feedback, a pair (chosen, rejected), or a case (a reference and no
answer). What the columns can be is in `capture/mapping.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from thumbwheel.capture.lines import OnPosition
from thumbwheel.capture.mapping import ColumnMapping, Scales, map_columns, row_records
from thumbwheel.capture.rowfile import table_rows
from thumbwheel.capture.source import Item, JsonLines, Row
from thumbwheel.capture.tables import columns_of


@dataclass(frozen=True)
class Columns:
    """The source for one kind of table, "csv" or "parquet"."""

    container: str
    example: str
    columns: Mapping[str, str] = field(default_factory=dict)
    scales: Scales = field(default_factory=dict)

    def claims(self, row: Row) -> bool:
        """Nothing by itself: a table that another source knows is that source's."""
        return False

    def with_mapping(self, columns: Mapping[str, str], scales: Scales) -> Columns:
        return replace(self, columns=columns, scales=scales)

    def mapping(self, path: Path) -> ColumnMapping:
        """What the columns of the file are; raises InputError where that cannot be said."""
        return map_columns(
            columns_of(path, self.container), self.columns, self.scales, f"file {str(path)!r}"
        )

    def read(self, path: Path, on_position: OnPosition) -> Iterator[Item]:
        parse = partial(row_records, mapping=self.mapping(path))
        source = JsonLines(parse, self.claims, self.example)
        yield from source.items(table_rows(path, on_position, self.container), parse)


CSV = Columns(
    "csv", "question,answer,stars,user_id\nHow do I reset it?,Hold the button.,5,customer-17"
)
PARQUET = Columns("parquet", "columns: question, answer, stars, user_id")
