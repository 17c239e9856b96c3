"""Rows in files: the columns of a row class, Parquet in and out, and spill files, with which a
build sorts more rows than memory holds.

Text, numbers, booleans and lists of them are columns of their own type; every other value is JSON
text. A row id is a hash, so the buckets of a spill, by the first character of the id, are of about
one size. Each is sorted alone, without a merge.
"""

from __future__ import annotations

import hashlib
import json
import types
import typing
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic_core

from thumbwheel.core import ids
from thumbwheel.core.errors import StorageError
from thumbwheel.core.files import unwritable
from thumbwheel.core.stored_json import parsed
from thumbwheel.datasets.types import Row

if TYPE_CHECKING:
    import pyarrow as pa

BUILDING = "building-"
"""Prefix of the folders in the home in which files are built."""
PARTS = "parts"
"""Folder of the bucket with what hosts have collected for datasets under construction."""
READ_BATCH = 1024
"""Rows that are decoded at once."""
ROWS_IN_MEMORY = 20_000
"""Rows that a spill has in memory before it writes them."""
PREFIX = len("row_") + 1
"""Characters of a row id that name its bucket."""
DIGEST = "_digest"
"""Column of a spill: sha256 of the row before anything was fitted."""
PLAIN = (str, int, float, bool)


class RowColumns:
    """The columns of a row class in a file."""

    def __init__(self, row_type: type[Row]) -> None:
        self.row_type = row_type
        self.kinds = {name: _kind(kind) for name, kind in typing.get_type_hints(row_type).items()}
        self.names = list(self.kinds)
        self._json = [position for position, kind in enumerate(self.kinds.values()) if kind is None]
        self._values: Callable[[Row], tuple[Any, ...]] = attrgetter(*self.names)
        self._last: tuple[Any, str, str] = (None, "", "")

    def schema(self, *extra: tuple[str, Any]) -> pa.Schema:
        """Return the Arrow schema of the columns, and of those named in `extra`."""
        import pyarrow as pa

        plain = {str: pa.string(), float: pa.float64(), bool: pa.bool_(), int: pa.int64()}
        arrow_types = {}
        for name, kind in self.kinds.items():
            if kind is None:
                arrow_types[name] = pa.string()
            elif isinstance(kind, type):
                arrow_types[name] = plain[kind]
            else:
                arrow_types[name] = pa.list_(plain[kind[0]])
        return pa.schema([*arrow_types.items(), *extra])

    def encoded(self, row: Row) -> tuple[list[Any], bytes]:
        """Return (the values of `row` in the order of `names`, sha256 of the row).

        In the values, JSON keeps the order of its keys, because templates show it to a model; in
        the hash the order does not matter.
        """
        values = list(self._values(row))
        hashed = values.copy()
        for position in self._json:
            if values[position] is not None:
                values[position], hashed[position] = self._json_texts(values[position])
        return values, hashlib.sha256(_bytes(hashed)).digest()

    def replaced(self, table: pa.Table, changed: Mapping[str, list[Any]]) -> pa.Table:
        """Return `table` with only the columns of this class; those in `changed` are replaced."""
        import pyarrow as pa

        schema = self.schema()
        columns = []
        for field in schema:
            if field.name in changed:
                columns.append(pa.array(changed[field.name], field.type))
            else:
                columns.append(table.column(field.name))
        return pa.Table.from_arrays(columns, schema=schema)

    def decoded(self, batch: Any) -> Iterator[Any]:
        """Yield the rows of an Arrow batch or table."""
        # a file may be older than a field
        names = [name for name in self.names if name in batch.schema.names]
        columns = {}
        for name in names:
            column = batch.column(name).to_pylist()
            if self.kinds[name] is None:
                column = [parsed(text) for text in column]
            columns[name] = column
        for values in zip(*columns.values(), strict=True):
            yield self.row_type(**dict(zip(names, values, strict=True)))

    def _json_texts(self, value: Any) -> tuple[str, str]:
        """Return the value as JSON, and as canonical JSON. The last one is cached: the rows of one
        prompt come together and share its messages."""
        if value is not self._last[0]:
            self._last = (value, _bytes(value).decode(), ids.canonical(value))
        return self._last[1:]


def write_parquet(path: Path, row_type: type[Row], rows: Sequence[Row]) -> None:
    """Write `rows` to `path`."""
    import pyarrow as pa

    columns = RowColumns(row_type)
    schema = columns.schema()
    encoded = [columns.encoded(row)[0] for row in rows]
    arrays = []
    for position, field in enumerate(schema):
        arrays.append(pa.array([values[position] for values in encoded], field.type))
    write_tables(path, schema, [pa.Table.from_arrays(arrays, schema=schema)])


def write_tables(path: Path, schema: pa.Schema, tables: Iterable[pa.Table]) -> int:
    """Write `tables` one after the other; return how many rows they have."""
    import pyarrow.parquet as pq

    count = 0
    try:
        with pq.ParquetWriter(path, schema, compression="zstd") as writer:
            for table in tables:
                writer.write_table(table)
                count += table.num_rows
    except OSError as error:
        raise _unwritable(path, error) from error
    return count


