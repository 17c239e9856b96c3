"""Column types, names of constraints, and the columns that many tables share.

Times and JSON are decoded by hand because builds and ledgers read millions of them.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from sqlalchemy import (
    JSON,
    Column,
    ColumnElement,
    DateTime,
    Dialect,
    ForeignKey,
    TypeDecorator,
    and_,
)
from sqlalchemy.types import TypeEngine

from thumbwheel.core.ids import ABBREVIATED
from thumbwheel.db import dialects

NAMING = {
    "pk": "pk_%(table_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
}


def text(length: int | None = None) -> TypeEngine[str]:
    """Return the type of a text column. It sorts by code point; `length` is the longest value by
    rule, and is enforced where values come in, not here."""
    return dialects.text_type(length)


Id = text(40)


def refers(name: str, target: str, **options: Any) -> Column[Any]:
    """Return a column that is a foreign key to `target`."""
    return Column(name, Id, ForeignKey(target), **options)


def has_id(column: ColumnElement[str], typed: str) -> ColumnElement[bool]:
    """Return the condition that the id is `typed` or, as in git, begins with it (`trc_8f2k`)."""
    if not ABBREVIATED.fullmatch(typed):
        return column == typed
    return and_(column >= typed, column < typed + "~")


def by_agent() -> Column[Any]:
    """Return the column for the agent that a row belongs to."""
    return refers("agent_id", "agents.id", nullable=False)


def from_source() -> tuple[Column[Any], Column[Any]]:
    """Return the columns for the source that a row came from, and for its id there."""
    return Column("source", text(64), nullable=False), Column("external_id", text(), nullable=False)


class Utc(TypeDecorator[datetime]):
    """An aware datetime, stored as UTC; a naive one is a programming error."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return the database's type for instants."""
        return dialect.type_descriptor(dialects.time_type(dialect))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert an aware time to UTC, as the driver takes it. Raises TypeError for a naive
        one."""
        if value is not None and value.tzinfo is None:
            raise TypeError(f"naive datetime {value!r}")
        return dialects.stored_time(value, dialect) if value else None

    def result_processor(
        self, dialect: Dialect, coltype: object
    ) -> Callable[[Any], datetime | None]:
        """Return a function that converts stored times to aware ones, without SQLAlchemy's
        detours."""
        return dialects.time_reader(dialect)


class Json(TypeDecorator[Any]):
    """A JSON value; an absent one is SQL NULL, not the JSON text null."""

    impl = JSON(none_as_null=True)
    cache_ok = True

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:
        """Return pydantic's parser, or None if the driver has parsed the value; SQLAlchemy's parser
        takes several times as long."""
        return dialects.json_reader(dialect)
