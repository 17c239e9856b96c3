"""An open home: its paths, its database and its settings; the operations of all stages take it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from thumbwheel.core.config import C, Home, Sources
from thumbwheel.db.dialects import backend_of
from thumbwheel.db.engine import Database
from thumbwheel.db.migrate import upgrade
from thumbwheel.db.ownership import claim

CaseRule = Callable[[str | None, Mapping[str, Any] | None, Any], str | None]
"""Why a case with this checker, these settings and this reference is refused; None if it is not."""


OWNER_OF_HOME = "local"
"""The sender of what comes through the files of the home: from whoever can read and write them."""

IMPORTED = "import"
"""The sender of what a file or another server says: whoever wrote it, and nobody known here."""


def any_case(checker: str | None, settings: Mapping[str, Any] | None, reference: Any) -> str | None:
    """Accept every case; it is checked again when it is judged."""
    return None


@dataclass
class Workspace:
    """Use as a context manager: leaving it finishes writing and lets go of the files."""

    home: Home
    db: Database
    sources: Sources
    case_rule: CaseRule = any_case
    """Which cases are accepted. The rule belongs to the stage that judges them, so whoever opens
    the home passes it in."""
    sender: str = OWNER_OF_HOME
    """Who acts: the id of a principal on the server. It is stored with what they say."""

    @classmethod
    def open(
        cls, home: Home, sources: Sources | None = None, case_rule: CaseRule = any_case
    ) -> Workspace:
        """Open `home` and return its workspace; create missing folders and the database.

        Raises ConfigError if the database in THUMBWHEEL_DATABASE is not the one of `home`.
        """
        home.prepare()
        sources = sources or Sources.read()
        backend = backend_of(home, sources.environment)
        upgrade(backend)
        database = Database(backend)
        try:
            claim(home, database)
        except BaseException:
            database.close()
            raise
        return cls(home, database, sources, case_rule)

    def settings(self, cls: type[C], section: str, options: Mapping[str, Any] | None = None) -> C:
        """Return the settings of `section` from file, environment and `options`. Raises
        ConfigError."""
        return self.sources.load(cls, section, options)

    def __enter__(self) -> Workspace:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.db.close()
