"""Batches of values, such as ids for `IN (...)`: SQLite limits the variables of a statement."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")

VARIABLES = 500
"""Values in one `IN (...)`: SQLite allows at least 999 variables."""


def batches(values: Iterable[T], size: int = VARIABLES) -> Iterator[list[T]]:
    """Yield lists of `size` values, the last one shorter.

    >>> list(batches("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    rest = iter(values)
    while batch := list(islice(rest, size)):
        yield batch
