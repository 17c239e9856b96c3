"""Shows the result of a command on standard output: as JSON for programs, as a table for people.

JSON has the fields of the value, or `data` where a command promises other keys. A table has rows of
its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any, TypeVar

from thumbwheel.core import log

T = TypeVar("T")
Row = tuple[str, object]
"""(what it is, its value)."""


def record(
    value: object, title: str, rows: Iterable[Row], *, json: bool, data: object = None
) -> None:
    """One thing: a table with a row for each of its properties."""
    if json:
        show_json(value if data is None else data)
    else:
        log.table(title, ("", ""), rows)


def records(
    values: Sequence[T],
    title: str,
    columns: Mapping[str, Callable[[T], object]],
    *,
    json: bool,
    data: object = None,
) -> None:
    """Several things: a table with a row for each. `columns`: heading -> the cell of a value."""
    if json:
        show_json(values if data is None else data)
        return
    cells = [[cell(value) for cell in columns.values()] for value in values]
    log.table(title, tuple(columns), cells)


def message(value: object, text: str, *, json: bool) -> None:
    """What a command did: one line on standard error, because it is no answer to be read on."""
    if json:
        show_json(value)
    else:
        log.say(text)


def show_json(value: object) -> None:
    """`value` as JSON; dataclasses in it become objects of their fields."""
    log.answer(_plain(value))


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def shortened(text: str, most: int = 60) -> str:
    """The text, or its beginning and three dots, in `most` letters."""
    return text if len(text) <= most else text[: most - 3] + "..."