def read_parquet(path: Path, row_type: type[Row], skip: int = 0) -> Iterator[Any]:
    """Yield the rows of a file that `write_parquet` wrote, behind the first `skip`, streamed."""
    import pyarrow.parquet as pq

    columns = RowColumns(row_type)
    with pq.ParquetFile(path) as file:
        # Whole groups of rows are passed over unread.
        groups = range(file.num_row_groups)
        for group in groups:
            size = file.metadata.row_group(group).num_rows
            if size > skip:
                groups = range(group, file.num_row_groups)
                break
            skip -= size
        else:
            return
        for batch in file.iter_batches(batch_size=READ_BATCH, row_groups=list(groups)):
            yield from columns.decoded(batch.slice(skip))
            skip = max(0, skip - batch.num_rows)


class ParquetRows:
    """The rows of such a file as mappings, field -> value. Every loop reads the file anew, so that
    they are never in memory together."""

    def __init__(self, path: Path, row_type: type[Row]) -> None:
        self._path, self._row_type = path, row_type

    def __len__(self) -> int:
        import pyarrow.parquet as pq

        return int(pq.read_metadata(self._path).num_rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        names = [field.name for field in fields(self._row_type)]
        for row in read_parquet(self._path, self._row_type):
            yield {name: getattr(row, name) for name in names}


class SpillWriter:
    """Writes rows of one class into a folder, from which `SpillReader` reads them in order."""

    def __init__(self, folder: Path, row_type: type[Row]) -> None:
        import pyarrow as pa

        self.columns = RowColumns(row_type)
        self.schema = self.columns.schema((DIGEST, pa.binary(32)))
        self.rows = 0
        self._folder = folder
        self._buckets: dict[tuple[str, str], list[list[Any]]] = defaultdict(list)
        self._writers: dict[tuple[str, str], Any] = {}
        self._in_memory = 0

    def add(self, row: Row) -> None:
        values, digest = self.columns.encoded(row)
        values.append(digest)
        self._buckets[row.split, row.row_id[:PREFIX]].append(values)
        self.rows += 1
        self._in_memory += 1
        if self._in_memory >= ROWS_IN_MEMORY:
            self._write()

    def close(self) -> None:
        """Write the rows that are still in memory, and close the files."""
        self._write()
        for writer in self._writers.values():
            writer.close()

    def _write(self) -> None:
        import pyarrow as pa

        try:
            for key, rows in self._buckets.items():
                if key not in self._writers:
                    self._writers[key] = pa.ipc.new_stream(str(self._path(key)), self.schema)
                columns = zip(*rows, strict=True)
                arrays = [
                    pa.array(list(values), field.type)
                    for values, field in zip(columns, self.schema, strict=True)
                ]
                batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
                self._writers[key].write_batch(batch)
        except OSError as error:
            raise _unwritable(self._folder, error) from error
        self._buckets.clear()
        self._in_memory = 0

    def _path(self, key: tuple[str, str]) -> Path:
        split, prefix = key
        return self._folder / f"{split}-{prefix.encode().hex()}.arrow"


class SpillReader:
    """Reads the rows of several spills of one class together, in the order of their ids; a spill is
    in a folder or in those below it."""

    def __init__(self, folders: Iterable[Path], row_type: type[Row]) -> None:
        self.columns = RowColumns(row_type)
        self._folders = list(folders)

    def tables(self, split: str, names: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yield the rows of `split`, some thousand at once; all columns, or `row_id` and those in
        `names`."""
        import pyarrow as pa

        if names is not None:
            names = list(dict.fromkeys(("row_id", *names)))
        buckets = defaultdict(list)
        for folder in self._folders:
            for path in folder.rglob(f"{split}-*.arrow"):
                buckets[path.name].append(path)
        pending: list[Any] = []
        for _, paths in sorted(buckets.items()):
            bucket = pa.concat_tables([_read(path, names) for path in paths])
            pending.append(bucket.sort_by("row_id"))
            if sum(table.num_rows for table in pending) >= ROWS_IN_MEMORY:
                yield pa.concat_tables(pending)
                pending = []
        if pending:
            yield pa.concat_tables(pending)


def _read(path: Path, names: Sequence[str] | None) -> pa.Table:
    import pyarrow as pa

    with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as stream:
        table = stream.read_all()
        return table if names is None else table.select(names)


def _bytes(value: Any) -> bytes:
    """Return the value as JSON."""
    try:
        return pydantic_core.to_json(value)
    except pydantic_core.PydanticSerializationError:  # half a surrogate pair, which UTF-8 has not
        return json.dumps(value).encode()


def _kind(annotation: Any) -> type | tuple[type] | None:
    """Return the kind of a column: str, int, float or bool; a tuple of one of them for a list; None
    for a value that is stored as JSON. Each may be optional."""
    parts = (annotation,)
    if isinstance(annotation, types.UnionType):
        parts = typing.get_args(annotation)
    inner = [part for part in parts if part is not types.NoneType]
    if len(inner) != 1:
        return None
    if inner[0] in PLAIN:
        return typing.cast("type", inner[0])
    if typing.get_origin(inner[0]) is list:
        (item,) = typing.get_args(inner[0])
        if item in PLAIN:
            return (item,)
    return None


def _unwritable(path: Path, error: OSError) -> StorageError:
    fix = "Free space or name a writable place, then try again"
    return unwritable(f"file {str(path)!r}", error, fix)
