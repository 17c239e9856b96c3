"""Rows in files: the columns of a row class, Parquet in and out, and the spill in which a build
sorts more rows than memory holds.

Text, numbers, truth values and lists of them are columns of their own type; every other value is
JSON text. A row id is a hash, so the buckets of a spill, by the first character of the id, are of
one size, and each is sorted alone: no merge, and linear in the rows.
"""

from __future__ import annotations

import hashlib
import json
import types
import typing
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pydantic_core

from thumbwheel.core import ids
from thumbwheel.core.errors import StorageError
from thumbwheel.datasets.types import Row
from thumbwheel.db.columns import parsed

if TYPE_CHECKING:
    import pyarrow as pa

READ = 1024
"""Rows that are decoded at once."""
HELD = 20_000
"""Rows that a spill holds in memory before it writes them."""
PREFIX = len("row_") + 1
"""Characters of a row id that name its bucket."""
DIGEST = "_digest"
"""Column of a spill: sha256 of the row as it was made, before anything was fitted."""
PLAIN = (str, int, float, bool)


class Columns:
    """How the fields of a row class lie in a file."""

    def __init__(self, row_type: type[Row]) -> None:
        self.row_type = row_type
        self.kinds = {name: _kind(kind) for name, kind in typing.get_type_hints(row_type).items()}
        self.names = list(self.kinds)
        self._json = [place for place, kind in enumerate(self.kinds.values()) if kind is None]
        self._values: Callable[[Row], tuple[Any, ...]] = attrgetter(*self.names)
        self._last: tuple[Any, str, str] = (None, "", "")

    def schema(self, *extra: tuple[str, Any]) -> pa.Schema:
        """The types of the columns, and of those named in `extra`."""
        import pyarrow as pa

        plain = {str: pa.string(), float: pa.float64(), bool: pa.bool_(), int: pa.int64()}
        found = {
            name: pa.string()
            if kind is None
            else plain[kind]
            if isinstance(kind, type)
            else pa.list_(plain[kind[0]])
            for name, kind in self.kinds.items()
        }
        return pa.schema([*found.items(), *extra])

    def encoded(self, row: Row) -> tuple[list[Any], bytes]:
        """(the values of `row` in the order of `names`, sha256 of the row); the keys of JSON keep
        their order in the values, which templates show to a model, and do not matter in the
        hash."""
        values = list(self._values(row))
        hashed = values.copy()
        for place in self._json:
            if values[place] is not None:
                values[place], hashed[place] = self._text(values[place])
        return values, hashlib.sha256(_bytes(hashed)).digest()

    def replaced(self, table: pa.Table, changed: Mapping[str, list[Any]]) -> pa.Table:
        """`table` with the columns of this class only, those in `changed` in their place."""
        import pyarrow as pa

        schema = self.schema()
        found = [
            pa.array(changed[field.name], field.type)
            if field.name in changed
            else table.column(field.name)
            for field in schema
        ]
        return pa.Table.from_arrays(found, schema=schema)

    def decoded(self, batch: Any) -> Iterator[Any]:
        """The rows of an Arrow batch or table."""
        names = [
            name for name in self.names if name in batch.schema.names
        ]  # a file may be older than a field
        columns = {name: batch.column(name).to_pylist() for name in names}
        for name in (self.names[place] for place in self._json if self.names[place] in columns):
            columns[name] = [parsed(text) for text in columns[name]]
        for values in zip(*columns.values(), strict=True):
            yield self.row_type(**dict(zip(names, values, strict=True)))

    def _text(self, value: Any) -> tuple[str, str]:
        """As JSON, and as canonical JSON; the rows of one prompt come together and share its
        messages."""
        if value is not self._last[0]:
            self._last = (value, _bytes(value).decode(), ids.canonical(value))
        return self._last[1:]


def write_parquet(path: Path, row_type: type[Row], rows: Sequence[Row]) -> None:
    """Write `rows` to `path`."""
    import pyarrow as pa

    columns = Columns(row_type)
    schema = columns.schema()
    values = (
        zip(*(columns.encoded(row)[0] for row in rows), strict=True)
        if rows
        else ([] for _ in schema)
    )
    arrays = [pa.array(list(one), field.type) for one, field in zip(values, schema, strict=True)]
    write_tables(path, schema, [pa.Table.from_arrays(arrays, schema=schema)])


