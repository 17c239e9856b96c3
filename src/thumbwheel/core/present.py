"""The answer of a command: a value for programs, and tables and lines for people.

A command returns an `Answer`; only this file formats and prints it. Its JSON has the fields of the
value. Tables have rows of their own.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from datetime import datetime
from itertools import takewhile
from json import dumps
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from thumbwheel.core import log

if TYPE_CHECKING:
    from rich.table import Table as DrawnTable

T = TypeVar("T")
D = TypeVar("D")
V_co = TypeVar("V_co", covariant=True)
Row = tuple[str, object]
"""(what it is, its value)."""
ROW_ID = re.compile(r"\b[a-z]{3}_[0-9a-v]{22,24}\b")
"""An id made by core/ids.py."""
WORD = re.compile("[^\\s\u3000-\u9fff\uac00-\ud7af]+|[\u3000-\u9fff\uac00-\ud7af]")
"""A word that is not broken. Chinese, Japanese and Korean texts may be, between any two
characters."""
SHORT_ID = 8
"""At least so many characters of an abbreviated id follow its prefix."""


@dataclass(frozen=True)
class Table:
    """A table of a page. Where it is too wide for the terminal, its ids are abbreviated, then its
    cells fold between words, and where that is not enough each row is shown as a list."""

    title: str
    columns: Sequence[str]
    rows: Iterable[Sequence[object]]
    empty: str = ""
    """Line that is shown instead of a table without rows: what to do next."""


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
    """Return a part of a page as a JSON object, for a terminal elsewhere."""
    if isinstance(part, str):
        return {"kind": "line", "text": part}
    if not isinstance(part, Table):
        return {"kind": type(part).__name__.lower(), **asdict(part)}
    rows = [["" if cell is None else str(cell) for cell in row] for row in part.rows]
    about = {"title": part.title, "columns": list(part.columns), "empty": part.empty}
    return {"kind": "table", **about, "rows": rows}


def part_of_json(content: Mapping[str, Any]) -> Part:
    """Return the part that `part_to_json` wrote.

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


@dataclass(frozen=True)
class Answer(Generic[V_co]):
    """What a command found or did."""

    value: V_co
    """What programs read: `--json` and the HTTP API give it as JSON."""
    parts: Iterable[Part] = ()
    """What people read. A generator computes nothing where JSON is asked for."""
    exit_code: int = 0

    def ending(self, exit_code: int) -> Answer[V_co]:
        """Return the same answer with this exit code."""
        return replace(self, exit_code=exit_code)


@dataclass(frozen=True)
class Lines(Generic[T]):
    """Values that come one after the other; each is shown at once."""

    values: Iterable[T]
    part_of: Callable[[T], Part]


def page(value: T, parts: Iterable[Part]) -> Answer[T]:
    """Return an answer of several tables and lines."""
    return Answer(value, parts)


def record(value: T, title: str, rows: Iterable[Row]) -> Answer[T]:
    """Return an answer of one thing: a table with a row for each of its properties."""
    return Answer(value, [Table(title, ("", ""), rows)])


@overload
def records(
    values: Sequence[T],
    title: str,
    columns: Mapping[str, Callable[[T], object]],
    *,
    empty: str = "",
) -> Answer[Sequence[T]]: ...


@overload
def records(
    values: Sequence[T],
    title: str,
    columns: Mapping[str, Callable[[T], object]],
    data: D,
    *,
    empty: str = "",
) -> Answer[D]: ...


def records(
    values: Sequence[T],
    title: str,
    columns: Mapping[str, Callable[[T], object]],
    data: object = None,
    *,
    empty: str = "",
) -> Answer[Any]:
    """Return an answer of several things: a table with a row for each. `columns` maps headings to
    functions that return a value's cell. Programs read `data`, or the values if it is None.
    `empty` is shown where there are no values."""
    rows = ([cell(value) for cell in columns.values()] for value in values)
    table = Table(title, tuple(columns), rows, empty)
    return Answer(values if data is None else data, [table])


def message(value: T, text: str) -> Answer[T]:
    """Return an answer of one line on standard error that says what a command did, because it is
    not output for another program."""
    return Answer(value, [Note(text)])


def show_answer(answer: Answer[Any], *, json: bool) -> None:
    """Show an answer on the terminal."""
    if json:
        show_json(answer.value)
    else:
        show(answer.parts)


def show_lines(lines: Lines[Any], *, json: bool) -> None:
    """Show values as they come: with `json` each on a line of its own."""
    for value in lines.values:
        if json:
            show_json_line(value)
        else:
            show([lines.part_of(value)])


def show(parts: Iterable[Part]) -> None:
    """Show tables and lines in this order."""
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
    """Show `value` as JSON; dataclasses and models in it become objects of their fields."""
    _write_json(json_text(value))


def show_json_line(value: object) -> None:
    """Show `value` as JSON on one line, at once: for a script that answers line by line."""
    _write_json(json_text(value, indent=None))
    sys.stdout.flush()


def json_text(value: object, indent: int | None = 2) -> str:
    """Return `value` as JSON text; dataclasses and models in it become objects of their fields,
    times become texts of RFC 3339."""
    return dumps(_plain(value), indent=indent, ensure_ascii=False, default=str)


