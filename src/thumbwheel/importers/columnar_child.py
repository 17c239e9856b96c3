"""Reads a Parquet or Arrow file in a process of its own: `python -m
thumbwheel.importers.columnar_child LONGEST MEMORY < FILE`.

A few bytes of Parquet can stand for gigabytes (dictionaries, run lengths, compression), and a
library in C ends the process that a broken file surprises. So the memory of this process is
bounded, and it answers in lines: a letter, then JSON. COLUMNS come first, then a ROW or a PROBLEM
for every row with a POSITION now and then, and END. NaN is null, as pandas writes it. Not here: who
starts it (`tables.py`).
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from io import BufferedReader
from typing import Any

from pydantic_core import to_json

from thumbwheel.core.child import limit_memory
from thumbwheel.importers.lines import SHOWN

COLUMNS, ROW, PROBLEM, POSITION, END, FAILED = b"C", b"R", b"P", b"B", b"E", b"F"
"""Names; a row; [shown text, reason] of a row that cannot be taken; the bytes read so far; the end;
why the file cannot be read."""
BATCH = 64
ROWS_OF_SMALL = 100_000
"""Rows of any file at most, unless it is larger: then at most one a byte. Columns without a value
take no byte at all, so that a few kilobytes could be millions of rows."""
PARQUET, ARROW_FILE, ARROW_STREAM = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"
"""First bytes of the formats."""


def main(longest: int, memory: int) -> None:
    """Answer on standard output."""
    limit_memory(memory)
    os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # the others set aside more than they need
    out = sys.stdout.buffer
    try:
        for kind, content in _answers(longest):
            out.write(kind + content + b"\n")
        out.write(END + b"\n")
    except MemoryError:
        limit = f"{memory / 2**30:.1f} GB of memory that one file may take"
        out.write(FAILED + f"reading it takes more than the {limit}\n".encode())
    except BrokenPipeError:
        os._exit(0)  # nobody listens any more
    except Exception as error:  # noqa: BLE001 - whatever a library says about a strange file is the answer
        reason = " ".join(str(error).split())[:500]
        answer = f"it is no readable Parquet or Arrow file ({reason})\n"
        out.write(FAILED + answer.encode("utf-8", "backslashreplace"))
    out.flush()


def _answers(longest: int) -> Iterator[tuple[bytes, bytes]]:
    size = os.fstat(0).st_size
    file = open(0, "rb")  # noqa: SIM115 - the process ends with it
    magic = file.peek(6)[:6]
    columns, batches, total = _parquet(file) if magic[:4] == PARQUET else _arrow(file, magic)
    yield COLUMNS, json.dumps(columns).encode()
    number, most = 0, max(ROWS_OF_SMALL, size)
    for batch in batches:
        if number + batch.num_rows > most:
            raise ValueError(f"more than {most:,} rows in {size:,} bytes: they can say nothing")
        # a batch of Arrow has as many rows as its writer liked
        for start in range(0, batch.num_rows, BATCH):
            for row in _to_microseconds(batch.slice(start, BATCH)).to_pylist():
                number += 1
                yield _answer(row, longest)
        read = size * number // total if total else file.tell()
        yield POSITION, str(min(size, read)).encode()


def _parquet(file: BufferedReader) -> tuple[list[str], Iterator[Any], int]:
    """Return the column names, the batches and the number of rows of a Parquet file."""
    import pyarrow.parquet as pq

    parquet = pq.ParquetFile(file)
    batches = parquet.iter_batches(batch_size=BATCH, use_threads=False)
    return list(parquet.schema_arrow.names), batches, parquet.metadata.num_rows


def _arrow(file: BufferedReader, magic: bytes) -> tuple[list[str], Iterator[Any], int]:
    """Return the column names and the batches of an Arrow file or stream, and 0, as its number of
    rows is not known."""
    import pyarrow as pa

    if magic == ARROW_FILE:
        reader = pa.ipc.open_file(file)
        batches = (reader.get_batch(index) for index in range(reader.num_record_batches))
        return list(reader.schema.names), batches, 0
    reader = pa.ipc.open_stream(file)
    return list(reader.schema.names), iter(reader), 0


def _to_microseconds(batch: Any) -> Any:
    """Return a table of the batch with times cut to microseconds: Python has no finer ones, and
    raises for them."""
    import pyarrow as pa

    columns = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if pa.types.is_timestamp(field.type):
            column = column.cast(pa.timestamp("us", field.type.tz), safe=False)
        columns.append(column)
    return pa.table(columns, names=batch.schema.names)


def _answer(row: dict[str, Any], longest: int) -> tuple[bytes, bytes]:
    try:
        text = to_json({key: _cell(key, value) for key, value in row.items()})
    except (TypeError, ValueError, RecursionError) as error:
        return PROBLEM, json.dumps([str(row)[:SHOWN], str(error)]).encode()
    if len(text) > longest:
        why = (
            f"it has {len(text):,} bytes, more than the {longest:,} that one row may have; only "
            "its beginning is shown"
        )
        return PROBLEM, json.dumps([text[:SHOWN].decode("utf-8", "ignore"), why]).encode()
    return ROW, text


def _cell(column: str, value: Any) -> Any:
    """Return a cell as a JSON value. Raises TypeError, which names the column."""
    try:
        return _plain(value)
    except TypeError as error:
        raise TypeError(
            f"column {column!r} holds {error}, not text or numbers; leave it out, or write it as "
            "text"
        ) from None


def _plain(value: Any) -> Any:
    """Return `value` as a JSON value. Raises TypeError if it has none."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        # Arrow gives every object of a column the keys of all; what is null was not there
        parts = {str(key): _plain(part) for key, part in value.items()}
        return {key: part for key, part in parts.items() if part is not None}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return _plain(float(value))
    if value is None or isinstance(value, str | bool | int):
        return value
    raise TypeError(f"{type(value).__name__} data")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
