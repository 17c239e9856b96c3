"""What of an agent waits for a person: decisions, held bursts of feedback, failed jobs, deployments
that do not answer, and queues with something left to rate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from thumbwheel.core.clock import Clock, utc_now
from thumbwheel.db.workspace import Workspace
from thumbwheel.jobs import queue
from thumbwheel.jobs.types import Job, JobState
from thumbwheel.loop.inbox import decisions
from thumbwheel.loop.quarantine import quarantines
from thumbwheel.loop.quarantine_types import Quarantine
from thumbwheel.loop.trigger_types import Pending
from thumbwheel.models.types import Agent
from thumbwheel.review.queues import all_queues
from thumbwheel.review.types import Queue, QueueState

FAILED_DAYS = 7
"""Days in which a failed job waits for somebody to look."""
NEWEST_JOBS = 200
"""Jobs among which failed ones are looked for."""

Down = Mapping[tuple[str, str], str]
"""(agent, version) -> why its deployment does not answer."""


@dataclass(frozen=True)
class DeadDeployment:
    """A version that calls go to, and that does not answer."""

    version: str
    why: str


@dataclass(frozen=True)
class Attention:
    """All that waits, each list oldest first."""

    decisions: Sequence[Pending]
    held: Sequence[Quarantine]
    failed: Sequence[Job]
    dead: Sequence[DeadDeployment]
    queues: Sequence[Queue]

    @property
    def count(self) -> int:
        """How many things wait."""
        parts = (self.decisions, self.held, self.failed, self.dead, self.queues)
        return sum(len(part) for part in parts)


def attention(ws: Workspace, agent: Agent, down: Down, clock: Clock = utc_now) -> Attention:
    """Return the decisions, quarantines, failed jobs, dead deployments and open queues of one agent
    that wait for a person."""
    open_queues = [
        queue_row
        for queue_row in all_queues(ws, agent)
        if queue_row.state is QueueState.OPEN and queue_row.done < queue_row.items
    ]
    return Attention(
        decisions(ws, agent),
        quarantines(ws, agent),
        failed_jobs(ws, agent, clock()),
        [
            DeadDeployment(version, why)
            for (slug, version), why in sorted(down.items())
            if slug == agent.slug
        ],
        open_queues[::-1],
    )


def failed_jobs(ws: Workspace, agent: Agent, now: datetime) -> list[Job]:
    """Return the jobs that failed in the last days, oldest first, except those followed by a
    successful job of the same kind."""
    newest, _ = queue.jobs(
        ws,
        states=[JobState.FAILED, JobState.SUCCEEDED],
        agents=[agent.slug],
        limit=NEWEST_JOBS,
    )
    since = now - timedelta(days=FAILED_DAYS)
    settled: set[str] = set()
    failed = []
    for job in newest:
        if job.state is JobState.SUCCEEDED:
            settled.add(job.kind)
        elif job.kind not in settled and (job.ended_at or job.recorded_at) >= since:
            failed.append(job)
    return failed[::-1]
