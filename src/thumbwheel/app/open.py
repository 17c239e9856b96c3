"""Opens a home for a command: checks settings, migrates the database, drains the sdk's inbox."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from thumbwheel.app.settings import sections
from thumbwheel.core import log
from thumbwheel.core.config import Home, Sources, check_sections
from thumbwheel.core.errors import ConfigError
from thumbwheel.db.workspace import Workspace

LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class Opener:
    """The object that a command gets. Calling it opens the home; a command that needs no home uses
    `settings` alone."""

    home: Path | None
    config: Path | None

    def __call__(self) -> Workspace:
        """The open home; raises ConfigError for settings that nothing reads."""
        from thumbwheel.capture.inbox import drain_inbox
        from thumbwheel.export.unfinished import sweep
        from thumbwheel.rewards.checker import refusal
        from thumbwheel.training.killed_runs import settle_killed

        ws = Workspace.open(Home.at(self.home), self.settings(), refusal)
        log.say(f"home: {ws.home.path}")
        if killed := sweep(ws.home):
            exports = "export" if killed == 1 else "exports"
            log.say(f"note: removed what {killed} killed {exports} had left half written")
        for line in (*drain_inbox(ws), *settle_killed(ws)):
            log.say(line)
        return ws

    @property
    def folder(self) -> Path:
        """Where the home is, or will be."""
        return Home.at(self.home).path

    def settings(self) -> Sources:
        """Settings of file and environment; raises ConfigError for those that nothing reads."""
        sources = Sources.read(self.config)
        check_sections(sources, sections())
        return sources


def opener(home: Path | None, config: Path | None, log_level: str) -> Opener:
    """The opener of `home` with the settings of `config`; configures the log at `log_level`."""
    if log_level.lower() not in LEVELS:
        raise ConfigError(
            f"--log-level {log_level!r}", "there is no such level", f"Known: {', '.join(LEVELS)}"
        )
    log.configure(log_level)
    return Opener(home, config)
