"""An open home: its paths, its database and its settings; what every verb of every stage is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from thumbwheel.core.config import C, Home, Sources
from thumbwheel.db.engine import Database
from thumbwheel.db.migrate import upgrade


@dataclass
class Workspace:
    """Use as a context manager: leaving it finishes writing and lets go of the files."""

    home: Home
    db: Database
    sources: Sources

    @classmethod
    def open(cls, home: Home, sources: Sources | None = None) -> Workspace:
        """Open `home`, creating folders and database where needed."""
        home.prepare()
        upgrade(home.database, home.lock)
        return cls(home, Database(home.database, home.lock), sources or Sources.read())

    def settings(self, cls: type[C], section: str, options: Mapping[str, Any] | None = None) -> C:
        """The settings of `section` from file, environment and `options`."""
        return self.sources.load(cls, section, options)

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.db.close()
