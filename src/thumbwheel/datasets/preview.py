"""What a file would become, before anything of it is stored: its first rows, the meaning of its
columns, and how many answers people called good and bad in it.

A file that cannot be imported as it is has its problem in the preview, beside what could be read of
it, so that a person can say what a column means. What it would teach is in `plan.py`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from thumbwheel.capture.ingest import rehearse
from thumbwheel.core.errors import InputError, ThumbwheelError
from thumbwheel.core.present import shortened, without_commands
from thumbwheel.db.workspace import CaseRule
from thumbwheel.importers.detect import Options, describe, recognise, source_of
from thumbwheel.importers.import_report import SHOWN
from thumbwheel.importers.lines import ignore_position
from thumbwheel.importers.mapping import (
    LEFT_OUT,
    MARKS,
    MEANINGS,
    ColumnMapping,
    map_columns,
    with_inner_keys,
)
from thumbwheel.importers.marks import SEVERAL, Words
from thumbwheel.importers.proposals import proposed_columns
from thumbwheel.importers.rowfile import first_rows, read_rows
from thumbwheel.importers.source import Item, LeftOut, Line, Tabular
from thumbwheel.importers.types import AnyRecord, CaseRecord, FeedbackRecord
from thumbwheel.rewards.aggregate import verdict_of
from thumbwheel.rewards.types import LabelConfig, Statement

FIRST_ROWS = 20
"""Rows that are shown."""
MOST_PREVIEWED = 50_000
"""Rows that are read; a packed file of a few kilobytes can hold millions."""
CELL = 300
"""Characters of a cell that are shown."""
LOOKED_AT = 5_000
"""Rows whose different values are collected."""
MOST_VALUES = 12
"""Different values of a column that a person can put in order."""
LONGEST_VALUE = 40


@dataclass(frozen=True)
class PreviewProblem:
    """Why the file cannot be imported as it is."""

    what: str
    """What is wrong."""
    why: str
    """Why it cannot work."""
    fix: str
    """What to change."""
    field: str | None
    """`columns` where a person has to name columns, `source` where they have to name the format;
    None where the file itself is at fault."""


@dataclass(frozen=True)
class PreviewColumn:
    """A column of a table."""

    name: str
    """Heading of the column."""
    meaning: str | None
    """Key of MEANINGS, LEFT_OUT, or None where nobody knows: it becomes metadata."""
    is_guessed: bool
    """Whether its meaning was guessed from its name and values."""
    values: Sequence[str]
    """Its different values, if they are few and short."""


@dataclass(frozen=True)
class PreviewMark:
    """How a column of marks is read."""

    meaning: str
    """What the column judges by: thumb, rating, score or label."""
    column: str
    """Heading of the column."""
    worst: float | None
    """The ends of its numbers; None where they are read as up and down."""
    best: float | None
    """Number that means best; null where the marks are words."""
    words: Sequence[str]
    """Its words from the worst to the best, as a person says."""
    problem: str
    """Why its numbers cannot be read; empty if they can."""


@dataclass(frozen=True)
class PreviewRow:
    """A row of the file, and what it would become."""

    number: int
    """Row of the file, from 1 on."""
    cells: Sequence[str | None]
    """In the order of the columns; empty for a file that is no table."""
    question: str
    """What was asked."""
    answer: str
    """What the app answered."""
    records: Sequence[str]
    """What people said of the answer, or the case, in words."""
    good: bool | None
    """Whether they called the answer good; None where they said neither, or nothing."""
    refused: str | None
    """Why the row would not be taken."""


@dataclass
class FilePreview:
    """A file as it would be imported."""

    source: str | None = None
    """Which format it is; None if that is not known."""
    why: str = ""
    """How the source was recognised."""
    columns: Sequence[PreviewColumn] = ()
    """Columns of a table; empty for other files."""
    marks: Sequence[PreviewMark] = ()
    """Columns that hold judgements, and how they are read."""
    meanings: Sequence[str] = (*MEANINGS, LEFT_OUT)
    """Meanings that a column can be given."""
    rows: Sequence[PreviewRow] = ()
    """First rows, and what each would become."""
    read: int = 0
    """Rows that were looked at."""
    importable: int = 0
    """Rows that could be stored."""
    refused: int = 0
    """Rows that could not."""
    left_out: int = 0
    """Rows that belong to somebody who was not asked for."""
    refusals: list[dict[str, Any]] = field(default_factory=list)
    """The first refused lines: number and reason."""
    good: int = 0
    """Answers that feedback calls good."""
    bad: int = 0
    """Answers that feedback calls bad."""
    neither: int = 0
    """Judgements that call the answer neither good nor bad: the middle of a scale, a comment."""
    records: Counter[str] = field(default_factory=Counter)
    """What would be stored, by noun."""
    notes: Sequence[str] = ()
    """Remarks about the file."""
    problem: PreviewProblem | None = None
    """Why it cannot be imported as it is; null if it can."""


@dataclass
class _Collector:
    """Counts the items of a file, and remembers the first ones."""

    config: LabelConfig
    items: list[Item] = field(default_factory=list)
    preview: FilePreview = field(default_factory=FilePreview)

    def add(self, item: Item) -> None:
        """Count an item."""
        preview = self.preview
        preview.read += 1
        if len(self.items) < FIRST_ROWS:
            self.items.append(item)
        if isinstance(item, LeftOut):
            preview.left_out += 1
        elif isinstance(item, Line):
            preview.importable += 1
            self._count(item.records)
        else:
            preview.refused += 1
            if len(preview.refusals) < SHOWN:
                reason = without_commands(item.reason)
                preview.refusals.append({"number": item.number, "reason": reason})

    def _count(self, records: Sequence[AnyRecord]) -> None:
        for record in records:
            if isinstance(record, FeedbackRecord):
                verdict = self.verdict(record)
                self.preview.good += verdict is True
                self.preview.bad += verdict is False
                self.preview.neither += verdict is None

    def verdict(self, record: FeedbackRecord) -> bool | None:
        """Return whether a judgement calls the answer good, bad or neither."""
        scale = record.scale.model_dump() if record.scale else None
        moment = datetime.min.replace(tzinfo=UTC)
        statement = Statement("", record.kind, record.name, record.value, scale, "", 1.0, moment)
        if record.kind in ("correction", "preference"):
            return None
        return verdict_of(statement, self.config)


def preview_file(
    path: Path,
    agent: str,
    *,
    case_rule: CaseRule,
    source: str | None = None,
    options: Options | None = None,
    config: LabelConfig | None = None,
) -> FilePreview:
    """Return what an import of the file for `agent` with these options would store, by its first
    MOST_PREVIEWED rows. Raises InputError only for options that no file can have."""
    with first_rows(MOST_PREVIEWED):
        return _previewed(path, agent, case_rule, source, options or Options(), config)


def _previewed(
    path: Path,
    agent: str,
    case_rule: CaseRule,
    source: str | None,
    options: Options,
    config: LabelConfig | None,
) -> FilePreview:
    collector = _Collector(config or LabelConfig())
    preview = collector.preview

    # Which format it is.
    try:
        detection = recognise(path, source)
        reader = source_of(detection.source, options)
    except InputError as error:
        preview.problem = _problem(error, error.field)
        return preview
    preview.source, preview.why = detection.source, detection.why

    # What its columns are, if it is a table.
    mapping = None
    columns: Mapping[str, str] = {}
    names: list[str] = []
    if isinstance(reader, Tabular):
        try:
            table = reader.table(path)
        except InputError as error:
            preview.problem = _problem(error, None)
            return preview
        names = [*table.marks]
        try:
            mapping = map_columns(table, options.scales, f"file {path.name!r}")
            columns = mapping.columns
        except InputError as error:
            preview.problem = _problem(error, "columns")
            columns = proposed_columns(table.first) | dict(options.columns)
    shown_rows, values = _first_rows(path, names) if names else ({}, {})
    preview.columns = _columns(names, columns, options, values)
    preview.marks = _marks(columns, mapping, options)
    if preview.problem is not None:
        preview.rows = [
            PreviewRow(number, _cells(row, names), "", "", (), None, None)
            for number, row in shown_rows.items()
        ]
        return preview

    # What its lines become.
    try:
        report = rehearse(
            agent,
            detection.source,
            path,
            case_rule=case_rule,
            on_item=collector.add,
            options=options,
        )
    except InputError as error:
        preview.problem = _problem(error, "columns" if names else None)
    else:
        preview.records = report.records
        preview.notes = [without_commands(line) for line in report.words()]
        if preview.read == MOST_PREVIEWED:
            preview.notes = [*preview.notes, f"only the first {MOST_PREVIEWED:,} rows were read"]
    preview.rows = [
        _row(item, _cells(shown_rows.get(item.number, {}), names), collector)
        for item in collector.items
    ]
    return preview


def _problem(error: ThumbwheelError, at_field: str | None) -> PreviewProblem:
    return PreviewProblem(
        error.what, without_commands(error.why), without_commands(error.fix), at_field
    )


def _first_rows(
    path: Path, names: Sequence[str]
) -> tuple[dict[int, Mapping[str, Any]], dict[str, list[str]]]:
    """Return (number -> row, for the first rows; column -> its different values, for columns with a
    few short ones)."""
    first_rows: dict[int, Mapping[str, Any]] = {}
    values: dict[str, dict[str, None]] = {name: {} for name in names}
    for file_row in islice(read_rows(path, ignore_position), LOOKED_AT):
        row = with_inner_keys(file_row.row or {})
        if len(first_rows) < FIRST_ROWS:
            first_rows[file_row.number] = row
        for name in [*values]:
            text = _text(row.get(name))
            if text is None:
                continue
            if len(text) > LONGEST_VALUE or len(values[name]) > MOST_VALUES:
                del values[name]
            else:
                values[name][text] = None
    few = {name: [*different] for name, different in values.items()}
    return first_rows, {name: texts for name, texts in few.items() if len(texts) <= MOST_VALUES}


def _columns(
    names: Sequence[str],
    columns: Mapping[str, str],
    options: Options,
    values: Mapping[str, list[str]],
) -> list[PreviewColumn]:
    left_out = options.columns.get(LEFT_OUT, "").split(SEVERAL)
    meanings = {column: meaning for meaning, column in columns.items()}
    previewed = []
    for name in names:
        meaning = LEFT_OUT if name in left_out else meanings.get(name)
        is_guessed = meaning is not None and meaning not in options.columns
        previewed.append(PreviewColumn(name, meaning, is_guessed, values.get(name, ())))
    return previewed


def _marks(
    columns: Mapping[str, str], mapping: ColumnMapping | None, options: Options
) -> list[PreviewMark]:
    marks = []
    for meaning in MARKS:
        if meaning not in columns:
            continue
        column = columns[meaning]
        stated = options.scales.get(meaning) or options.scales.get(column)
        words = stated.words if isinstance(stated, Words) else ()
        worst, best, problem = None, None, ""
        if mapping is not None:
            reading = mapping.readings[meaning]
            worst, best = reading.scale or (None, None)
            problem = without_commands(reading.problem)
        marks.append(PreviewMark(meaning, column, worst, best, words, problem))
    return marks


def _cells(row: Mapping[str, Any], names: Sequence[str]) -> list[str | None]:
    return [_clipped(row.get(name)) for name in names]


def _row(item: Item, cells: list[str | None], collector: _Collector) -> PreviewRow:
    if not isinstance(item, Line):
        return PreviewRow(item.number, cells, "", "", (), None, without_commands(item.reason))
    question = answer = ""
    verdicts, records = [], []
    for record in item.records:
        if isinstance(record, FeedbackRecord):
            verdicts.append(collector.verdict(record))
            records.append(describe(record))
            continue
        question = question or _clipped(record.input[-1].get("content")) or ""
        if isinstance(record, CaseRecord):
            records.append(f"case, right: {_clipped(record.reference) or ''}")
        else:
            answer = answer or _clipped(record.output) or ""
    opinions = {verdict for verdict in verdicts if verdict is not None}
    good = next(iter(opinions)) if len(opinions) == 1 else None
    return PreviewRow(item.number, cells, question, answer, records, good, None)


def _text(value: Any) -> str | None:
    if value is None or value == "":
        return None
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _clipped(value: Any) -> str | None:
    text = _text(value)
    return None if text is None else shortened(text, CELL)
