"""Whether anybody has written to the database, asked in microseconds.

Whoever keeps in memory what the rows say can look many times a second, and reads the rows only
after a change.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import sqlalchemy as sa


class Changes:
    """Holds a connection, made as those of `engine`; close it. `watch` is the backend's
    (db/dialects.py)."""

    def __init__(self, engine: sa.Engine, watch: Callable[[Any], Callable[[], object]]) -> None:
        self._engine, self._watch = engine, watch
        self._connection: sa.PoolProxiedConnection | None = None
        self._marker: Callable[[], object] | None = None

    def marker(self) -> object:
        """Return a value that differs after each commit of another connection. Raises the driver's
        error; the next call then reconnects."""
        try:
            if self._marker is None:
                self._connection = self._engine.raw_connection()
                driver = self._connection.driver_connection
                self._connection.detach()  # it listens, so the pool must not give it to others
                self._marker = self._watch(driver)
            return self._marker()
        except Exception:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection, self._marker = self._connection, None, None
        if connection is not None:
            with suppress(sa.exc.DBAPIError):
                connection.close()
