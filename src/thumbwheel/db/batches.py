"""Batches of values, such as ids for `IN (...)`: SQLite limits the variables of a statement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

import sqlalchemy as sa

from thumbwheel.db.dialects import POSTGRESQL

T = TypeVar("T")

VARIABLES = 500
"""Values in one `IN (...)`: SQLite allows at least 999 variables."""


def among(
    connection: sa.Connection, column: sa.Column[Any], texts: Sequence[str]
) -> sa.ColumnElement[bool]:
    """Build the condition that a column of text is one of `texts`. PostgreSQL gets them as one
    parameter: a parameter for each costs most of the time of such a query."""
    if connection.dialect.name == POSTGRESQL:
        return column == sa.any_(sa.bindparam(None, list(texts), sa.ARRAY(sa.Text)))
    return column.in_(texts)


def batches(values: Iterable[T], size: int = VARIABLES) -> Iterator[list[T]]:
    """Yield lists of `size` values, the last one shorter.

    >>> list(batches("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    rest = iter(values)
    while batch := list(islice(rest, size)):
        yield batch
