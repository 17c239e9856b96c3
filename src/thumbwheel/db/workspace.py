"""An open home: its paths, its database and its settings; what every verb of every stage is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from thumbwheel.core.config import C, Home, Sources
from thumbwheel.db.engine import Database
from thumbwheel.db.migrate import upgrade

CaseRule = Callable[[str | None, Mapping[str, Any] | None, Any], str | None]
"""Why a case with this checker, these settings and this reference is not taken; None where it is."""


def any_case(checker: str | None, settings: Mapping[str, Any] | None, reference: Any) -> str | None:
    """Take every case; whatever it asks for is checked again where it is judged."""
    return None


@dataclass
class Workspace:
    """Use as a context manager: leaving it finishes writing and lets go of the files."""

    home: Home
    db: Database
    sources: Sources
    case_rule: CaseRule = any_case
    """What cases are taken; the stage that judges them knows, and is composed in by who opens the
    home."""

    @classmethod
    def open(
        cls, home: Home, sources: Sources | None = None, case_rule: CaseRule = any_case
    ) -> Workspace:
        """Open `home`, creating folders and database where needed."""
        home.prepare()
        upgrade(home.database, home.lock)
        return cls(home, Database(home.database, home.lock), sources or Sources.read(), case_rule)

    def settings(self, cls: type[C], section: str, options: Mapping[str, Any] | None = None) -> C:
        """The settings of `section` from file, environment and `options`."""
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
