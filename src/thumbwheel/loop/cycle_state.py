"""What a cycle of an agent has done so far: a small file of the home, replaced after every step.

Verbs that store what they give (evaluations, decisions, exports, deployments) are not noted here:
they are found where they are stored.
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
from thumbwheel.training.rundir import replace

FILE, LOCK = "cycle.json", "lock"


@dataclass
class CycleState:
    """`settings` are those that decide what is trained; other ones may change between two starts of
    a cycle.

    `runs` has the id of the training by each method, noted before it begins. `base` is the one that
    all methods train over.
    """

    folder: Path
    settings: Mapping[str, Any]
    base: str | None = None
    methods: list[str] = field(default_factory=list)
    runs: dict[str, str] = field(default_factory=dict)
    candidates: dict[str, Candidate] = field(default_factory=dict)
    chosen: str | None = None
    evaluation: str | None = None
    """Id of the evaluation of the chosen version: what answers today is another one after the
    deployment."""

    @classmethod
    @contextmanager
    def open(
        cls, folder: Path, settings: Mapping[str, Any], anew: bool = False
    ) -> Iterator[CycleState]:
        """The unfinished cycle with these settings, else a new one. Raises Conflict where another
        process has it open."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                why = "another process is turning it at this moment"
                raise Conflict(
                    f"the cycle of agent {folder.name!r}",
                    why,
                    "Wait for it, or stop it with Ctrl-C there",
                ) from None
            yield cls(folder, settings) if anew else cls._read(folder, settings)
        finally:
            os.close(handle)

    @classmethod
    def _read(cls, folder: Path, settings: Mapping[str, Any]) -> CycleState:
        try:
            stored = json.loads((folder / FILE).read_text(encoding="utf-8"))
            candidates = {
                method: Candidate(**values) for method, values in stored.pop("candidates").items()
            }
            state = cls(folder, candidates=candidates, **stored)
        except FileNotFoundError:
            return cls(folder, settings)
        except (ValueError, KeyError, TypeError, AttributeError):
            log.say(f"note: {folder / FILE} cannot be read, so the cycle begins anew")
            return cls(folder, settings)
        if state.settings != settings:
            log.say("note: an unfinished cycle had other settings, so this one begins anew")
            return cls(folder, settings)
        log.say("going on with the cycle that was not finished")
        return state

    def note(self, **values: Any) -> None:
        """Store new values of some of the fields."""
        for name, value in values.items():
            setattr(self, name, value)
        self._write()

    def finish(self) -> None:
        """The next cycle begins anew."""
        (self.folder / FILE).unlink(missing_ok=True)

    def _write(self) -> None:
        values = asdict(self)
        values.pop("folder")
        try:
            replace(self.folder / FILE, json.dumps(values, indent=2))
        except OSError as error:
            fix = "Free some space, then start the cycle again: it goes on"
            raise StorageError(
                f"{self.folder / FILE}", error.strerror or str(error), fix
            ) from error
