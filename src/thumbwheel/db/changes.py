"""Whether anybody has written to the database, asked in microseconds.

Whoever keeps in memory what the rows say can look many times a second, and reads the rows only
after a change.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import sqlalchemy as sa


class Changes:
    """Holds one connection of `engine`; close it. `query` is the backend's (db/dialects.py)."""

    def __init__(self, engine: sa.Engine, query: str) -> None:
        self._engine, self._query = engine, query
        self._connection: sa.PoolProxiedConnection | None = None

    def marker(self) -> object:
        """Return a value that differs after each commit of another connection. Raises the driver's
        error; the next call then reconnects."""
        if self._connection is None:
            self._connection = self._engine.raw_connection()
        driver: Any = self._connection.driver_connection
        try:
            row = driver.execute(self._query).fetchone()
            driver.rollback()  # PostgreSQL's driver has begun a transaction
        except Exception:
            self.close()
            raise
        return row

    def close(self) -> None:
        """Give the connection back."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sa.exc.DBAPIError):
                connection.close()
