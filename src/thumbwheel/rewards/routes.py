"""The routes of the commands of rewards and labels."""

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

LABEL_ROUTES = (
    Route("label learn", "POST", f"{AGENT}/labels/classifier", "run"),
    Route("label suggest", "POST", f"{AGENT}/labels/suggestions", "run", {"limit": 50}),
    Route(
        "label accept",
        "POST",
        f"{AGENT}/labels/accepted",
        "rate",
        {"rater": "anna", "min_confidence": 0.95},
        in_name_of="rater",
    ),
    Route(
        "label questions",
        "GET",
        f"{AGENT}/labels/questions",
        "read",
        {"limit": 5},
        gives={f"{AGENT}/labels/questions/{{question}}": "/0/id"},
    ),
    Route(
        "label decide",
        "POST",
        f"{AGENT}/labels/questions/{{question}}",
        "rate",
        {"verdict": "y", "rater": "anna"},
        in_name_of="rater",
    ),
    Route("label status", "GET", f"{AGENT}/labels", "read"),
    Route("label agreement", "GET", f"{AGENT}/labels/agreement", "read"),
)
