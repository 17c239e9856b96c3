"""The pages of jobs: what runs and what became of the rest, and a job while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thumbwheel.access.types import Principal
from thumbwheel.app.job_kinds import verb_of
from thumbwheel.app.job_paths import shown_event, shown_job
from thumbwheel.capture.uploads import KIND as IMPORT
from thumbwheel.core.present import without_commands
from thumbwheel.db.workspace import Workspace
from thumbwheel.jobs import queue, schedules
from thumbwheel.jobs.types import Job, JobState
from thumbwheel.models.versions import agents
from thumbwheel.server.api.job_access import visible_job
from thumbwheel.server.pages.page import PageRequest

AT_ONCE = 50
TONES = {
    "running": "wait",
    "cancelling": "wait",
    "queued": "",
    "cancelled": "",
    "succeeded": "good",
    "failed": "bad",
}
"""State of a job -> the tone of its badge."""


def load_list(asked: PageRequest) -> Mapping[str, Any]:
    """Load a page of the jobs of the agents that the principal may see, newest first."""
    state = asked.query.get("state")
    states = [JobState(state)] if state in list(JobState) else []
    principal = asked.principal
    readable = _agents(asked.ws, principal)
    chosen = None if principal.may("read", None) else readable
    if agent := asked.query.get("agent"):
        chosen = [agent] if agent in readable else []
    page, cursor = queue.jobs(
        asked.ws,
        states=states,
        agents=chosen,
        after=asked.query.get("after"),
        limit=AT_ONCE,
    )
    return {
        "jobs": page,
        "after": cursor,
        "query": asked.query,
        "states": list(JobState),
        "tones": TONES,
        "agents": readable,
        "workers": len(queue.live_workers(asked.ws)),
        "may_resize": principal.may("own", None),
        "schedules": [
            schedule
            for schedule in schedules.schedules(asked.ws)
            if principal.may("read", schedule.agent)
        ],
    }


def load_job(asked: PageRequest) -> Mapping[str, Any]:
    """Load one job with its events so far. The page follows the events after `last_event`."""
    owns_home = asked.principal.may("own", None)
    row = visible_job(asked.principal, "read", asked.ws, asked.parts["job"])
    job = shown_job(asked.ws, row, owns_home)
    events = [
        shown_event(asked.ws, event, owns_home)
        for event in queue.events(asked.ws, job.id, limit=1000)
    ]
    return {
        "title": f"{job.kind} {job.agent or ''}".strip(),
        "job": job,
        "events": events,
        "last_event": events[-1].number if events else 0,
        "tones": TONES,
        "may_steer": asked.principal.may(verb_of(job.kind), job.agent),
        "links": _links(job),
        "report": _import_report(job),
    }


def _links(job: Job) -> list[tuple[str, str]]:
    """Return (label, address) of each page about a result of the job."""
    if job.agent is None:
        return []
    pages = f"/agents/{job.agent}"
    result = job.result if isinstance(job.result, Mapping) else {}
    links = []
    run_id = result.get("run_id") or job.notes.get("run")
    if isinstance(run_id, str):
        links.append(("the run with its curves", f"{pages}/runs/{run_id}"))
    if isinstance(version := result.get("version"), str):
        links.append((f"version {version}", f"{pages}/models/{version}"))
    if job.kind == "dataset build" and isinstance(dataset_id := result.get("id"), str):
        links.append(("the dataset", f"{pages}/datasets/{dataset_id}"))
    if job.kind == "replay run" and result.get("answered"):
        links.append(("the answers side by side", f"{pages}/replays/{result['id']}"))
    if job.kind == IMPORT and result:
        are_cases = result.get("cases") == result.get("read")
        name, page = ("the cases", "cases") if are_cases else ("the answers", "traces")
        links.append((name, f"{pages}/{page}"))
    return links


def _import_report(job: Job) -> Mapping[str, Any] | None:
    """Return what an import reported, without advice for a command line; None for other jobs."""
    if job.kind != IMPORT or not isinstance(job.result, Mapping):
        return None
    refusals = [
        (refusal["number"], without_commands(refusal["reason"]))
        for refusal in job.result.get("refusals", ())
    ]
    return {**job.result, "refusals": refusals}


def _agents(ws: Workspace, principal: Principal) -> list[str]:
    return [agent.slug for agent in agents(ws) if principal.may("read", agent.slug)]
