"""What a cycle of an agent has done so far: a small file of the home, replaced after every step.

Verbs that store what they give (evaluations, decisions, exports, deployments) are not noted here: they are found where they are stored.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from thumbwheel.core import log
from thumbwheel.core.errors import Conflict, StorageError
from thumbwheel.loop.cycle_types import Candidate
from thumbwheel.sdk.disk import sync

FILE, LOCK = "cycle.json", "lock"


@dataclass
class CycleState:
    """`settings` are those of the cycle; `runs_before` is how many runs the agent had before training by each method began."""

    folder: Path
    settings: Mapping[str, Any]
    methods: list[str] = field(default_factory=list)
    runs_before: dict[str, int] = field(default_factory=dict)
    candidates: dict[str, Candidate] = field(default_factory=dict)
    chosen: str | None = None

    @classmethod
    @contextmanager
    def open(cls, folder: Path, settings: Mapping[str, Any]) -> Iterator[CycleState]:
        """The unfinished cycle with these settings, else a new one. Raises Conflict where another process has it open."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                why = "another process is turning it at this moment"
                raise Conflict(f"the cycle of agent {folder.name!r}", why, "Wait for it, or stop it with Ctrl-C there") from None
            yield cls._read(folder, settings)
        finally:
            os.close(handle)

    @classmethod
    def _read(cls, folder: Path, settings: Mapping[str, Any]) -> CycleState:
        try:
            stored = json.loads((folder / FILE).read_text(encoding="utf-8"))
            candidates = {method: Candidate(**values) for method, values in stored["candidates"].items()}
            state = cls(folder, stored["settings"], stored["methods"], stored["runs_before"], candidates, stored["chosen"])
        except FileNotFoundError:
            return cls(folder, settings)
        except (ValueError, KeyError, TypeError):
            log.say(f"note: {folder / FILE} cannot be read, so the cycle begins anew")
            return cls(folder, settings)
        if state.settings != settings:
            log.say("note: an unfinished cycle had other settings, so this one begins anew")
            return cls(folder, settings)
        log.say("going on with the cycle that was not finished")
        return state

    def begin(self, method: str, runs: int) -> None:
        """Training by `method` begins; the agent has had so many runs before."""
        self.runs_before[method] = runs
        self._write()

    def add(self, candidate: Candidate) -> None:
        """Training by a method has ended."""
        self.candidates[candidate.method] = candidate
        self._write()

    def choose(self, version: str | None) -> None:
        """The dev rows have chosen."""
        self.chosen = version
        self._write()

    def finish(self) -> None:
        """The next cycle begins anew."""
        (self.folder / FILE).unlink(missing_ok=True)

    def _write(self) -> None:
        values = asdict(self)
        values.pop("folder")
        temporary = self.folder / f"{FILE}.tmp"
        try:
            temporary.write_text(json.dumps(values, indent=2), encoding="utf-8")
            sync(temporary)
            temporary.replace(self.folder / FILE)
            sync(self.folder)
        except OSError as error:
            fix = "Free some space, then start the cycle again: it goes on"
            raise StorageError(f"{self.folder / FILE}", error.strerror or str(error), fix) from error
