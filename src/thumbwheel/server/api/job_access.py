"""Who may see and steer a job: whoever may do that to its agent. A job of no agent is for those who
may do it to everything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thumbwheel.access.types import Principal, Verb
from thumbwheel.core.ids import slug_of
from thumbwheel.db.workspace import Workspace
from thumbwheel.jobs.queue import job


def require_rows(
    principal: Principal, verb: Verb, ws: Workspace, values: Mapping[str, Any]
) -> None:
    """Raise Forbidden where the principal may not do that to the job in `values`; without one, to
    the agent in them."""
    if "job" in values:
        principal.require(verb, job(ws, values["job"]).agent)
    else:
        agent = values.get("of_agent")
        principal.require(verb, slug_of(agent) if agent else None)
