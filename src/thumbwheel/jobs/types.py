"""Nouns of this stage: a job and its states with the legal moves, what happened to it, a worker, a
schedule, and the settings."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field

from thumbwheel.core.config import Config
from thumbwheel.jobs.host_needs import HostNeeds

if TYPE_CHECKING:
    from thumbwheel.db.workspace import Workspace


class JobState(StrEnum):
    """Where a job is."""

    QUEUED = "queued"
    RUNNING = "running"
    CANCELLING = "cancelling"
    """It was asked to stop, and its worker has not stopped it yet."""
    CANCELLED = "cancelled"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


MOVES: Mapping[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.RUNNING, JobState.CANCELLED}),
    # back to the queue: its worker stops or has died
    JobState.RUNNING: frozenset(
        {JobState.QUEUED, JobState.CANCELLING, JobState.SUCCEEDED, JobState.FAILED}
    ),
    # work that was done before it heard of the cancellation is not undone
    JobState.CANCELLING: frozenset({JobState.CANCELLED, JobState.SUCCEEDED, JobState.FAILED}),
    JobState.CANCELLED: frozenset({JobState.QUEUED}),
    JobState.FAILED: frozenset({JobState.QUEUED}),
    JobState.SUCCEEDED: frozenset(),
}
"""State -> the states that may follow it."""

HELD = (JobState.RUNNING, JobState.CANCELLING)
"""States in which a worker has the job."""
ENDED = (JobState.CANCELLED, JobState.SUCCEEDED, JobState.FAILED)
"""States that only a person leaves."""


@dataclass(frozen=True)
class Job:
    """A job as it is now."""

    id: str
    """Id of the job."""
    kind: str
    """Command that it does, such as `train`."""
    spec: dict[str, Any]
    """Parameters of that command."""
    agent: str | None
    """Agent that it is about; null for the whole home."""
    state: JobState
    """State of the job."""
    key: str | None
    """Idempotency key of the request; a repeated one gets this job."""
    priority: int
    """Jobs with a higher number are taken first."""
    parent_id: str | None
    """Job that asked for it; null without one."""
    schedule_id: str | None
    """Schedule that asked for it; null without one."""
    asked_by: str | None
    """Id of the key or user that asked for it; null for the server itself."""
    folder: str | None
    """The folder of the home (jobs/host.py) that has a file which it reads; None if any host may do
    it."""
    attempts: int
    """Claims so far."""
    crashes: int
    """Workers that died under it since it was last asked for."""
    fence: int
    """How often it was claimed; a worker with an older number can write nothing."""
    worker_id: str | None
    """Worker that does it; null while nobody does."""
    notes: dict[str, Any]
    """What an attempt left for the next one, such as the run that it resumes."""
    progress: dict[str, Any] | None
    """what, done, total, unit, note."""
    result: Annotated[Any, Field(description="What its command answers; null until it is done.")]
    error: dict[str, str] | None
    """kind, what, why, fix."""
    last_event: int
    """Number of its newest event."""
    recorded_at: datetime
    """When it was asked for (UTC)."""
    started_at: datetime | None
    """When its first attempt began (UTC); null before."""
    progressed_at: datetime | None
    """When it last said how far it is (UTC)."""
    ended_at: datetime | None
    """When it ended (UTC); null before."""

    @property
    def has_ended(self) -> bool:
        """Whether nothing happens to it any more, unless somebody asks."""
        return self.state in ENDED


@dataclass(frozen=True)
class JobPage:
    """Jobs, the newest first."""

    jobs: list[Job]
    """Jobs of this page."""
    after: str | None
    """Cursor of the next page, for `after` of the request; null on the last one."""
    workers: int
    """Workers that are alive."""


class EventKind(StrEnum):
    """What an event tells."""

    STATE = "state"
    PROGRESS = "progress"
    LOG = "log"


@dataclass(frozen=True)
class JobEvent:
    """Something that happened to a job."""

    number: int
    """From 1, without gaps."""
    kind: EventKind
    """state, progress or log."""
    content: dict[str, Any]
    """Details: the new state, how far it is, or a line of text."""
    recorded_at: datetime
    """When it happened (UTC)."""


@dataclass(frozen=True)
class WorkerRow:
    """A process that claims jobs, as the database has it."""

    id: str
    host: str
    pid: int
    process_started: int
    """As the kernel counts it; 0 where it does not tell."""
    settings: str
    beat: int
    beaten_at: datetime
    recorded_at: datetime
    lacks: dict[str, str] | None = None
    """Kind of jobs that it leaves to others -> what its host lacks for it."""

    @property
    def folder(self) -> str:
        """The id of the folder that its host has of the home."""
        return self.host.partition("@")[0]


class Missed(StrEnum):
    """What becomes of runs that no worker was there to start."""

    ONCE = "once"
    """All of them together are made up for by one run."""
    SKIP = "skip"
    """They are left out."""
    ALL = "all"
    """Each is made up for."""


@dataclass(frozen=True)
class Schedule:
    """A job that the clock asks for."""

    id: str
    """Id of the schedule."""
    name: str
    """Name by which it is paused and removed."""
    kind: str
    """Command of the jobs, such as `reward pending`."""
    spec: dict[str, Any]
    """Parameters of that command."""
    agent: str | None
    """Agent that the jobs are about; null for the whole home."""
    cron: str
    """When, as five fields: minute, hour, day, month, weekday."""
    timezone: str
    """Zone of these times."""
    missed: Missed
    """What becomes of times at which no server ran."""
    paused: bool
    """Whether it asks for nothing at present."""
    asked_by: str | None
    """Id of the key or user that added it."""
    next_at: datetime | None
    """None where the expression names no later time."""
    recorded_at: datetime
    """When it was added (UTC)."""


@dataclass(frozen=True)
class JobKind:
    """What a worker has to know about one kind of job."""

    spec: type[BaseModel]
    handler: Callable[[Workspace, Any], Any]
    """(open home, spec) -> a dataclass, model or JSON value, as its annotation says. It may be
    begun again after a kill at any point."""
    needs: tuple[str, ...] = ()
    """Resources that it holds while it runs; `{agent}` stands for the job's agent."""
    is_urgent: bool = False
    """Whether it goes before all that waits and is not: what people see depends on it."""
    host_needs: HostNeeds | None = None
    """What the host must have, unless `jobs.needs` says otherwise."""

    @property
    def result(self) -> Any:
        """The type of what the handler returns, anything where a plugin's does not say it; its JSON
        is what a job row stores."""
        return typing.get_type_hints(self.handler).get("return", Any)


