"""Opens a home for a command: checks settings, migrates the database, drains the sdk's inbox."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from thumbwheel.access.types import LOCAL_TOKEN
from thumbwheel.app.service_settings import LogConfig
from thumbwheel.app.settings import sections
from thumbwheel.core import log
from thumbwheel.core.config import PREFIX, Home, Sources, check_sections
from thumbwheel.core.errors import ConfigError
from thumbwheel.core.present import Answer
from thumbwheel.db.dialects import SQLITE
from thumbwheel.db.workspace import Workspace

if TYPE_CHECKING:
    from thumbwheel.jobs.request import JobRequest

R = TypeVar("R")
V = TypeVar("V")
OF_HOST = f"{PREFIX}HOST__"
"""Begin of the variables with the settings of a host itself."""
LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class Opener:
    """The object that a command gets. Calling it opens the home; a command that needs no home uses
    `settings` alone."""

    home: Path | None
    config: Path | None
    log_level: str = "info"

    def __call__(self) -> Workspace:
        """Open the home and return it. Raises ConfigError for unknown settings."""
        from thumbwheel.capture.inbox import drain_inbox
        from thumbwheel.export.unfinished import sweep
        from thumbwheel.rewards.checker import refusal
        from thumbwheel.training.killed_runs import settle_killed

        settings = self.settings()
        form = settings.load(LogConfig, "log").form
        if form != "text":
            log.configure(self.log_level, form)
        ws = Workspace.open(Home.at(self.home), settings, refusal)
        address = ws.db.backend.address
        rows = "" if address == SQLITE else f", rows: {address}"
        log.say(f"home: {ws.home.path}{rows}")
        if killed := sweep(ws.home):
            exports = "export" if killed == 1 else "exports"
            log.say(f"note: removed what {killed} killed {exports} had left half written")
        lines = [*drain_inbox(ws), *settle_killed(ws)]
        if ws.is_shared:
            from thumbwheel.erasure.pending_erasures import purge_here

            lines += purge_here(ws)
        for line in lines:
            log.say(line)
        return ws

    def performed(self, request: JobRequest[R, V]) -> Answer[V]:
        """Perform a long operation and return its answer (app/run_or_submit.py)."""
        from thumbwheel.app.run_or_submit import run_or_submit

        return request.show(run_or_submit(self, request.kind, request.spec, here=request.here))

    def settings_fingerprint(self) -> str:
        """Return a hash that is equal for two processes with the same settings. The address and the
        labels of a host are its own, and decide nothing about what a job gives."""
        sources = self.settings()
        variables = {
            name: value
            for name, value in sources.environment.items()
            if name.startswith(PREFIX) and "__" in name and not name.startswith(OF_HOST)
        }
        content = {name: value for name, value in sources.file.items() if name != "host"}
        text = json.dumps([content, variables], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    def command(self, *arguments: str, module: str = "thumbwheel") -> list[str]:
        """Return the command line of another process of this program, for the same home and
        settings."""
        command = [sys.executable, "-P", "-m", module, "--home", str(self.folder)]
        if self.config is not None:
            command += ["--config", str(self.config)]
        return [*command, *arguments]

    @property
    def folder(self) -> Path:
        """Where the home is, or will be."""
        return Home.at(self.home).path

    @property
    def actor(self) -> str:
        """Who asks, as the audit log names it."""
        return LOCAL_TOKEN.id

    @property
    def owns_home(self) -> bool:
        """Whether whoever asks is the home's owner: they can read its files."""
        return True

    @property
    def attended(self) -> bool:
        """Whether somebody is there to be asked."""
        return sys.stdin.isatty()

    def settings(self) -> Sources:
        """Return the settings of file and environment. Raises ConfigError for unknown ones."""
        sources = Sources.read(self.config)
        check_sections(sources, sections())
        return sources


def opener(home: Path | None, config: Path | None, log_level: str) -> Opener:
    """Configure the log at `log_level`, and return the opener of `home` with the settings of
    `config`. Raises ConfigError for an unknown level."""
    if log_level.lower() not in LEVELS:
        raise ConfigError(
            f"--log-level {log_level!r}", "there is no such level", f"Known: {', '.join(LEVELS)}"
        )
    log.configure(log_level)
    return Opener(home, config, log_level)
