"""The page of base models: those of this machine, and those that it can download."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from thumbwheel.jobs.queue import jobs
from thumbwheel.jobs.types import JobState
from thumbwheel.models.fetch import fetchable
from thumbwheel.server.pages.page import PageRequest
from thumbwheel.training.base_picker import AvailableBase, available_bases, proposed_base

FETCH = "models fetch"


@dataclass(frozen=True)
class BaseRow:
    """A base model in the table."""

    base: AvailableBase
    is_proposed: bool
    arrived: int
    """Bytes that a broken download left."""
    job: str | None
    """The job that downloads it now."""


def load_bases(asked: PageRequest) -> Mapping[str, Any]:
    """Load the base models, those that fit this machine first."""
    bases = available_bases()
    proposal = proposed_base(bases)
    arrived = {entry.base.id: entry.arrived for entry in fetchable()}
    under_way, _ = jobs(asked.ws, states=(JobState.QUEUED, JobState.RUNNING), kind=FETCH)
    job_of = {job.spec["base"]: job.id for job in under_way}
    rows = []
    for base in bases:
        job = None if base.is_here else job_of.get(base.name)
        rows.append(BaseRow(base, base is proposal, arrived.get(base.name, 0), job))
    return {"rows": rows}