CRASH, WORKER_DIED = "Crash", "Crashed"
"""Kinds of the error of a job that crashed, and of one under which its workers died."""
HEAVY = "heavy"
"""The resource of kinds that compute with models."""


class JobsConfig(Config):
    """Settings of jobs and workers."""

    heavy: int = Field(default=1, ge=1)
    """Most jobs at a time on one host that compute with models: train, evaluate, export, loop run.
    Others run beside them, as far as there are workers."""
    lease_seconds: float = Field(default=15.0, gt=0)
    """Seconds without a sign of life after which a worker counts as dead, and another takes its job
    over."""
    needs: dict[str, HostNeeds] = Field(default_factory=dict)
    """Kind of jobs -> what a host must have whose workers do them, as `train: {gpus: 1}`."""
    queued_per_key: int = Field(default=100, ge=1)
    """Jobs of one key or user that may wait; further ones are refused with 429. The owner of the
    home has no such limit."""
    crashes: int = Field(default=10, ge=1)
    """Workers that may die under a job before it fails."""
    stall_minutes: float = Field(default=120.0, gt=0)
    """Minutes without progress or a log line after which a job is stopped as standing still."""
    stop_seconds: float = Field(default=60.0, gt=0)
    """Seconds that a cancelled job has to stop at a checkpoint before it is killed."""
