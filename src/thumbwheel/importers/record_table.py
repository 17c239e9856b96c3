"""Sources whose records are rows of a table in another form: Argilla's, Prodigy's, Gradio's. What a
column is, is guessed by its name or said by `--column`, as for any table (`mapping.py`).

Not here: which rows a record is (`sources/`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from thumbwheel.core.errors import InputError
from thumbwheel.importers.lines import OnPosition, ignore_position
from thumbwheel.importers.mapping import ColumnMapping, TableColumns, map_columns, row_records
from thumbwheel.importers.marks import Scales
from thumbwheel.importers.rowfile import read_rows
from thumbwheel.importers.source import DEFAULT_REASON, Item, JsonLines, Row
from thumbwheel.importers.types import AnyRecord, Records, Unreadable

RowsOf = Callable[[Row], list[dict[str, Any]]]
"""The rows of a table that a record is; raises Unreadable."""


@dataclass(frozen=True)
class RecordTable(JsonLines):
    """A source of records that are rows of a table."""

    rows_of: RowsOf | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    scales: Scales = field(default_factory=dict)
    file_mapping: ColumnMapping | None = None
    """Of the file that is read; None: it is computed first."""

    @classmethod
    def of(
        cls,
        rows_of: RowsOf,
        claims: Callable[[Row], bool],
        example: str,
        about: str = "",
        reason: str = DEFAULT_REASON,
    ) -> RecordTable:
        """Return the source of these records; a record that is read alone is a table of its own."""
        parse = partial(_records, rows_of=rows_of)
        return cls(parse, claims, example, about=about, reason=reason, rows_of=rows_of)

    def with_mapping(self, columns: Mapping[str, str], scales: Scales) -> RecordTable:
        return replace(self, columns=columns, scales=scales)

    def mapped(self, path: Path) -> tuple[RecordTable, list[str]]:
        mapping = self._mapping(path)
        return replace(self, file_mapping=mapping), mapping.words() if mapping else []

    def _mapping(self, path: Path) -> ColumnMapping | None:
        """Map the columns of all records of the file; None if no record can be read."""
        assert self.rows_of is not None  # noqa: S101 - set by `of`
        table = TableColumns(self.columns)
        for file_row in read_rows(path, ignore_position):
            if file_row.row is not None and self.claims(file_row.row):
                for row in _rows_or_none(file_row.row, self.rows_of):
                    table.add(row)
        if not table.marks:
            return None
        return map_columns(table, self.scales, f"file {str(path)!r}")

    def read(self, path: Path, on_position: OnPosition) -> Iterator[Item]:
        """Read all records first, which tell what the columns are."""
        assert self.rows_of is not None  # noqa: S101 - set by `of`
        mapping = self.file_mapping or self._mapping(path)
        parse = self.parse
        if mapping is not None:
            parse = partial(_records, rows_of=self.rows_of, mapping=mapping)
        yield from self.items(read_rows(path, on_position), parse)


def _rows_or_none(record: Row, rows_of: RowsOf) -> list[dict[str, Any]]:
    """Return the rows of a record; none if it cannot be read, since it is refused later."""
    try:
        return rows_of(record)
    except Unreadable:
        return []


def _records(
    record: dict[str, Any], rows_of: RowsOf, mapping: ColumnMapping | None = None
) -> list[AnyRecord]:
    """Return the trace or pair with the feedback of every person about it."""
    rows = rows_of(record)
    if mapping is None:
        table = TableColumns({})
        for row in rows:
            table.add(row)
        try:
            mapping = map_columns(table, {}, "the record")
        except InputError as error:
            raise Unreadable(str(error)) from None
    records: dict[Any, AnyRecord] = {}
    remarks: list[str] = []
    problems = []
    for row in rows:
        try:
            understood = row_records(row, mapping)
        except Unreadable as error:
            problems.append(str(error))
            continue
        remarks += understood.remarks if isinstance(understood, Records) else ()
        records |= {(type(part), part.name_and_fingerprint()): part for part in understood}
    if not records:
        raise Unreadable(problems[0])
    remarks += [f"an answer was left out: {problem}" for problem in problems]
    return Records(records.values(), dict.fromkeys(remarks))