def write(text: str) -> None:
    """Write a text that is the answer itself, such as a file; unchanged if standard output is not a
    terminal."""
    sys.stdout.write(log.visible(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def shortened(text: str, most: int = 60) -> str:
    """Return the text, or its beginning and three dots, in at most `most` characters."""
    return text if len(text) <= most else text[: most - 3] + "..."


COMMAND = r"(?:thumbwheel |--[a-z])"
IN_BRACKETS = re.compile(r"\([^()]*\)")
IS_COMMAND = re.compile(rf"\b{COMMAND}")
ADVICE = (
    re.compile(
        rf"(?:^|[;.,]\s+)(?:say|another one|if|then|See|Give|Run)\b[^:;]*:\s+{COMMAND}.*", re.DOTALL
    ),
    re.compile(rf":\s+{COMMAND}.*", re.DOTALL),
    re.compile(rf"(?:^|[;.,]\s+)[^;.,]*\b{COMMAND}.*", re.DOTALL),
)
"""What proposes a command: with the words that lead to it, behind a colon, or within a clause."""


def without_commands(text: str) -> str:
    """Return a text without the part that proposes a command or its options, for a page, on which
    the same is done by fields and buttons.

    >>> without_commands("rating 9 is outside its scale; another one: --scale rating=WORST:BEST")
    'rating 9 is outside its scale'
    >>> without_commands("3 cases (thumbwheel case add) are too few. Add some: thumbwheel case add")
    '3 cases are too few. Add some'
    """
    text = "".join(_parts_without_commands(text))
    for pattern in ADVICE:
        if match := pattern.search(text):
            return text[: match.start()]
    return text


def _parts_without_commands(text: str) -> Iterator[str]:
    """Yield the text around brackets with a command in them, and brackets without one."""
    end = 0
    for brackets in IN_BRACKETS.finditer(text):
        if IS_COMMAND.search(brackets[0]):
            yield text[end : brackets.start()].rstrip()
            end = brackets.end()
    yield text[end:]


def short_ids(row_ids: Iterable[str]) -> dict[str, str]:
    """Return each id with an abbreviation of it that no other of these ids begins with."""
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
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")  # as Pydantic spells it
    return value


def _write_json(text: str) -> None:
    def escape(match: re.Match[str]) -> str:
        character = match[0]
        return character if character in "\r\n" else f"\\u{ord(character):04x}"

    sys.stdout.write(log.CONTROL.sub(escape, text) + "\n")


def _show_table(table: Table) -> None:
    terminal = log.console(stderr=False)
    cells = [["" if cell is None else log.visible(str(cell)) for cell in row] for row in table.rows]
    if not cells and table.empty:
        log.say(table.empty)
        return
    columns = [log.visible(column) for column in table.columns]
    if sum(_natural_widths(columns, cells)) > _room(columns, terminal.width):
        cells = _with_short_ids(cells)
    widths = column_widths(columns, cells, _room(columns, terminal.width))
    if widths is None:
        _show_rows_as_lists(table.title, columns, cells)
    else:
        terminal.print(_drawn(table.title, columns, cells, widths))


def _room(columns: Sequence[str], width: int) -> int:
    """Return the characters that a table of this width has for its cells, beside the borders."""
    return width - 3 * len(columns) - 1


def column_widths(
    columns: Sequence[str], cells: Sequence[Sequence[str]], room: int
) -> list[int] | None:
    """Return the width of each column so that no word is broken, or None if there is not enough
    room. What is free beyond the longest words goes to the columns with the longest texts.

    >>> column_widths(["id", "text"], [["a1", "some words"]], 12)
    [2, 10]
    >>> column_widths(["id", "text"], [["a1", "some words"]], 8)
    [2, 6]
    >>> column_widths(["id", "text"], [["a1", "some words"]], 6) is None
    True
    """
    natural = _natural_widths(columns, cells)
    if sum(natural) <= room:
        return natural
    widths = []
    for texts in _by_column(columns, cells):
        words = [word for text in texts for word in WORD.findall(text)]
        widths.append(max(map(_cell_length, words), default=1))
    free = room - sum(widths)
    if free < 0:
        return None
    wanted = [full - width for full, width in zip(natural, widths, strict=True)]
    # Narrow columns first: what they do not need is left for the others.
    order = sorted(range(len(widths)), key=lambda index: wanted[index])
    for position, index in enumerate(order):
        share = min(wanted[index], free // (len(order) - position))
        widths[index] += share
        free -= share
    return widths


def _natural_widths(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of each column without any folding."""
    widths = []
    for texts in _by_column(columns, cells):
        lines = [line for text in texts for line in text.expandtabs().split("\n")]
        widths.append(max(1, *map(_cell_length, lines)))
    return widths


def _by_column(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    """Yield the texts of each column, its heading first."""
    for index, column in enumerate(columns):
        yield [column, *(row[index] for row in cells)]


def _cell_length(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)


def _show_rows_as_lists(title: str, columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """Show each row as lines of a heading and a text, for a table that is wider than the
    terminal."""
    terminal = log.console(stderr=False)
    terminal.print(title, markup=False)
    for row in cells:
        terminal.print()
        for column, cell in zip(columns, row, strict=True):
            if cell:
                terminal.print(f"{column}: {cell}" if column else cell, markup=False)


def _drawn(
    title: str, columns: Sequence[str], cells: Sequence[Sequence[str]], widths: Sequence[int]
) -> DrawnTable:
    from rich.table import Table as DrawnTable
    from rich.text import Text

    heading = Text(log.visible(title))
    drawn = DrawnTable(title=heading, title_justify="left", header_style="bold")
    for column, width in zip(columns, widths, strict=True):
        drawn.add_column(column, overflow="fold", width=width)
    for row in cells:
        drawn.add_row(*(Text(cell) for cell in row))
    return drawn


def _with_short_ids(cells: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the same cells with abbreviated ids."""
    row_ids: set[str] = set()
    for row in cells:
        for cell in row:
            row_ids.update(ROW_ID.findall(cell))
    short = short_ids(row_ids)

    def abbreviate(cell: str) -> str:
        return ROW_ID.sub(lambda match: short[match.group()], cell)

    return [[abbreviate(cell) for cell in row] for row in cells]
