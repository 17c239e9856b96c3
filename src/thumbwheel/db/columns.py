"""What columns are made of: types, names of constraints, and the columns that many tables have.

Times and JSON are read back quickly, for builds and ledgers read millions of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import pydantic_core
from sqlalchemy import (
    JSON,
    Column,
    ColumnElement,
    DateTime,
    Dialect,
    ForeignKey,
    String,
    Text,
    TypeDecorator,
    and_,
)

from thumbwheel.core.ids import ABBREVIATED

NAMING = {
    "pk": "pk_%(table_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
}
Id = String(40)


def refers(name: str, target: str, **options: Any) -> Column[Any]:
    """An id that has to be in `target`."""
    return Column(name, Id, ForeignKey(target), **options)


def has_id(column: ColumnElement[str], typed: str) -> ColumnElement[bool]:
    """Rows whose id is `typed` or, as in git, begins with it (`trc_8f2k`)."""
    if not ABBREVIATED.fullmatch(typed):
        return column == typed
    return and_(column >= typed, column < typed + "~")


def by_agent() -> Column[Any]:
    """Whose row it is."""
    return refers("agent_id", "agents.id", nullable=False)


def from_source() -> tuple[Column[Any], Column[Any]]:
    """Where a row came from: the source and its name there."""
    return Column("source", String(64), nullable=False), Column("external_id", Text, nullable=False)


class Utc(TypeDecorator[datetime]):
    """An aware datetime, kept as UTC; a naive one is a programming error."""

    impl = DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """To UTC without an offset."""
        if value is not None and value.tzinfo is None:
            raise TypeError(f"naive datetime {value!r}")
        return value.astimezone(UTC).replace(tzinfo=None) if value else None

    def result_processor(
        self, dialect: Dialect, coltype: object
    ) -> Callable[[Any], datetime | None]:
        """Back to an aware datetime, from the text that SQLite keeps."""
        return _instant


@lru_cache(maxsize=1024)
def _instant(text: str | None) -> datetime | None:
    """What is imported together is recorded at the same time."""
    return datetime.fromisoformat(text + "+00:00") if text else None


class Json(TypeDecorator[Any]):
    """A JSON value; an absent one is SQL NULL, not the JSON text null."""

    impl = JSON(none_as_null=True)
    cache_ok = True

    def coerce_compared_value(self, op: Any, value: Any) -> Any:
        """As JSON has it, so that `column["name"].as_string()` works."""
        return self.impl_instance.coerce_compared_value(op, value)

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        """What it means; the library's own way takes several times as long."""
        return parsed


def parsed(kept: Any) -> Any:
    """What is kept in a JSON column means this; SQLite keeps a lone number as one, and everything
    else as text."""
    if not isinstance(kept, str):
        return kept
    try:
        return pydantic_core.from_json(kept)
    except ValueError:  # half a surrogate pair, which JSON can write and UTF-8 cannot
        return json.loads(kept)
