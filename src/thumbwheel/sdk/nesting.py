"""Which runs this context is in: tasks and threads of other sessions, and agents that call agents,
each have their own."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Inherited:
    """What a trace takes from the one around it, where it says nothing else."""

    session: str | None
    subject: str | None
    parent: str | None
    metadata: Mapping[str, str]


def inherited(
    agent: str, trace_id: str, child: str, session: str | None, subject: str | None
) -> Inherited:
    """Return the fields that a trace of the agent `child` takes from the trace of `agent` around
    it.

    A parent is a trace of the same agent; a trace of another agent is only noted in the metadata.
    """
    if child == agent:
        return Inherited(session, subject, trace_id, {})
    metadata = {"parent_agent": agent, "parent_trace": trace_id}
    return Inherited(session, subject, None, metadata)


class OpenRun(Protocol):
    """A run that is being recorded."""

    @property
    def trace_id(self) -> str:
        """The id of its trace."""

    @property
    def closed(self) -> bool:
        """Whether nothing more belongs to it."""

    def inherited(self, agent: str) -> Inherited:
        """Return the fields that a trace of `agent` begun inside this run takes from it."""


RUNS: ContextVar[tuple[OpenRun, ...]] = ContextVar("thumbwheel_runs", default=())
"""The runs that this context is in, the innermost last."""


def innermost() -> OpenRun | None:
    """Return the innermost open run of this context, or None."""
    return next((run for run in reversed(RUNS.get()) if not run.closed), None)
