"""The routes of the commands of versions and turns of the wheel."""

from __future__ import annotations

from thumbwheel.access.route import AGENT, Route

ROUTES = (
    Route(
        "models list",
        "GET",
        f"{AGENT}/versions",
        "read",
        gives={f"{AGENT}/versions/{{version}}": "/0/id"},
    ),
    Route("models show", "GET", f"{AGENT}/versions/{{version}}", "read"),
    Route(
        "models endpoint",
        "POST",
        f"{AGENT}/versions",
        "own",
        {"url": "https://api.example.com/v1", "model": "large", "price_in": 2.5},
        gives={f"{AGENT}/versions/{{version}}": "/id"},
    ),
    Route("models lineage", "GET", f"{AGENT}/lineage", "read", {"version": "latest"}),
    Route(
        "models alias",
        "PUT",
        f"{AGENT}/aliases/{{name}}",
        "deploy",
        {"version": "v1"},
        state="models list",
    ),
    Route("report", "GET", f"{AGENT}/versions/{{version}}/report", "read", download="to"),
    Route(
        "loop run",
        "POST",
        f"{AGENT}/cycles",
        "deploy",  # with its option of that name, a turn ends in what everybody is answered by
        {"dry_run": True},
        folders={"export_to": "exports"},
    ),
    Route("loop enable", "PUT", f"{AGENT}/loop", "deploy", {"least": 50, "window": "01:00-05:00"}),
    Route("loop disable", "DELETE", f"{AGENT}/loop", "edit"),
    Route("loop status", "GET", f"{AGENT}/loop", "read", {"why": True}),
    Route(
        "loop decisions",
        "GET",
        f"{AGENT}/loop/decisions",
        "read",
        gives={f"{AGENT}/loop/decisions/{{decision}}": "/0/id"},
    ),
    Route(
        "loop approve",
        "POST",
        f"{AGENT}/loop/decisions/{{decision}}/approval",
        "decide",
        in_name_of="by",
    ),
    Route(
        "loop refuse",
        "POST",
        f"{AGENT}/loop/decisions/{{decision}}/refusal",
        "decide",
        in_name_of="by",
    ),
    Route(
        "loop quarantines",
        "GET",
        f"{AGENT}/loop/quarantines",
        "read",
        gives={f"{AGENT}/loop/quarantines/{{quarantine}}": "/0/id"},
    ),
    Route(
        "loop release",
        "POST",
        f"{AGENT}/loop/quarantines/{{quarantine}}/release",
        "edit",
        in_name_of="by",
    ),
    Route(
        "loop discard",
        "POST",
        f"{AGENT}/loop/quarantines/{{quarantine}}/discard",
        "edit",
        in_name_of="by",
    ),
    Route("loop check", "POST", f"{AGENT}/loop/checks", "run"),
    Route(
        "experiment start",
        "POST",
        f"{AGENT}/experiments",
        "deploy",
        {"arm": ["v0", "v1"], "metric": "thumb", "guard": ["error_rate"], "dry_run": True},
        gives={f"{AGENT}/experiments/{{id}}": "/id"},
    ),
    Route(
        "experiment list",
        "GET",
        f"{AGENT}/experiments",
        "read",
        gives={f"{AGENT}/experiments/{{id}}": "/0/id"},
    ),
    Route("experiment show", "GET", f"{AGENT}/experiments/{{id}}", "read"),
    Route(
        "experiment pause",
        "POST",
        f"{AGENT}/experiments/{{id}}/pauses",
        "deploy",
        {"reason": "the provider is down"},
    ),
    Route(
        "experiment stop",
        "DELETE",
        f"{AGENT}/experiments/{{id}}",
        "deploy",
        {"reason": "the prompt was changed"},
    ),
    Route("experiment replay", "GET", f"{AGENT}/experiments/{{id}}/replay", "read"),
)
