"""The routes of the commands of jobs and schedules."""

from __future__ import annotations

from thumbwheel.access.route import AGENT, Route

JOB = "/api/jobs/{job}"

ROUTES = (
    Route(
        "jobs list",
        "GET",
        "/api/jobs",
        "read",
        {"state": ["running"]},
        by_row=True,
        gives={JOB: "/jobs/0/id"},
    ),
    Route("jobs show", "GET", JOB, "read", by_row=True),
    Route("jobs logs", "GET", f"{JOB}/log", "read", local=("follow",), by_row=True),
    Route("jobs cancel", "POST", f"{JOB}/cancel", "run", by_row=True),
    Route("jobs resume", "POST", f"{JOB}/resume", "run", by_row=True),
    Route("jobs retry", "POST", f"{JOB}/retry", "run", by_row=True),
    Route(
        "schedule list",
        "GET",
        "/api/schedules",
        "read",
        by_row=True,
        gives={"/api/schedules/{name}": "/0/name"},
    ),
    Route(
        "schedule add",
        "POST",
        f"{AGENT}/schedules",
        "run",
        {"name": "nightly", "cron": "30 3 * * *", "job": "reward pending"},
        # a spec may name files, code and other agents
        local=("set",),
        by_row=True,
        gives={"/api/schedules/{name}": "/name"},
    ),
    Route("schedule pause", "PUT", "/api/schedules/{name}", "run", {"resume": True}, by_row=True),
    Route("schedule remove", "DELETE", "/api/schedules/{name}", "run", by_row=True),
)
