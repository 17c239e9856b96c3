"""Shows the result of a command on standard output: as JSON for programs, as tables and lines for
people.

A command says what its result is, and what a person sees of it; only this file formats and prints.
JSON has the fields of the value, or `data` where a command promises other keys. Tables have rows of
their own.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, is_dataclass
from itertools import takewhile
from json import dumps
from typing import TYPE_CHECKING, Any, TypeVar

from thumbwheel.core import log

if TYPE_CHECKING:
    from rich.table import Table as DrawnTable

T = TypeVar("T")
Row = tuple[str, object]
"""(what it is, its value)."""
ROW_ID = re.compile(r"\b[a-z]{3}_[0-9a-v]{22,24}\b")
"""An id made by core/ids.py."""
SHORT_ID = 8
"""At least so many characters of an abbreviated id follow its prefix."""


@dataclass(frozen=True)
class Table:
    """A table of a page. Where it is too wide for the terminal, its ids are abbreviated before
    other cells fold."""

    title: str
    columns: Sequence[str]
    rows: Iterable[Sequence[object]]


@dataclass(frozen=True)
class Note:
    """A remark beside the answer: one line on standard error."""

    text: str


@dataclass(frozen=True)
class Box:
    """A text of somebody else, such as an answer, with a border around it."""

    title: str
    text: str


@dataclass(frozen=True)
class File:
    """A text that is the answer itself, such as a file."""

    text: str


Part = str | Table | Note | Box | File
"""What a page is made of; a text is a line of the answer."""


def part_to_json(part: Part) -> dict[str, Any]:
    """A part of a page as a JSON value, for a terminal elsewhere."""
    if isinstance(part, str):
        return {"kind": "line", "text": part}
    if not isinstance(part, Table):
        return {"kind": type(part).__name__.lower(), **asdict(part)}
    rows = [["" if cell is None else str(cell) for cell in row] for row in part.rows]
    return {"kind": "table", "title": part.title, "columns": list(part.columns), "rows": rows}


def part_of_json(content: Mapping[str, Any]) -> Part:
    """The part that `part_to_json` wrote.

    >>> part_of_json(part_to_json(Note("so")))
    Note(text='so')
    """
    fields = {name: value for name, value in content.items() if name != "kind"}
    classes: dict[str, type[Table | Note | Box | File]] = {
        "table": Table,
        "note": Note,
        "box": Box,
        "file": File,
    }
    kind = content["kind"]
    return str(content["text"]) if kind == "line" else classes[kind](**fields)


@dataclass
class Shown:
    """What a command showed to somebody who is not at this terminal."""

    value: object = None
    lines: list[object] = field(default_factory=list)
    """Values of JSON that were shown each on a line."""
    parts: list[Part] = field(default_factory=list)


_SHOWN: ContextVar[Shown | None] = ContextVar("shown", default=None)


@contextmanager
def captured() -> Iterator[Shown]:
    """Nothing that is presented inside reaches the terminal: it is collected instead."""
    shown = Shown()
    token = _SHOWN.set(shown)
    try:
        yield shown
    finally:
        _SHOWN.reset(token)


def page(value: object, parts: Iterable[Part], *, json: bool) -> None:
    """A result that takes several tables and lines. With `json`, `parts` is never iterated: a
    generator computes nothing then."""
    if json:
        show_json(value)
    else:
        show(parts)


def record(
    value: object, title: str, rows: Iterable[Row], *, json: bool, data: object = None
) -> None:
    """One thing: a table with a row for each of its properties."""
    page(value if data is None else data, [Table(title, ("", ""), rows)], json=json)


def records(
    values: Sequence[T],
    title: str,
    columns: Mapping[str, Callable[[T], object]],
    *,
    json: bool,
    data: object = None,
) -> None:
    """Several things: a table with a row for each. `columns`: heading -> the cell of a value."""
    rows = ([cell(value) for cell in columns.values()] for value in values)
    page(values if data is None else data, [Table(title, tuple(columns), rows)], json=json)


def message(value: object, text: str, *, json: bool) -> None:
    """What a command did: one line on standard error, because it is no answer to be read on."""
    page(value, [Note(text)], json=json)


def show(parts: Iterable[Part]) -> None:
    """Tables and lines for a person, in this order."""
    if shown := _SHOWN.get():
        shown.parts.extend(parts)
        return
    terminal = log.console(stderr=False)
    for part in parts:
        match part:
            case Note(text):
                log.say(text)
            case File(text):
                write(text)
            case Table():
                _show_table(part)
            case Box(title, text):
                from rich.panel import Panel
                from rich.text import Text

                terminal.print(Panel(Text(text), title=Text(title), title_align="left"))
            case str():
                terminal.print(part, markup=False)


def show_json(value: object) -> None:
    """`value` as JSON; dataclasses and models in it become objects of their fields."""
    if shown := _SHOWN.get():
        shown.value = value
        return
    _write_json(json_text(value))


def show_json_line(value: object) -> None:
    """`value` as JSON on one line, at once: for a script that answers line by line."""
    if shown := _SHOWN.get():
        shown.lines.append(value)
        return
    _write_json(json_text(value, indent=None))
    sys.stdout.flush()


def json_text(value: object, indent: int | None = 2) -> str:
    """`value` as JSON; dataclasses and models in it become objects of their fields."""
    return dumps(_plain(value), indent=indent, ensure_ascii=False, default=str)


def write(text: str) -> None:
    """Write a text that is the answer itself, such as a file; unchanged where standard output is no
    terminal."""
    if shown := _SHOWN.get():
        shown.parts.append(File(text))
        return
    sys.stdout.write(log.visible(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def shortened(text: str, most: int = 60) -> str:
    """The text, or its beginning and three dots, in `most` letters."""
    return text if len(text) <= most else text[: most - 3] + "..."


def short_ids(row_ids: Iterable[str]) -> dict[str, str]:
    """Each id with its shortest beginning that no other of them shares."""
    ordered = sorted(set(row_ids))
    short: dict[str, str] = {}
    for before, row_id, after in zip(["", *ordered], ordered, [*ordered[1:], ""], strict=False):
        shared = max(_shared_length(row_id, before), _shared_length(row_id, after))
        kind = row_id.index("_") + 1
        short[row_id] = row_id[: max(kind + SHORT_ID, shared + 1)]
    return short


def _shared_length(first: str, second: str) -> int:
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _plain(value: Any) -> Any:
    from pydantic import BaseModel

    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _write_json(text: str) -> None:
    def escape(match: re.Match[str]) -> str:
        character = match[0]
        return character if character in "\r\n" else f"\\u{ord(character):04x}"

    sys.stdout.write(log.CONTROL.sub(escape, text) + "\n")


def _show_table(table: Table) -> None:
    terminal = log.console(stderr=False)
    cells = [["" if cell is None else log.visible(str(cell)) for cell in row] for row in table.rows]
    drawn = _drawn(table, cells)
    unlimited = terminal.options.update(max_width=10_000)
    if terminal.measure(drawn, options=unlimited).maximum > terminal.width:
        drawn = _drawn(table, _with_short_ids(cells))
    terminal.print(drawn)


def _drawn(table: Table, cells: Sequence[Sequence[str]]) -> DrawnTable:
    from rich.table import Table as DrawnTable
    from rich.text import Text

    title = Text(log.visible(table.title))
    drawn = DrawnTable(title=title, title_justify="left", header_style="bold")
    for column in table.columns:
        drawn.add_column(column, overflow="fold")
    for row in cells:
        drawn.add_row(*(Text(cell) for cell in row))
    return drawn


def _with_short_ids(cells: Sequence[Sequence[str]]) -> list[list[str]]:
    """The same cells with abbreviated ids."""
    row_ids: set[str] = set()
    for row in cells:
        for cell in row:
            row_ids.update(ROW_ID.findall(cell))
    short = short_ids(row_ids)

    def abbreviate(cell: str) -> str:
        return ROW_ID.sub(lambda match: short[match.group()], cell)

    return [[abbreviate(cell) for cell in row] for row in cells]
