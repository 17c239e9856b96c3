"""The contract of an import source: it reads a path as a stream and yields numbered items, one for
every line that is not blank.

Lives here: the items, the protocol, and what most sources are, a meaning of the keys of a row. Not
here: the meanings (`sources/`), what holds the rows, be it JSON lines, an array, CSV or Parquet
(`rowfile.py`), what is done with the items (`ingest.py`). To add a source: one file in `sources/`
with a `Source`, usually `JsonLines(parse, claims, example)`, and a line in the table of that
folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from thumbwheel.capture.lines import Seen
from thumbwheel.capture.rowfile import HOPELESS, Found, row_of, rows, text_of
from thumbwheel.capture.types import CaseRecord, FeedbackRecord, TraceRecord, Unreadable, explain

__all__ = [
    "HOPELESS",
    "AnyRecord",
    "Item",
    "JsonLines",
    "LeftOut",
    "Line",
    "Parse",
    "Refused",
    "Row",
    "Source",
    "Unwanted",
    "row_of",
    "text_of",
]

AnyRecord = TraceRecord | FeedbackRecord | CaseRecord
Row = Mapping[str, Any]
Parse = Callable[[dict[str, Any]], list[AnyRecord]]
"""The records of a row; raises Unreadable or ValidationError."""


@dataclass(frozen=True)
class Line:
    """A line that was understood: its records belong together and are stored together or not at
    all."""

    number: int
    records: list[AnyRecord]
    text: str
    remarks: tuple[str, ...] = ()
    """What a person should look at, in words that are the same for every line of the kind."""


@dataclass(frozen=True)
class Refused:
    """A line that was not: why, and its text, so that nothing is lost."""

    number: int
    reason: str
    text: str


@dataclass(frozen=True)
class LeftOut:
    """A line that was understood and is not wanted: it belongs to somebody that a person did not
    ask for."""

    number: int
    reason: str
    text: str


Item = Line | Refused | LeftOut


class Unwanted(Exception):
    """Raised by a `Parse` for a row that is not wanted; its text is the reason."""


def numbered(items: Iterator[Item]) -> Iterator[Item]:
    """The same, counted from 1."""
    return (replace(item, number=number) for number, item in enumerate(items, 1))


def named(items: Iterator[Item], file: str) -> Iterator[Item]:
    """The same; a reason says in which file of a folder, and on which line of it, where that is
    known."""
    for item in items:
        if isinstance(item, Refused) and not item.reason.startswith(file):
            line = f", line {item.number}" if item.number else ""
            yield replace(item, reason=f"{file}{line}: {item.reason}")
        else:
            yield item


class Source(Protocol):
    """One format. Sources get a path and return data; they know no database."""

    example: str
    """A line of the format, shown by `--help`."""

    def claims(self, row: Row) -> bool:
        """Whether an object with these keys is of this format."""

    def read(self, path: Path, seen: Seen) -> Iterator[Item]:
        """Every item of the file in order, in constant memory; `seen` is told the position in bytes
        now and then.

        Raises InputError where the file as a whole cannot be read.
        """


@dataclass(frozen=True)
class JsonLines:
    """A source of rows: `parse(row)` gives the records of each. JSON lines, or what amounts to them
    (see `rowfile.py`).

    `beside(path)` gives the `parse` of a format whose rows say something only together with another
    file next to it; `missing(path)` says which such file is not there.
    """

    parse: Parse
    claims: Callable[[Row], bool]
    example: str
    beside: Callable[[Path], Parse] | None = None
    missing: Callable[[Path], str | None] | None = None

    def read(self, path: Path, seen: Seen) -> Iterator[Item]:
        """See Source."""
        yield from self.items(rows(path, seen), self.beside(path) if self.beside else self.parse)

    def items(self, found: Iterator[Found], parse: Parse) -> Iterator[Item]:
        """The item of every row."""
        for one in found:
            yield (
                Refused(one.number, one.reason, one.text)
                if one.row is None
                else self.item(one.number, one.row, one.text, parse)
            )

    def item(self, number: int, row: dict[str, Any], text: str, parse: Parse | None = None) -> Item:
        """The item of one row."""
        try:
            return Line(number, (parse or self.parse)(row), text)
        except ValidationError as error:
            return Refused(number, explain(error), text)
        except Unreadable as error:
            return Refused(number, str(error), text)
        except Unwanted as unwanted:
            return LeftOut(number, str(unwanted), text)
