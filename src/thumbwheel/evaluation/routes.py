"""The routes of the commands of evaluation, replay and gate."""

from __future__ import annotations

from thumbwheel.access.route import AGENT, Route

ROUTES = (
    Route(
        "evaluate",
        "POST",
        f"{AGENT}/evaluations",
        "run",
        {"version": "latest", "suite": ["success"]},
        local=(
            "as",
            "against_as",
            "anchors",
            "benchmark",
            "judge_url",
            "judge_agreement",
            "key_variable",
        ),
    ),
    Route("gate show", "GET", f"{AGENT}/gate", "read"),
    Route(
        "gate declare",
        "PUT",
        f"{AGENT}/gate",
        "edit",
        {"min_cases": 100, "reason": "More cases have come"},
        state="gate show",
    ),
    Route(
        "gate decide",
        "POST",
        f"{AGENT}/gate/decisions",
        "run",
        {"evaluation": "evl_0f3k2m8v1"},
    ),
    Route(
        "replay run",
        "POST",
        f"{AGENT}/replays",
        "run",
        {"candidate": "latest", "judged": "bad", "most": 20},
    ),
    Route("replay show", "GET", f"{AGENT}/replays/{{replay}}", "read"),
)
