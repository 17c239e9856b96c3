"""The routes of capture's commands. Ingest, whose rows come from apps, is in `routes.py`."""

from __future__ import annotations

from thumbwheel.access.route import AGENT, Route

ROUTES = (
    Route(
        "import",
        "POST",
        f"{AGENT}/imports",
        "run",
        example={"source": "jsonl", "path": "ratings.jsonl", "dry_run": True},
        local=("key", "detect"),
        upload="path",
        # cases that somebody vouches for decide the gate, as those of `case add`
        further_needs={"gold": "edit"},
        in_name_of="reviewer",
    ),
    Route(
        "traces list",
        "GET",
        f"{AGENT}/traces",
        "read",
        {"rated": False, "limit": 20},
        gives={
            f"{AGENT}/traces/{{trace}}": "/traces/0/id",
            f"{AGENT}/rewards/{{trace}}": "/traces/0/id",
        },
    ),
    Route("traces show", "GET", f"{AGENT}/traces/{{trace}}", "read"),
    Route(
        "traces exclude",
        "POST",
        f"{AGENT}/exclusions",
        "edit",
        {"traces": ["t1"], "reason": "a test of ours"},
        in_name_of="by",
    ),
    Route(
        "prompt list",
        "GET",
        f"{AGENT}/prompts",
        "read",
        gives={f"{AGENT}/prompts/{{prompt}}": "/0/id"},
    ),
    Route("prompt show", "GET", f"{AGENT}/prompts/{{prompt}}", "read"),
    Route(
        "prompt store",
        "PUT",
        f"{AGENT}/prompts/{{prompt}}",
        "edit",
        {"text": "You help customers.", "note": "shorter"},
    ),
    Route(
        "feedback add",
        "POST",
        f"{AGENT}/feedback",
        "rate",
        {"target": "t1", "thumb": "down", "rater": "customer-17"},
        in_name_of="rater",
        gives={f"{AGENT}/uses/{{id}}": "/id"},
    ),
    Route(
        "feedback list",
        "GET",
        f"{AGENT}/feedback",
        "read",
        {"kind": "thumb"},
        gives={f"{AGENT}/uses/{{id}}": "/0/id"},
    ),
    Route("feedback stats", "GET", f"{AGENT}/feedback/stats", "read", {"period": "month"}),
    Route(
        "case add",
        "POST",
        f"{AGENT}/cases",
        "edit",
        {"input": "2 + 2?", "reference": "4", "checker": "exact_answer"},
        in_name_of="reviewer",
        state="case list",
    ),
    Route(
        "case list",
        "GET",
        f"{AGENT}/cases",
        "read",
        {"basis": "gold"},
        gives={f"{AGENT}/cases/{{case}}": "/cases/0/id"},
    ),
    Route(
        "case edit",
        "PUT",
        f"{AGENT}/cases/{{case}}",
        "edit",
        {"reference": "Three days."},
        in_name_of="reviewer",
    ),
    Route(
        "case from-traces",
        "POST",
        f"{AGENT}/cases/traces",
        "edit",
        {"traces": ["trc_0f3k2m8v1"]},
        in_name_of="reviewer",
    ),
    Route(
        "case review",
        "POST",
        f"{AGENT}/cases/gold",
        "edit",
        {"case": ["cas_0f3k2m8v1"]},
        in_name_of="reviewer",
    ),
)
