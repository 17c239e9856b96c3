"""Rows of CSV files (with a header line) and of Parquet files, as streams in constant memory.

CSV cells are texts and an empty one is null; the separator is the one of , ; tab | that the header
holds most often. Parquet and Arrow are read by a process of their own (`columnar_child.py`). Not
here: what the columns mean (`mapping.py`).
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

from thumbwheel.core import child
from thumbwheel.importers.columnar_child import (
    ARROW_FILE,
    ARROW_STREAM,
    COLUMNS,
    END,
    FAILED,
    PARQUET,
    POSITION,
    PROBLEM,
)
from thumbwheel.importers.json_text import json_value
from thumbwheel.importers.lines import LONGEST, SHOWN, OnPosition, opened
from thumbwheel.importers.regular_file import file_error, open_regular
from thumbwheel.importers.types import Unreadable
from thumbwheel.importers.unpacked import UnpackedBytes

Cells = tuple[int, dict[str, Any], str, str]
"""Line number, the row, its text, and why it cannot be taken (empty: it can)."""
SEPARATORS = ",;\t|"
MOST_COLUMNS = 10_000
MOST_HEADER_LINES = 20
_SEPARATOR_LINE = re.compile(r'"?sep=([,;\t|])"?', re.IGNORECASE)
MOST_MEMORY = 3 * 2**29
"""Bytes of data of the process that reads Parquet: room for a page of the file, a few rows of it
and the libraries."""
_EVERY = 200


def is_csv(path: Path) -> bool:
    """Return whether the file name ends in .csv or .tsv, also with .gz."""
    return path.name.lower().removesuffix(".gz").endswith((".csv", ".tsv"))


def is_columnar(path: Path) -> bool:
    """Return whether the first bytes are those of Parquet or Arrow. Raises InputError if it is not
    a regular file."""
    with open_regular(path) as file:
        return file.read(6).startswith((PARQUET, ARROW_FILE, ARROW_STREAM))


def columns_of(path: Path, container: str) -> list[str]:
    """Return the column names of a table, "csv" or "parquet". Raises InputError if it is not a
    table."""
    if container == "csv":
        with opened(path) as (_, stream):
            text = io.TextIOWrapper(stream, "utf-8", "surrogateescape", newline="")
            names, _separator, _lines = _header(path, text)
            return [name for name in names if name]
    with _parquet(path) as (names, _):
        return names


def csv_rows(path: Path, on_position: OnPosition) -> Iterator[Cells]:
    """Yield every record after the header that is not blank, numbered by the line on which it
    begins."""
    with opened(path) as (raw, stream):
        text = io.TextIOWrapper(stream, "utf-8", "surrogateescape", newline="")
        header, separator, header_lines = _header(path, text)
        csv.field_size_limit(LONGEST)
        lines = _RecordLines(text, header_lines)
        reader = csv.reader(lines, delimiter=separator, strict=True)
        count = 0
        has_rows = False
        while True:
            number = lines.begin_record()
            try:
                cells = next(reader)
            except StopIteration:
                break
            except csv.Error as error:
                has_rows = True
                yield number, {}, lines.shown(), _csv_problem(error, lines.shown())
                continue
            except (OSError, EOFError) as error:
                raise file_error(
                    path, f"it breaks off ({error})", "What was read before is kept; repair it"
                ) from None
            count += 1
            if count % _EVERY == 0:
                on_position(raw.tell())
            if any(cells):
                has_rows = True
                yield number, *_record(header, cells, lines.shown())
        on_position(raw.tell())
        if not has_rows:
            raise file_error(path, "it has a header and no rows", "Give a file with rows")


def _header(path: Path, text: io.TextIOWrapper) -> tuple[list[str], str, int]:
    """Return (column names, separator, number of lines read). Excel's first line `sep=;` sets the
    separator; a name in quotes may span several lines. Raises InputError."""
    line = text.readline(LONGEST).removeprefix("\ufeff")
    stated = _SEPARATOR_LINE.fullmatch(line.strip("\r\n"))
    if stated:
        line = text.readline(LONGEST)
    separator = stated[1] if stated else max(SEPARATORS, key=line.count)
    if line.count(separator) >= MOST_COLUMNS:  # more cells than that are not even taken apart
        _too_wide(path, line.count(separator) + 1)
    lines = [line]
    while sum(part.count('"') for part in lines) % 2 and len(lines) < MOST_HEADER_LINES:
        following = text.readline(LONGEST)
        if not following:
            break
        lines.append(following)
    cells = next(csv.reader(lines, delimiter=separator), [])
    names = [" ".join(name.split()) for name in cells]
    why = ""
    if not any(names):
        why = "it is empty"
    elif _escaped(line):
        why = "its header is not UTF-8"
    elif line.lstrip()[:1] in "{[":
        why = f"it begins with {line[:40].strip()!r}, not with the names of columns"
    if why:
        raise file_error(
            path, why, "Give a CSV file whose first line names each column once, in UTF-8"
        )
    _check_columns(path, names)
    return names, separator, len(lines) + bool(stated)


def _check_columns(path: Path, names: list[Any]) -> None:
    if len(names) > MOST_COLUMNS:
        _too_wide(path, len(names))
    twice = [name for name, count in Counter(map(str, names)).items() if name and count > 1]
    if twice:
        raise file_error(
            path,
            f"it has the column {twice[0]!r} twice",
            "Give a table that names each column once",
        )


def _too_wide(path: Path, count: int) -> None:
    why = f"it has {count:,} columns, more than the {MOST_COLUMNS:,} that are taken"
    raise file_error(path, why, "Keep the columns that hold prompts, answers and ratings")


class _RecordLines:
    """The lines of the records, for csv.reader; a record of more than LONGEST characters ends as a
    csv.Error and is not held."""

    def __init__(self, text: io.TextIOWrapper, header_lines: int) -> None:
        self._text = text
        self._number = header_lines
        self._record: list[str] = []
        self._length = 0
        """Characters of the record so far: a sum over its lines for each of them would be
        quadratic."""

    def __iter__(self) -> _RecordLines:
        return self

    def __next__(self) -> str:
        line = self._text.readline(LONGEST)
        if not line:
            raise StopIteration
        self._number += 1
        complete = line.endswith(("\n", "\r")) or len(line) < LONGEST
        while not complete:
            rest = self._text.readline(LONGEST)
            complete = rest.endswith(("\n", "\r")) or len(rest) < LONGEST
        self._length += len(line)
        if self._length >= LONGEST:
            self._record = [self.shown()[:SHOWN] or line[:SHOWN]]
            self._length = len(self._record[0])
            raise csv.Error(
                f"it has more than the {LONGEST:,} characters that one record may have; only its "
                "beginning is shown"
            )
        self._record.append(line)
        return line

    def begin_record(self) -> int:
        """Forget the previous record and return the number of the line on which the next one
        begins."""
        self._record = []
        self._length = 0
        return self._number + 1

    def shown(self) -> str:
        """Return the text of the record, with bytes that are not UTF-8 as \\xNN."""
        return (
            "".join(self._record)
            .rstrip("\r\n")
            .encode("utf-8", "surrogateescape")
            .decode("utf-8", "backslashreplace")
        )


def _record(header: list[str], cells: list[str], text: str) -> tuple[dict[str, Any], str, str]:
    if any(map(_escaped, cells)):
        why = "it is not UTF-8; Excel writes Windows-1252: iconv -f WINDOWS-1252 -t UTF-8 FILE"
        return {}, text, why
    if len(cells) != len(header):
        return {}, text, f"it has {len(cells)} cells, the header names {len(header)} columns"
    return {name: cell or None for name, cell in zip(header, cells, strict=True) if name}, text, ""


def _csv_problem(error: csv.Error, text: str) -> str:
    """Return why a record is not CSV, with a hint if quotes are escaped as in C."""
    hint = ""
    if '\\"' in text:
        hint = '; a quote inside quotes is written twice ("") in CSV, not as \\"'
    return f"it is no CSV: {error}{hint}"


def _escaped(text: str) -> bool:
    """Return whether the text has bytes that were not UTF-8 ("surrogateescape")."""
    return not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text)


def columnar_rows(path: Path, on_position: OnPosition) -> Iterator[Cells]:
    """Yield every row, numbered from 1; a row with cells that are not JSON values (binary data) has
    the reason in place of its values."""
    number = 0
    unpacked = UnpackedBytes(path, path.stat().st_size)
    with _parquet(path) as (_, answers):
        for kind, content in answers:
            if kind == POSITION:
                on_position(int(content))
                continue
            number += 1
            unpacked.add(len(content))
            text = content.decode("utf-8", "backslashreplace")
            if kind == PROBLEM:
                shown, why = json.loads(text)
                yield number, {}, shown, why
                continue
            try:
                yield number, json_value(content), text, ""
            except Unreadable as error:
                yield number, {}, text[:SHOWN], str(error)
    if not number:
        raise file_error(path, "it holds no rows", "Give a file with rows")


@contextmanager
def _parquet(path: Path) -> Iterator[tuple[list[str], Iterator[tuple[bytes, bytes]]]]:
    """Yield (column names, the answers that follow) of a child process that reads the file. Raises
    InputError."""
    with open_regular(path) as file:
        process = child.start(
            "thumbwheel.importers.columnar_child", str(LONGEST), str(MOST_MEMORY), stdin=file
        )
        try:
            answers = _answers(path, process)
            kind, names = next(answers, (END, b""))
            columns = [str(name) for name in json.loads(names)] if kind == COLUMNS else []
            _check_columns(path, columns)
            yield columns, answers
        finally:
            child.end(process)


def _answers(path: Path, process: Popen[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield the answers of the child until it ends. Raises InputError if it failed or crashed."""
    assert process.stdout is not None  # noqa: S101 - narrows the type
    while line := process.stdout.readline():
        kind, content = line[:1], line[1:].rstrip(b"\n")
        if kind == END:
            return
        if kind == FAILED:
            raise file_error(
                path,
                content.decode(),
                "Check the path, or write it again in smaller pages and row groups",
            )
        yield kind, content
    why = "it is no readable Parquet or Arrow file: the process that reads it broke down"
    raise file_error(path, why, "Write it again with another program")
