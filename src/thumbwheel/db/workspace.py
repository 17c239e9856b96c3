"""An open home: its paths, its database and its settings; the operations of all stages take it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from thumbwheel.core.config import C, Home, Sources
from thumbwheel.core.key_files import kept_in
from thumbwheel.db import cluster, hosts
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
    is_shared: bool = False
    """Whether other hosts have folders of this home, too (cluster.py)."""
    _open_keys: ExitStack = field(default_factory=ExitStack, repr=False, compare=False)

    @classmethod
    def open(
        cls, home: Home, sources: Sources | None = None, case_rule: CaseRule = any_case
    ) -> Workspace:
        """Open `home` and return its workspace; create missing folders and the database.

        Raises ConfigError if the database in THUMBWHEEL_DATABASE is not the one of `home`, or if
        the key of its cluster is missing.
        """
        home.prepare()
        sources = sources or Sources.read()
        backend = backend_of(home, sources.environment)
        upgrade(backend)
        database = Database(backend)
        try:
            claim(home, database)
            keys = cluster.opened(database, sources.environment)
        except BaseException:
            database.close()
            raise
        ws = cls(home, database, sources, case_rule, is_shared=keys is not None)
        if keys is not None:
            hosts.register(database, home)
            ws._open_keys.enter_context(keys)
            ws._open_keys.enter_context(kept_in(home.path, keys))
        return ws

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
        self._open_keys.close()
        self.db.close()
