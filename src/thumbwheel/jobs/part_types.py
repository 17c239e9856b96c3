"""The parts of a job, which workers of several hosts do together (parts.py)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from thumbwheel.db.write_locks import ROWS, WriteLock

if TYPE_CHECKING:
    from thumbwheel.db.workspace import Workspace


class PartState(StrEnum):
    """Where a part is."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"


@dataclass(frozen=True)
class JobPart:
    """A part of a job, as a worker claimed it."""

    job_id: str
    number: int
    """From 1."""
    kind: str
    spec: dict[str, Any]
    fence: int
    """How often it was claimed or released; a worker with an older number can write nothing."""


def _no_effect(connection: sa.Connection) -> None:
    """Write nothing."""


@dataclass(frozen=True)
class PartOutcome:
    """What doing a part gave."""

    result: Any = None
    """A small JSON value for the worker of the job."""
    effect: Callable[[sa.Connection], None] = _no_effect
    """Writes what the part is for, in the transaction that says that it is done."""
    lock: WriteLock = ROWS
    """The lock that the effect needs."""


PartHandler = Callable[[dict[str, Any]], PartOutcome]
"""Spec of a part -> its outcome. A part may be begun again after a kill at any point."""


@dataclass(frozen=True)
class PartKind:
    """How a worker does parts of the jobs of others."""

    opened: Callable[[Workspace], AbstractContextManager[PartHandler]]
    """What it loads stays loaded for all parts that it does of a job."""
    needs: tuple[str, ...] = ()
    """Resources of a host that it holds; `heavy` alone is counted."""
