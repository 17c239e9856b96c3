"""What an import, and a look before it, say of a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import tzinfo
from typing import TYPE_CHECKING, Any

from thumbwheel.importers.types import NOUNS, AnyRecord, CaseRecord, FeedbackRecord

if TYPE_CHECKING:
    from thumbwheel.importers.source import Line, Refused
    from thumbwheel.importers.types import NaiveTimes

SHOWN = 20
"""Refusals that a report holds; `--rejects` has all of them."""


@dataclass
class ImportReport:
    """Counts of an import: read = stored + duplicates + erased + left out + refused. A line is
    stored when anything in it is new."""

    source: str
    """Source that read it."""
    path: str
    """File, folder or address that was read."""
    agent: str
    """Agent that the rows belong to."""
    read: int = 0
    """Lines that were read."""
    stored: int = 0
    """Lines with something new in them."""
    duplicates: int = 0
    """Lines of which everything was stored before."""
    erased: int = 0
    """Lines that would bring back what was erased; they are stored nowhere, the rejects
    included."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Reason -> lines that belong to somebody who was not asked for."""
    refused: int = 0
    """Lines that could not be taken; `refusals` has the first ones."""
    cases: int = 0
    """Lines that are a case, new or not."""
    refusals: list[dict[str, Any]] = field(default_factory=list)
    """The first of the refused lines: number and reason."""
    records: Counter[str] = field(default_factory=Counter)
    """New records by noun, feedback also by kind."""
    remarks: Counter[str] = field(default_factory=Counter)
    """Remark for a person -> its lines."""
    warnings: list[str] = field(default_factory=list)
    """Warnings about what is missing beside the file."""
    columns: list[str] = field(default_factory=list)
    """What the columns of a table are taken for, in words."""
    left_table: list[str] = field(default_factory=list)
    """Rows that the latest import of the same table read, and this one did not."""
    naive_times: int = 0
    """Times that were written without a zone."""
    timezone: str | None = None
    """The zone in which they were read; None: nobody named one."""
    dry_run: bool = False
    """True where nothing was stored."""

    def count_records(self, records: Iterable[AnyRecord]) -> None:
        for record in records:
            self.records[NOUNS[type(record)]] += 1
            if isinstance(record, FeedbackRecord):
                self.records[record.kind] += 1

    def count_line(self, line: Line) -> None:
        """Count the line's cases and remarks; a line with cases counts once."""
        self.cases += any(isinstance(record, CaseRecord) for record in line.records)
        self.remarks.update(line.remarks)

    def count_naive(self, naive: NaiveTimes, zone: tzinfo | None) -> None:
        """Note the number of times without a zone, and the zone in which they were read."""
        self.naive_times, self.timezone = naive.count, str(zone) if zone else None

    def words(self) -> list[str]:
        """Return messages for a person in addition to the counts, one line each."""
        lines = list(self.warnings)
        for remark, count in self.remarks.items():
            noun = "line" if count == 1 else "lines"
            lines.append(f"{count} {noun}: {remark}")
        if self.left_table:
            names = ", ".join(self.left_table[:SHOWN])
            more = " and more" if len(self.left_table) > SHOWN else ""
            lines.append(
                f"{len(self.left_table)} rows of the last import are no longer in the table, and "
                f"stay here: {names}{more}"
            )
        if self.naive_times:
            advice = "; if they are of another one: --timezone Europe/Berlin"
            other = "" if self.timezone else advice
            lines.append(f"times without a zone were read as {self.timezone or 'UTC'}{other}")
        return lines

    def refuse(self, refusal: Refused) -> None:
        """Count a refused line and remember the first ones."""
        self.refused += 1
        if len(self.refusals) < SHOWN:
            self.refusals.append({"number": refusal.number, "reason": refusal.reason})


@dataclass(frozen=True)
class SampleRow:
    """What a row of a file would become: its records in words, or the reason why it is refused."""

    number: int
    """Line of the file, from 1 on."""
    records: list[str] | None = None
    """What it becomes, in words; null if it is refused."""
    refused: str | None = None
    """Why it is refused; null if it is not."""


@dataclass(frozen=True)
class DetectedFile:
    """Which source reads a file, and what its first rows would become."""

    source: str
    """Source that reads it."""
    why: str
    """How it was recognised."""
    mapping: list[str]
    """What the columns of a table are taken for, in words."""
    rows: list[SampleRow]
    """First rows, and what each would become."""
