"""The routes of the commands of labels."""

from __future__ import annotations

from thumbwheel.access.route import AGENT, Route

ROUTES = (
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
