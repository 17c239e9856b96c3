"""Column types, names of constraints, and the columns that many tables share.

Times and JSON are decoded by hand because builds and ledgers read millions of them.
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
    """A foreign key to `target`."""
    return Column(name, Id, ForeignKey(target), **options)


def has_id(column: ColumnElement[str], typed: str) -> ColumnElement[bool]:
    """Condition: the id is `typed` or, as in git, begins with it (`trc_8f2k`)."""
    if not ABBREVIATED.fullmatch(typed):
        return column == typed
    return and_(column >= typed, column < typed + "~")


def by_agent() -> Column[Any]:
    """The agent that a row belongs to."""
    return refers("agent_id", "agents.id", nullable=False)


def from_source() -> tuple[Column[Any], Column[Any]]:
    """The source that a row came from, and its name there."""
    return Column("source", String(64), nullable=False), Column("external_id", Text, nullable=False)


class Utc(TypeDecorator[datetime]):
    """An aware datetime, stored as UTC; a naive one is a programming error."""

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
    # cached, because what is imported together has the same time
    return datetime.fromisoformat(text + "+00:00") if text else None


class Json(TypeDecorator[Any]):
    """A JSON value; an absent one is SQL NULL, not the JSON text null."""

    impl = JSON(none_as_null=True)
    cache_ok = True

    def coerce_compared_value(self, op: Any, value: Any) -> Any:
        """As JSON has it, so that `column["name"].as_string()` works."""
        return self.impl_instance.coerce_compared_value(op, value)

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        """Parse with pydantic's parser; SQLAlchemy's takes several times as long."""
        return parsed


def parsed(stored: Any) -> Any:
    """The value of a JSON column. SQLite stores a lone number as a number, all else as text."""
    if not isinstance(stored, str):
        return stored
    try:
        return pydantic_core.from_json(stored)
    except ValueError:  # half a surrogate pair, which JSON can write and UTF-8 cannot
        return json.loads(stored)