def write_tables(path: Path, schema: pa.Schema, tables: Iterable[pa.Table]) -> int:
    """Write `tables` one after the other and return how many rows they have."""
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


def read_parquet(path: Path, row_type: type[Row]) -> Iterator[Any]:
    """The rows of a file that `write_parquet` wrote, streamed."""
    import pyarrow.parquet as pq

    columns = Columns(row_type)
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=READ):
            yield from columns.decoded(batch)


class SpillWriter:
    """Rows of one class, on their way into a folder; `SpillReader` reads them back."""

    def __init__(self, folder: Path, row_type: type[Row]) -> None:
        import pyarrow as pa

        self.columns = Columns(row_type)
        self.schema = self.columns.schema((DIGEST, pa.binary(32)))
        self.rows = 0
        self._folder = folder
        self._held: dict[tuple[str, str], list[list[Any]]] = defaultdict(list)
        self._writers: dict[tuple[str, str], Any] = {}
        self._waiting = 0

    def add(self, row: Row) -> None:
        """Take one row."""
        values, digest = self.columns.encoded(row)
        values.append(digest)
        self._held[row.split, row.row_id[:PREFIX]].append(values)
        self.rows += 1
        self._waiting += 1
        if self._waiting >= HELD:
            self._write()

    def close(self) -> None:
        """Write what is still held; afterwards it is only read."""
        self._write()
        for writer in self._writers.values():
            writer.close()

    def _write(self) -> None:
        import pyarrow as pa

        try:
            for key, rows in self._held.items():
                if key not in self._writers:
                    self._writers[key] = pa.ipc.new_stream(str(self._path(key)), self.schema)
                arrays = [
                    pa.array(list(one), field.type)
                    for one, field in zip(zip(*rows, strict=True), self.schema, strict=True)
                ]
                self._writers[key].write_batch(
                    pa.RecordBatch.from_arrays(arrays, schema=self.schema)
                )
        except OSError as error:
            raise _unwritable(self._folder, error) from error
        self._held.clear()
        self._waiting = 0

    def _path(self, key: tuple[str, str]) -> Path:
        return self._folder / f"{key[0]}-{key[1].encode().hex()}.arrow"


class SpillReader:
    """The rows that several spills of one class hold together, in the order of their ids, split by
    split."""

    def __init__(self, folders: Iterable[Path], row_type: type[Row]) -> None:
        self.columns = Columns(row_type)
        self._folders = list(folders)

    def tables(self, split: str, names: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The rows of `split`, some thousand at once; all columns, or those named."""
        import pyarrow as pa

        names = None if names is None else list(dict.fromkeys(("row_id", *names)))
        waiting: list[Any] = []
        for name in sorted(
            {path.name for folder in self._folders for path in folder.glob(f"{split}-*.arrow")}
        ):
            found = [
                _read(folder / name, names) for folder in self._folders if (folder / name).exists()
            ]
            waiting.append(pa.concat_tables(found).sort_by("row_id"))
            if sum(table.num_rows for table in waiting) >= HELD:
                yield pa.concat_tables(waiting)
                waiting = []
        if waiting:
            yield pa.concat_tables(waiting)


def _read(path: Path, names: list[str] | None) -> pa.Table:
    import pyarrow as pa

    with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as stream:
        table = stream.read_all()
        return table if names is None else table.select(names)


def _bytes(value: Any) -> bytes:
    """JSON; the quick way cannot write half a surrogate pair."""
    try:
        return pydantic_core.to_json(value)
    except pydantic_core.PydanticSerializationError:
        return json.dumps(value).encode()


def _kind(annotation: Any) -> type | tuple[type] | None:
    """str, int, float or bool, or a list of one of them, (None beside it allowed); None for what is
    kept as JSON."""
    parts = (
        typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    )
    inner = [part for part in parts if part is not types.NoneType]
    if len(inner) != 1:
        return None
    if inner[0] in PLAIN:
        return typing.cast("type", inner[0])
    items = typing.get_args(inner[0]) if typing.get_origin(inner[0]) is list else ()
    return (items[0],) if items and items[0] in PLAIN else None


def _unwritable(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"file {str(path)!r}",
        error.strerror or str(error),
        "Free space or name a writable place, then try again",
    )
