"""The routes of the commands that look at datasets, and of `reward calibrate`."""

from __future__ import annotations

from thumbwheel.access.route import AGENT, Route

ROUTES = (
    Route("reward calibrate", "POST", f"{AGENT}/rewards/calibration", "run"),
    Route(
        "dataset list",
        "GET",
        f"{AGENT}/datasets",
        "read",
        gives={f"{AGENT}/datasets/{{name}}": "/0/id"},
    ),
    Route("dataset show", "GET", f"{AGENT}/datasets/{{name}}", "read", {"rows": 10}),
    Route("dataset health", "GET", f"{AGENT}/datasets/{{name}}/health", "read"),
    Route(
        "dataset export",
        "GET",
        f"{AGENT}/datasets/{{name}}/files",
        "read",
        {"format": "jsonl"},
        download="to",
    ),
)
