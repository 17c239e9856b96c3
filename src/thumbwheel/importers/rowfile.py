"""Rows of a file as a stream, whatever holds them: JSON lines, a JSON array, pretty-printed
objects, CSV with a header, Parquet, Arrow.

Every row is a dict with its number, or is refused with its number and the reason. Lives here: which
container a file is, and JSON. Not here: taking text apart (`lines.py`), tables (`tables.py`), what
the keys of a row mean (`sources/`).
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from thumbwheel.importers.fields import unpacked
from thumbwheel.importers.json_text import HasNul, has_nul, json_value
from thumbwheel.importers.lines import OnPosition, numbered
from thumbwheel.importers.messages import is_chat
from thumbwheel.importers.regular_file import file_error
from thumbwheel.importers.tables import columnar_rows, csv_rows, is_columnar, is_csv
from thumbwheel.importers.types import Unreadable

WRAPPERS = (
    "data",
    "rows",
    "records",
    "items",
    "results",
    "examples",
    "traces",
    "feedback",
    "feedbacks",
    "feedback_data",
    "ratings",
    "annotations",
    "samples",
    "entries",
    "conversations",
    "chats",
    "sessions",
    "interactions",
    "testCases",
    "test_cases",
    "logs",
    "train",
)
"""Keys under which a file or a page has its rows."""
AROUND = frozenset(
    {
        "meta",
        "metadata",
        "pagination",
        "page",
        "limit",
        "count",
        "total",
        "total_count",
        "next",
        "next_cursor",
        "next_page_token",
        "has_more",
        "object",
        "version",
        "status",
        "name",
        "description",
        "title",
        "schema",
        "features",
        "info",
        "links",
        "cursor",
        "success",
        "partial",
        "num_rows_total",
        "num_rows_per_page",
        "exported_at",
        "export_info",
        "first_id",
        "last_id",
        "export_date",
        "created_at",
        "updated_at",
    }
)
"""Keys of what may stand beside them."""
CHATS = frozenset(
    {
        "messages",
        "conversations",
        "conversation",
        "chat",
        "dialogue",
        "dialog",
        "turns",
        "contents",
        "chosen",
        "rejected",
        "rejected_messages",
        "preferred_output",
        "non_preferred_output",
        "prompt",
        "completion",
    }
)
"""Keys of chats, which a table or a database writes as a text."""
NESTED = frozenset(
    {"chat", "data", "meta", "snapshot", "trace", "observations", "images", "videos", "audios"}
)
"""Keys of objects and lists, which a table of a database or CSV writes as a text: the columns of
Open WebUI's own tables, a trace of Langfuse, the files beside a chat."""
TYPED = frozenset({"$oid", "$date", "$numberInt", "$numberLong", "$numberDouble", "$numberDecimal"})
"""Keys of MongoDB's values with their type."""
INDEX = re.compile(r"__index_level_\d+__|Unnamed: \d+")
"""Columns with the index of a table of pandas."""
LONGEST_PYTHON = 2**20
"""Characters of a chat in Python's spelling that are taken apart."""
_most_rows: ContextVar[int | None] = ContextVar("most_rows", default=None)
HOPELESS = 1000
"""A file whose first lines, as many as this, hold not one JSON object is not read any further."""


@dataclass(frozen=True)
class FileRow:
    """A row of a file with its number and text; where `row` is None, `reason` says why it cannot be
    taken."""

    number: int
    row: dict[str, Any] | None
    text: str
    reason: str = ""


def read_rows(path: Path, on_position: OnPosition) -> Iterator[FileRow]:
    """Yield every row of the file in order, in constant memory; inside of `first_rows` the first
    ones. Raises InputError if the file as a whole cannot be read."""
    container = container_of(path)
    if container == "json":
        rows = _unwrapped(_json(path, on_position))
    else:
        rows = table_rows(path, on_position, container)
    rows = islice(rows, _most_rows.get())
    return map(_with_opened_texts, map(_without_types, map(_without_index, rows)))


@contextmanager
def first_rows(most: int) -> Iterator[None]:
    """Let readers see the first `most` rows of every file while the context is open."""
    token = _most_rows.set(most)
    try:
        yield
    finally:
        _most_rows.reset(token)


def _without_index(row: FileRow) -> FileRow:
    """Return the row without the number that pandas gave it: with it, the same conversation from a
    table in another order would be another one."""
    if row.row is None or not any(map(INDEX.fullmatch, row.row)):
        return row
    columns = {key: value for key, value in row.row.items() if not INDEX.fullmatch(key)}
    return replace(row, row=columns)


def _without_types(row: FileRow) -> FileRow:
    """Return the row with plain values in place of those with their type, {"$numberInt": "5"}, as
    MongoDB writes them, and of times in objects, as Firestore does."""
    if row.row is None or not any(map(_typed_value, row.row.values())):
        return row
    return replace(row, row={key: _untyped(value) for key, value in row.row.items()})


def _typed_value(value: Any) -> str:
    """Return the key of the value in an object that holds a value with its type; an empty text for
    anything else."""
    if not isinstance(value, dict):
        return ""
    if len(value) == 1 and next(iter(value)) in TYPED:
        return str(next(iter(value)))
    return "_seconds" if value.keys() == {"_seconds", "_nanoseconds"} else ""


