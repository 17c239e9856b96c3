"""The contract of an import source: it reads a path as a stream and yields numbered items, one for every line that is not blank.

Lives here: the items, the protocol, and the text format that most sources share, one JSON object a line. Not here: the
formats (`sources/`), what is done with the items (`ingest.py`). To add a source: one file in `sources/` with a `Source`, usually
`JsonLines(parse, claims, example)`, and a line in the table of that folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError
from pydantic_core import from_json

from thumbwheel.capture.lines import Seen, numbered
from thumbwheel.capture.types import CaseRecord, FeedbackRecord, TraceRecord, Unreadable, explain
from thumbwheel.core.errors import InputError

AnyRecord = TraceRecord | FeedbackRecord | CaseRecord
Row = Mapping[str, Any]
HOPELESS = 1000
"""A file whose first lines, as many as this, hold not one JSON object is not read any further."""


@dataclass(frozen=True)
class Line:
    """A line that was understood: its records belong together and are stored together or not at all."""

    number: int
    records: list[AnyRecord]
    text: str


@dataclass(frozen=True)
class Refused:
    """A line that was not: why, and its text, so that nothing is lost."""

    number: int
    reason: str
    text: str


Item = Line | Refused


class Source(Protocol):
    """One format. Sources get a path and return data; they know no database."""

    example: str
    """A line of the format, shown by `--help`."""

    def claims(self, row: Row) -> bool:
        """Whether an object with these keys is of this format."""

    def read(self, path: Path, seen: Seen) -> Iterator[Item]:
        """Every item of the file in order, in constant memory; `seen` is told the position in bytes now and then.

        Raises InputError where the file as a whole cannot be read.
        """


@dataclass(frozen=True)
class JsonLines:
    """A source of one JSON object a line: `parse(row)` gives the records of a row or raises Unreadable or ValidationError."""

    parse: Callable[[dict[str, Any]], list[AnyRecord]]
    claims: Callable[[Row], bool]
    example: str

    def read(self, path: Path, seen: Seen) -> Iterator[Item]:
        """See Source."""
        hopeless = 0
        for number, raw, problem in numbered(path, seen):
            try:
                row = row_of(raw, problem)
            except Unreadable as error:
                hopeless += hopeless >= 0
                if hopeless >= HOPELESS:
                    raise InputError(
                        f"file {str(path)!r}", f"its first {HOPELESS} lines hold not one JSON object", "Give a file with one object a line"
                    ) from None
                yield Refused(number, str(error), text_of(raw))
                continue
            hopeless = -1
            yield self.item(number, row, text_of(raw))

    def item(self, number: int, row: dict[str, Any], text: str) -> Item:
        """The item of one parsed row."""
        try:
            return Line(number, self.parse(row), text)
        except ValidationError as error:
            return Refused(number, explain(error), text)
        except Unreadable as error:
            return Refused(number, str(error), text)


def row_of(raw: bytes, problem: str | None = None) -> dict[str, Any]:
    """The JSON object of a line; raises Unreadable for anything else, NaN and NUL characters included."""
    if problem:
        raise Unreadable(problem)
    try:
        row = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise Unreadable(_json_problem(raw, error)) from None
    if not isinstance(row, dict):
        raise Unreadable(f"it is a JSON {type(row).__name__}, not an object")
    if b"\\u0000" in raw and _has_nul(row):
        raise Unreadable("it holds a NUL character, which a database cannot keep in a text")
    return row


def _json_problem(raw: bytes, error: ValueError) -> str:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as bad:
        return f"it is not UTF-8 (byte {bad.start + 1})"
    hint = "; JSON has no NaN or Infinity" if b"NaN" in raw or b"Infinity" in raw else ""
    return f"it is no JSON: {str(error).replace(' line 1', '')}{hint}"


def _has_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\x00" in value
    if isinstance(value, dict):
        return any(_has_nul(part) for pair in value.items() for part in pair)
    return isinstance(value, list) and any(map(_has_nul, value))


def text_of(raw: bytes) -> str:
    """The line as text; bytes that are not UTF-8 are shown as \\xNN."""
    return raw.decode("utf-8", "backslashreplace")
