"""The routes of the commands of rewards."""

from __future__ import annotations

from thumbwheel.access.route import AGENT, Route

ROUTES = (
    Route("reward run", "POST", f"{AGENT}/rewards", "run", {"component": ["thumb"]}),
    Route("reward list", "GET", f"{AGENT}/rewards", "read", {"lowest": 10}),
    Route("reward explain", "GET", f"{AGENT}/rewards/{{trace}}", "read"),
    Route("reward reweight", "GET", f"{AGENT}/reweighted", "read", {"weight": ["thumb=2"]}),
    Route("reward pending", "POST", f"{AGENT}/rewards/pending", "run", {"dry_run": True}),
    Route(
        "reward rewrite",
        "POST",
        f"{AGENT}/rewards/rewritten",
        "run",
        local=("url", "model", "api_key_variable"),
    ),
)
