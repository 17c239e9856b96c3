"""Rows of CSV files (with a header line) and of Parquet files, as streams in constant memory.

CSV cells are texts and an empty one is null; the separator is the one of , ; tab | that the header holds most often. In Parquet NaN is
null, as pandas writes it. Not here: what the columns mean (`mapping.py`).
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from thumbwheel.capture.lines import LONGEST, SHOWN, Seen, opened
from thumbwheel.core.errors import InputError

Cells = tuple[int, dict[str, Any], str, str]
"""Line number, the row, its text, and why it cannot be taken (empty: it can)."""
SEPARATORS = ",;\t|"
_MAGIC = b"PAR1"
_EVERY = 200
_BATCH = 500


def is_csv(path: Path) -> bool:
    """Whether the name says so."""
    return path.name.lower().removesuffix(".gz").endswith((".csv", ".tsv"))


def is_parquet(path: Path) -> bool:
    """Whether the first bytes say so; False where they cannot be read, which is found out by whoever reads the file."""
    try:
        with path.open("rb") as file:
            return file.read(4) == _MAGIC
    except OSError:
        return False


def columns_of(path: Path, container: str) -> list[str]:
    """The names of the columns of a table, "csv" or "parquet"; raises InputError where it is none."""
    if container == "csv":
        with opened(path) as (_, stream):
            return [name for name in _header(path, io.TextIOWrapper(stream, "utf-8", "surrogateescape", newline=""))[0] if name]
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return list(pq.read_schema(path).names)
    except (OSError, pa.ArrowException) as error:
        raise _no_parquet(path, error) from None


def csv_rows(path: Path, seen: Seen) -> Iterator[Cells]:
    """Every record after the header that is not blank, numbered by the line on which it begins."""
    with opened(path) as (raw, stream):
        text = io.TextIOWrapper(stream, "utf-8", "surrogateescape", newline="")
        header, separator = _header(path, text)
        csv.field_size_limit(LONGEST)
        taken: list[str] = []
        reader = csv.reader(_noted(text, taken), delimiter=separator, strict=True)
        count = found = 0
        while True:
            number = reader.line_num + 2
            taken.clear()
            try:
                cells = next(reader)
            except StopIteration:
                break
            except csv.Error as error:
                found += 1
                yield number, {}, _shown(taken), f"it is no CSV: {error}"
                continue
            except (OSError, EOFError) as error:
                raise InputError(f"file {str(path)!r}", f"it breaks off ({error})", "What was read before is kept; repair it") from None
            count += 1
            if count % _EVERY == 0:
                seen(raw.tell())
            if any(cells):
                found += 1
                yield number, *_record(header, cells, _shown(taken))
        seen(raw.tell())
        if not found:
            raise InputError(f"file {str(path)!r}", "it has a header and no rows", "Give a file with rows")


def _header(path: Path, text: io.TextIOWrapper) -> tuple[list[str], str]:
    line = text.readline(LONGEST).removeprefix("\ufeff")
    separator = max(SEPARATORS, key=line.count)
    names = [name.strip() for name in next(csv.reader([line], delimiter=separator), [])]
    why = "it is empty" if not any(names) else ""
    twice = next((name for name in names if name and names.count(name) > 1), None)
    why = f"its header has the column {twice!r} twice" if twice else why
    why = "its header is not UTF-8" if not why and _escaped(line) else why
    why = f"it begins with {line[:40].strip()!r}, not with the names of columns" if not why and line.lstrip()[:1] in "{[" else why
    if why:
        raise InputError(f"file {str(path)!r}", why, "Give a CSV file whose first line names each column once, in UTF-8")
    return names, separator


def _noted(text: io.TextIOWrapper, taken: list[str]) -> Iterator[str]:
    """The lines; `taken` holds those of the record that is being read."""
    while line := text.readline(LONGEST):
        taken.append(line)
        yield line


def _shown(taken: list[str]) -> str:
    return "".join(taken).rstrip("\r\n").encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _record(header: list[str], cells: list[str], text: str) -> tuple[dict[str, Any], str, str]:
    if any(map(_escaped, cells)):
        return {}, text, "it is not UTF-8"
    if len(cells) != len(header):
        return {}, text, f"it has {len(cells)} cells, the header names {len(header)} columns"
    return {name: cell or None for name, cell in zip(header, cells, strict=True) if name}, text, ""


def _escaped(text: str) -> bool:
    return any("\ud800" <= letter <= "\udfff" for letter in text) if not text.isascii() else False


def parquet_rows(path: Path, seen: Seen) -> Iterator[Cells]:
    """Every row, numbered from 1; a row whose cells are no JSON values (binary data) is refused."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        size = path.stat().st_size
        with pq.ParquetFile(path) as file:
            total, number = file.metadata.num_rows, 0
            for batch in file.iter_batches(batch_size=_BATCH):
                for row in _timed(batch).to_pylist():
                    number += 1
                    yield number, *_values(row)
                seen(size * number // max(total, 1))
    except (OSError, pa.ArrowException) as error:
        raise _no_parquet(path, error) from None
    if not number:
        raise InputError(f"file {str(path)!r}", "it holds no rows", "Give a file with rows")


def _timed(batch: Any) -> Any:
    """Times to the microsecond: Python has no shorter ones, and raises for them."""
    import pyarrow as pa

    kinds = [one.type if not pa.types.is_timestamp(one.type) else pa.timestamp("us", one.type.tz) for one in batch.schema]
    return pa.table([one.cast(kind, safe=False) for one, kind in zip(batch.columns, kinds, strict=True)], names=batch.schema.names)


def _no_parquet(path: Path, error: Exception) -> InputError:
    return InputError(f"file {str(path)!r}", f"it is no readable Parquet file ({error})", "Check the path, or write it again")


def _values(row: dict[str, Any]) -> tuple[dict[str, Any], str, str]:
    try:
        plain = {key: _plain(value) for key, value in row.items()}
    except TypeError as error:
        return {}, str(row)[:SHOWN], str(error)
    return plain, json.dumps(plain, ensure_ascii=False), ""


def _plain(value: Any) -> Any:
    """`value` as JSON has it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return _plain(float(value))
    if value is None or isinstance(value, str | bool | int):
        return value
    raise TypeError(f"it holds {type(value).__name__} data, not text or numbers")
