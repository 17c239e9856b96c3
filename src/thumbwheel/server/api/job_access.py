"""Who may see and steer a job or a schedule: whoever may do to its agent what its kind does. One of
no agent is for those who may do that to everything. What somebody may not see does not exist for
them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thumbwheel.access.route import Route
from thumbwheel.access.types import Principal, Verb
from thumbwheel.app.job_kinds import verb_of
from thumbwheel.core.ids import slug_of
from thumbwheel.db.workspace import Workspace
from thumbwheel.jobs import queue, schedules
from thumbwheel.jobs.types import Job


def visible_job(principal: Principal, verb: Verb, ws: Workspace, job_id: str) -> Job:
    """Return the job. Raises NotFound if the principal may neither read it nor do `verb` to it,
    Forbidden if they may only read."""

    def is_visible(row: Job) -> bool:
        return principal.may("read", row.agent) or principal.may(needed(verb, row.kind), row.agent)

    row = queue.job(ws, job_id, is_visible)
    principal.require(needed(verb, row.kind), row.agent)
    return row


def needed(verb: Verb, kind: str) -> Verb:
    """Return the verb that a request of the kind `verb` needs for a job of this kind.

    >>> needed("run", "deploy"), needed("run", "train"), needed("read", "deploy")
    ('deploy', 'run', 'read')
    """
    return verb_of(kind) if verb == "run" else verb


def require_rows(
    principal: Principal, route: Route, ws: Workspace, values: Mapping[str, Any]
) -> None:
    """Raise Forbidden or NotFound if the principal may not do what `route` does to the job or
    schedule in `values`; without one, to the agent."""
    match route.command:
        case "schedule add":
            principal.require(needed(route.need, values["job"]), slug_of(values["agent"]))
        case "schedule pause" | "schedule remove":
            row = schedules.named(ws, values["name"], lambda row: principal.may("read", row.agent))
            principal.require(needed(route.need, row.kind), row.agent)
        case _ if "job" in values:
            visible_job(principal, route.need, ws, values["job"])
        case _:
            agent = values.get("of_agent")
            principal.require(route.need, slug_of(agent) if agent else None)