def _untyped(value: Any) -> Any:
    if key := _typed_value(value):
        inner = _untyped(value[key])
        is_number = key.startswith("$number") and isinstance(inner, str)
        return _number_in(inner) if is_number else inner
    if isinstance(value, dict):
        return {name: _untyped(part) for name, part in value.items()}
    return list(map(_untyped, value)) if isinstance(value, list) else value


def _number_in(text: str) -> int | float | str:
    """Return the number in a text; the text itself if it is none."""
    try:
        return int(text) if text.lstrip("-").isdecimal() else float(text)
    except ValueError:
        return text


def _with_opened_texts(row: FileRow) -> FileRow:
    """Return the row with chats, and other objects of known keys, that are written as a text
    opened, so that a row in CSV is read as the same row in JSON is."""
    opened: dict[str, Any] = {}
    for key, value in (row.row or {}).items():
        if not isinstance(value, str) or key not in CHATS | NESTED:
            continue
        begins = value.lstrip()[:1]
        if not begins or begins not in "[{":
            continue
        content = unpacked(value)
        content = _of_python(value) if isinstance(content, str) else content
        if (key in CHATS and is_chat(content)) or (
            key in NESTED and isinstance(content, dict | list)
        ):
            opened[key] = content
    return replace(row, row={**(row.row or {}), **opened}) if opened else row


def _of_python(text: str) -> Any:
    """Return the value of a text in Python's spelling, as pandas writes lists into CSV; the text
    itself if it is none."""
    if len(text) > LONGEST_PYTHON or "'" not in text:
        return text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text
    try:
        json.dumps(value, allow_nan=False)
    except (ValueError, TypeError, RecursionError):
        return text  # sets, bytes, complex numbers
    return text if has_nul(value) else value


def table_rows(path: Path, on_position: OnPosition, container: str) -> Iterator[FileRow]:
    """Yield the rows of a table, "csv" or "parquet"."""
    read = csv_rows if container == "csv" else columnar_rows
    for number, row, text, problem in read(path, on_position):
        if not problem and has_nul(row):
            problem = str(HasNul())
        yield FileRow(number, None if problem else row, text, problem)


def container_of(path: Path) -> str:
    """Return json, csv or parquet (also for Arrow): Parquet by its first bytes, CSV by its name
    (.csv, .tsv, also .gz)."""
    if is_columnar(path):
        return "parquet"
    return "csv" if is_csv(path) else "json"


def _json(path: Path, on_position: OnPosition) -> Iterator[FileRow]:
    refused = 0
    has_object = False
    for number, raw, problem in numbered(path, on_position):
        try:
            row = row_of(raw, problem)
        except Unreadable as error:
            refused += 1
            if refused >= HOPELESS and not has_object:
                raise file_error(
                    path,
                    f"its first {HOPELESS} lines hold not one JSON object",
                    "Give a file with one object a line",
                ) from None
            yield FileRow(number, None, text_of(raw), str(error))
            continue
        has_object = True
        yield FileRow(number, row, text_of(raw))


def _unwrapped(rows: Iterator[FileRow]) -> Iterator[FileRow]:
    """Yield the rows, but for a row that only wraps a list of objects (a page of an API, a whole
    export) its objects, numbered on, so that a bad one does not affect the others."""
    shift = 0
    for row in rows:
        elements = _wrapped(row.row) if row.row is not None else None
        if elements is None:
            yield replace(row, number=row.number + shift)
            continue
        for index, element in enumerate(elements):
            number = row.number + shift + index
            if isinstance(element, dict) and {"row_idx", "row"} <= element.keys():
                element = element["row"]  # as the viewer of Hugging Face gives them
            text = json.dumps(element, ensure_ascii=False)
            if isinstance(element, dict):
                yield FileRow(number, element, text)
            else:
                yield FileRow(number, None, text, "it is not an object")
        shift += len(elements) - 1


def _wrapped(row: dict[str, Any]) -> list[Any] | None:
    """Return the list of objects that a row wraps, or None if the row has other content."""
    lists = [key for key in WRAPPERS if isinstance(row.get(key), list)]
    if len(lists) != 1 or not row.keys() <= {*lists, *AROUND}:
        return None
    elements: list[Any] = row[lists[0]]
    if not any(isinstance(element, dict) for element in elements):
        return None
    return None if any(map(_is_turn, elements)) else elements


def _is_turn(element: Any) -> bool:
    """Return whether an element is a turn of a chat, so that the whole list is one row."""
    if not isinstance(element, dict):
        return False
    keys = element.keys()
    return bool({"role", "from", "speaker"} & keys) or {"user", "assistant"} == keys


def row_of(raw: bytes, problem: str | None = None) -> dict[str, Any]:
    """Return the JSON object of a line. Raises Unreadable for anything else, see `json_value`."""
    if problem:
        raise Unreadable(problem)
    row = json_value(raw)
    if not isinstance(row, dict):
        raise Unreadable(f"it is a JSON {type(row).__name__}, not an object")
    return row


def text_of(raw: bytes) -> str:
    """Return the line as text, with bytes that are not UTF-8 as \\xNN."""
    return raw.decode("utf-8", "backslashreplace")
