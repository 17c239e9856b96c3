"""The routes of the commands that serve versions, and of the names of secrets."""

from __future__ import annotations

from thumbwheel.access.route import AGENT, Route

VERSIONS = "models list"
"""Its result has the aliases that these commands move."""

ROUTES = (
    Route(
        "deploy",
        "POST",
        f"{AGENT}/deployments",
        "deploy",
        {"version": "v1", "target": "embedded"},
        local=("set",),
    ),
    Route(
        "deployments",
        "GET",
        f"{AGENT}/deployments",
        "read",
        {"history": True},
        local=("restart", "stop", "deployment"),
    ),
    Route(
        "deployments",
        "POST",
        f"{AGENT}/deployments/stop",
        "deploy",
        local=("restart", "history", "deployment"),
        flag="stop",
    ),
    Route(
        "deployments",
        "POST",
        f"{AGENT}/deployments/restart",
        "deploy",
        local=("stop", "history", "deployment"),
        flag="restart",
    ),
    Route("promote", "POST", f"{AGENT}/promotions", "decide", {"version": "v1"}, state=VERSIONS),
    Route("rollback", "POST", f"{AGENT}/rollbacks", "decide", {"alias": "live"}, state=VERSIONS),
    Route("undeploy", "DELETE", f"{AGENT}/deployments/{{version}}", "deploy"),
    Route("modelfile", "POST", f"{AGENT}/versions/{{version}}/modelfile", "run"),
    Route("secrets list", "GET", "/api/secrets", "own", by_row=True),
    Route("secrets remove", "DELETE", "/api/secrets/{name}", "own", by_row=True),
)
