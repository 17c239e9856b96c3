"""The state of an agent's unfinished cycle: a small file in the home, replaced after every step.

Decisions, exports and deployments are not recorded here: their stages store them, and the cycle
finds them there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from thumbwheel.core import log
from thumbwheel.core.errors import Conflict
from thumbwheel.core.files import replace, unwritable
from thumbwheel.core.locks import lock
from thumbwheel.loop.cycle_types import Candidate
from thumbwheel.models.base import Base

FILE, LOCK = "cycle.json", "lock"


def is_unfinished(folder: Path) -> bool:
    """Return whether the cycle of the agent with this folder was stopped before its end."""
    return (folder / FILE).is_file()


@dataclass
class CycleState:
    """How far a cycle has come."""

    folder: Path
    settings: Mapping[str, Any]
    """The settings that decide what is trained; others may change between two starts of a cycle."""
    base: str | None = None
    """The base that all methods train over."""
    base_fingerprint: str | None = None
    methods: list[str] = field(default_factory=list)
    runs: dict[str, str] = field(default_factory=dict)
    """Method -> the id of its run, noted before the run begins."""
    candidates: dict[str, Candidate] = field(default_factory=dict)
    chosen: str | None = None
    evaluation: str | None = None
    """Id of the evaluation of the chosen version. It has to be noted, since after the deployment
    another version answers and would be compared with."""

    @classmethod
    @contextmanager
    def open(
        cls, folder: Path, settings: Mapping[str, Any], anew: bool = False
    ) -> Iterator[CycleState]:
        """Yield the unfinished cycle with these settings, else a new one; with `anew` always a new
        one. Raises Conflict while another process has it open."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        why = "another process is running it at the moment"
        handle = lock(folder / LOCK, f"the cycle of agent {folder.name!r}", why)
        try:
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

    def check_base(self, base: Base) -> None:
        """Raise Conflict if the weights of `base` were changed since the cycle began: its
        candidates could not be compared."""
        if self.base_fingerprint not in (None, base.fingerprint):
            raise Conflict(
                f"the unfinished cycle of agent {self.folder.name!r}",
                f"the weights of its base {base.name!r} were changed since it began",
                "Restore that base, or discard the cycle: thumbwheel loop run --anew",
            )

    def note(self, **values: Any) -> None:
        """Set some of the fields and store the state."""
        for name, value in values.items():
            setattr(self, name, value)
        self._write()

    def finish(self) -> None:
        """Delete the state, so that the next cycle begins anew."""
        (self.folder / FILE).unlink(missing_ok=True)

    def _write(self) -> None:
        values = asdict(self)
        values.pop("folder")
        try:
            replace(self.folder / FILE, json.dumps(values, indent=2))
        except OSError as error:
            fix = "Free some space, then start the cycle again: it resumes"
            raise unwritable(f"{self.folder / FILE}", error, fix) from error
