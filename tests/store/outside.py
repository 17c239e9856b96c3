"""A database as another program sees it: a connection of its own, without anything of ours."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg

from thumbwheel.db.dialects import Backend, Sqlite


@contextmanager
def outside(backend: Backend) -> Iterator[Any]:
    """A connection in autocommit."""
    if isinstance(backend, Sqlite):
        with closing(sqlite3.connect(backend.path, isolation_level=None)) as connection:
            yield connection
    else:
        with psycopg.connect(backend.secret_address, autocommit=True) as server_connection:
            yield server_connection
