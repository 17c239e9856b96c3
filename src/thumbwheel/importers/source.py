"""The contract of an import source: it reads a path as a stream and yields numbered items, one for
every line that is not blank.

Lives here: the items, the protocols, and what most sources are, a meaning of the keys of a row. Not
here: the meanings (`sources/`), what holds the rows, be it JSON lines, an array, CSV or Parquet
(`rowfile.py`), what is done with the items (`ingest.py`). To add a source: one file in `sources/`
with a `Source`, usually `JsonLines(parse, claims, example, reason=...)`, and a line in the table of
that folder. What else a source may offer is a protocol of its own below: it has the method, or it
has not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from pydantic import ValidationError

from thumbwheel.importers.lines import OnPosition
from thumbwheel.importers.mapping import ColumnMapping, TableColumns
from thumbwheel.importers.marks import Scales
from thumbwheel.importers.rating_filter import RatingFilter
from thumbwheel.importers.regular_file import files_below, read_regular
from thumbwheel.importers.rowfile import HOPELESS, FileRow, read_rows, row_of, text_of
from thumbwheel.importers.server_api import Connection
from thumbwheel.importers.types import AnyRecord, Records, Unreadable, explain

__all__ = [
    "DEFAULT_REASON",
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
    "Unreadable",
    "Unwanted",
    "files_below",
    "item_of",
    "items_of_files",
    "read_regular",
    "row_of",
    "text_of",
]

DEFAULT_REASON = "its keys"
"""The reason of a source that gives none of its own (`Recognised`)."""
Row = Mapping[str, Any]
Parse = Callable[[dict[str, Any]], list[AnyRecord]]
"""The records of a row, `Records` where there is something to remark; raises Unreadable or
ValidationError."""


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

    def as_json(self) -> str:
        """Return the line for a file of refused lines."""
        return json.dumps(
            {"number": self.number, "reason": self.reason, "text": self.text}, ensure_ascii=False
        )


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


def numbered(items: Iterable[Item]) -> Iterator[Item]:
    """Return the same items, numbered from 1."""
    return (replace(item, number=number) for number, item in enumerate(items, 1))


def items_of_files(
    folder: Path,
    files: Iterable[Path],
    read: Callable[[Path], Iterator[Item]],
    on_position: OnPosition,
) -> Iterator[Item]:
    """Yield the items that `read` yields for each of these files of a folder, numbered on.

    A reason names the file, and the line in it if known. An error from `read` ends the reading; to
    continue with the next file, yield `Refused(0, error.why, file.name)` instead.
    """
    number = read_bytes = 0
    for file in files:
        name = file.relative_to(folder).as_posix()
        for item in read(file):
            number += 1
            if isinstance(item, Refused) and not item.reason.startswith(name):
                line = f", line {item.number}" if item.number else ""
                item = replace(item, reason=f"{name}{line}: {item.reason}")
            yield replace(item, number=number)
        read_bytes += file.stat().st_size
        on_position(read_bytes)


def item_of(number: int, text: str, records: Callable[[], list[AnyRecord]]) -> Item:
    """Return the line with the records that `records` returns, or the refusal for the error that it
    raises."""
    try:
        understood = records()
        remarks = understood.remarks if isinstance(understood, Records) else ()
        return Line(number, understood, text, remarks)
    except ValidationError as error:
        return Refused(number, explain(error), text)
    except Unreadable as error:
        return Refused(number, str(error), text)
    except Unwanted as unwanted:
        return LeftOut(number, str(unwanted), text)


class Source(Protocol):
    """One format. Sources get a path and return data; they know no database."""

    example: str
    """A line of the format."""
    about: str
    """What it reads, for the help of `import`; empty where that help names the source itself."""

    def claims(self, row: Row) -> bool:
        """Return whether an object with these keys is in this format."""

    def read(self, path: Path, on_position: OnPosition) -> Iterator[Item]:
        """Yield every item of the file in order, in constant memory; call `on_position` now and
        then with the position in bytes.

        Raises InputError if the file as a whole cannot be read.
        """


@runtime_checkable
class Recognised(Protocol):
    """A source that gives a reason for the rows that it claims."""

    reason: str
    """Follows the source's name if a file is recognised, such as "an instruction with its
    output"."""


@runtime_checkable
class ReadsLocations(Protocol):
    """A source that reads folders, or the address of a database (`location.Address`), beside files
    or in place of them. Its `read` gets that path; for a folder it is usually `items_of_files` of
    `files_below`."""

    def claims_location(self, path: Path) -> bool:
        """Return whether this source reads the folder or the address."""


@runtime_checkable
class ReadsServers(Protocol):
    """A source that reads a running server by its API (`server_api.py`), where the path is the
    address of one."""

    def connected(self, connection: Connection) -> Source:
        """Return the same source with a key, and with what earlier imports of the server stored."""


@runtime_checkable
class Addressed(Protocol):
    """A source whose address may be in an environment variable."""

    address_variable: str


@runtime_checkable
class ReadsWholeTables(Protocol):
    """A source that reads all rows of a database's table each time, so that a row which an earlier
    import read and this one did not has left the table."""

    reads_whole_tables: bool


@runtime_checkable
class Mappable(Protocol):
    """A source that takes `--column` and `--scale`."""

    def with_mapping(self, columns: Mapping[str, str], scales: Scales) -> Source:
        """Return the same source with these columns (meaning -> column) and scales (name ->
        ends)."""


@runtime_checkable
class Tabular(Protocol):
    """A source of tables with any columns."""

    def table(self, path: Path) -> TableColumns:
        """Return the columns of the file. Raises InputError if it has none."""

    def mapping(self, path: Path) -> ColumnMapping:
        """Return the meaning of the columns of the file."""


@runtime_checkable
class ReadsColumns(Protocol):
    """A source whose rows are read by what their columns are taken for."""

    def mapped(self, path: Path) -> tuple[Source, list[str]]:
        """Return the same source with the columns of this file mapped, and a line for people about
        each. Raises InputError if they cannot be mapped."""


@runtime_checkable
class OfAgents(Protocol):
    """A source whose data is of several agents."""

    def of_agent(self, name: str) -> Source:
        """Return the same source for the rows of one agent. Raises InputError for a name that no
        agent can have."""


@runtime_checkable
class Reviewable(Protocol):
    """A source whose lines are no cases until somebody reviewed them."""

    def as_gold(self) -> Source:
        """Return the same source with every line as a case."""


@runtime_checkable
class Rated(Protocol):
    """A source whose ratings have tags and confidences."""

    def with_ratings(self, ratings: RatingFilter) -> Source:
        """Return the same source with these ratings only."""


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
    about: str = ""
    reason: str = DEFAULT_REASON

    def read(self, path: Path, on_position: OnPosition) -> Iterator[Item]:
        parse = self.beside(path) if self.beside else self.parse
        yield from self.items(read_rows(path, on_position), parse)

    def items(self, rows: Iterator[FileRow], parse: Parse) -> Iterator[Item]:
        """Yield the item of every row."""
        for row in rows:
            if row.row is None:
                yield Refused(row.number, row.reason, row.text)
            else:
                yield self.item(row.number, row.row, row.text, parse)

    def item(self, number: int, row: dict[str, Any], text: str, parse: Parse | None = None) -> Item:
        """Return the item of one row."""
        return item_of(number, text, partial(parse or self.parse, row))
